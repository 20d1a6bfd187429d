// How the inputs of GEMMs are stored, by matrices, norms and configuration.
#include "src/activations.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/engine_step.h"

namespace mr::cuda::test {
namespace {

Activations activations(const Model& model, int32_t act_type = 0) {
  mr_runner_config config = config_of(MR_KV_F16);
  config.act_type = act_type;
  return Activations(model.shard(0), config);
}

PackedWeight matrix(int32_t type) { return {type, 64, 256, nullptr}; }

TEST(Activations, AreOfTheTypeThatTheirMatricesWant) {
  const auto device = open_device();
  const auto model = random_model(device, desc_of(4, 2, 64), kF16);
  const PackedWeight f16 = matrix(kF16), bf16 = matrix(kBF16), f32 = matrix(kF32), q8 = matrix(kQ8_0), q3 = matrix(kQ3_K), none;
  const auto chosen = [&](std::initializer_list<const PackedWeight*> matrices, int32_t act_type = 0) {
    return activations(*model, act_type).act_of(matrices);
  };
  EXPECT_EQ(chosen({&f16, &none, &f16}), Act::kF16);
  EXPECT_EQ(chosen({&f16, &bf16}), Act::kBF16);
  EXPECT_EQ(chosen({&f32}), Act::kBF16);
  EXPECT_EQ(chosen({&bf16, &bf16, &q8}), Act::kF16) << "quantised matrices have kernels for f16 alone";
  EXPECT_EQ(chosen({&q3, &f32}), Act::kF16);
  EXPECT_EQ(chosen({&f16}, MR_KV_BF16), Act::kBF16);
  EXPECT_EQ(chosen({&bf16}, MR_KV_F16), Act::kF16);
  EXPECT_EQ(chosen({&f16, &q8}, MR_KV_BF16), Act::kF16);
}

TEST(Activations, LieDividedByAPowerThatBringsThemIntoF16) {
  const auto device = open_device();
  const UniformShape desc = desc_of(4, 2, 64);
  const auto plain = random_model(device, desc, kQ8_0);
  EXPECT_EQ(activations(*plain).normed(Act::kF16).scale, 1);
  EXPECT_EQ(activations(*plain).attended(Act::kF16).scale, 1);
  EXPECT_EQ(activations(*plain).gated(Act::kF16).scale, 64);
  EXPECT_EQ(activations(*plain).residual(Act::kF16).scale, 64);
  EXPECT_EQ(activations(*plain).carried(Act::kF16).scale, 64);
  EXPECT_EQ(activations(*plain).carried(Act::kBF16).scale, 1);
  for (const int32_t role : {int32_t{MR_ROLE_ATTN_NORM}, int32_t{MR_ROLE_FFN_NORM}, int32_t{MR_ROLE_OUTPUT_NORM}}) {
    std::vector<TensorBytes> tensors = random_tensors(desc, kQ8_0);
    const float large = -7e4f;
    for (TensorBytes& t : tensors)
      if (t.desc.role == role) std::memcpy(t.bytes.data() + 8, &large, sizeof large);
    const auto model = bound_model(device, desc, tensors);
    const Activations of = activations(*model);
    const double bound = 7e4 * std::sqrt(static_cast<double>(desc.hidden)), scale = static_cast<double>(of.normed(Act::kF16).scale);
    EXPECT_LT(bound / scale, 65504) << role;
    EXPECT_GE(bound / scale * 2, 65504) << role;
    for (const InputType& type : {of.normed(Act::kBF16), of.gated(Act::kBF16), of.residual(Act::kBF16)}) EXPECT_EQ(type.scale, 1);
  }
}

// Greedy tokens do not change if every logit is multiplied by a power of two.
TEST(Activations, OfANormBeyondF16GiveTheSameTokens) {
  const auto device = open_device();
  const UniformShape desc = desc_of(4, 2, 64);
  std::vector<Output> outputs[2];
  for (const float scale : {1.0f, 0x1p17f}) {
    std::vector<TensorBytes> tensors = random_tensors(desc, kQ8_0);
    for (TensorBytes& t : tensors) {
      if (t.desc.role != MR_ROLE_OUTPUT_NORM) continue;
      for (size_t at = 0; at < t.bytes.size(); at += 4) {
        float weight;
        std::memcpy(&weight, t.bytes.data() + at, 4);
        weight *= scale;
        std::memcpy(t.bytes.data() + at, &weight, 4);
      }
    }
    const auto model = bound_model(device, desc, tensors);
    EXPECT_EQ(activations(*model).normed(Act::kF16).scale > 1, scale > 1);
    Runner runner(model, config_of(MR_KV_F16));
    std::vector<Output>& out = outputs[scale > 1];
    out = play(runner, {{0, random_ids(3, 40), 40, 20, 1, 0}, {1, random_ids(4, 9), 9, 20, 1, 0}});
    for (Output& o : out)
      for (size_t i = 1; i < o.bits.size(); i += 2) o.bits[i] = 0;  // logprobs differ
  }
  EXPECT_TRUE(outputs[0] == outputs[1]);
  for (const Output& o : outputs[1]) EXPECT_EQ(std::count(o.bits.begin(), o.bits.end(), static_cast<uint32_t>(-1)), 0);
}

}  // namespace
}  // namespace mr::cuda::test
