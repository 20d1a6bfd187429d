// The activation type of the GEMM inputs, by model and configuration.
#include "src/activations.h"

#include "tests/engine_fixture.h"

namespace mr::cuda::test {
namespace {

Act chosen(const Model& model, int32_t kv_type, int32_t act_type = 0) {
  mr_runner_config config = config_of(kv_type);
  config.act_type = act_type;
  return activations_of(model.shard(0), config).act;
}

TEST(Activations, AreF16BesideQuantisedAndF16Matrices) {
  const auto device = open_device();
  for (const int32_t type : {int32_t{kF16}, int32_t{kQ8_0}}) {
    const auto model = random_model(device, desc_of(4, 2, 64), type);
    for (const int32_t kv : {int32_t{MR_KV_BF16}, int32_t{MR_KV_F16}, int32_t{MR_KV_F8}}) EXPECT_EQ(chosen(*model, kv), Act::kF16) << type;
    EXPECT_EQ(chosen(*model, MR_KV_BF16, MR_KV_BF16), Act::kBF16);
    EXPECT_EQ(activations_of(model->shard(0), config_of(MR_KV_BF16)).ffn_scale, 64);
  }
}

TEST(Activations, AreBF16WhereOneMatrixIsWider) {
  const auto device = open_device();
  const UniformShape desc = desc_of(4, 2, 64);
  std::vector<TensorBytes> tensors = random_tensors(desc, kF16);
  const std::vector<TensorBytes> wide = random_tensors(desc, kF32);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].desc.role == MR_ROLE_DOWN && tensors[i].desc.layer == desc.layers - 1) tensors[i] = wide[i];
  const auto model = bound_model(device, desc, tensors);
  for (const int32_t kv : {int32_t{MR_KV_BF16}, int32_t{MR_KV_F16}, int32_t{MR_KV_F8}}) EXPECT_EQ(chosen(*model, kv), Act::kBF16);
  EXPECT_EQ(activations_of(model->shard(0), config_of(MR_KV_F16)).ffn_scale, 1);
  EXPECT_EQ(chosen(*model, MR_KV_BF16, MR_KV_F16), Act::kF16);
}

TEST(Activations, AreBF16WhereANormMayPassF16) {
  const auto device = open_device();
  const UniformShape desc = desc_of(4, 2, 64);
  for (const int32_t role : {int32_t{MR_ROLE_ATTN_NORM}, int32_t{MR_ROLE_FFN_NORM}, int32_t{MR_ROLE_OUTPUT_NORM}}) {
    std::vector<TensorBytes> tensors = random_tensors(desc, kQ8_0);
    for (TensorBytes& t : tensors) {
      if (t.desc.role != role) continue;
      const float large = -7e4f;
      std::memcpy(t.bytes.data() + 8, &large, sizeof large);
    }
    EXPECT_EQ(chosen(*bound_model(device, desc, tensors), MR_KV_BF16), Act::kBF16) << role;
  }
}

}  // namespace
}  // namespace mr::cuda::test
