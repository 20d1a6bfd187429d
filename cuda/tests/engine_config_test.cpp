// Configurations for which this engine has no kernels are refused by name, before anything is allocated.
#include "src/kinds.h"
#include "tests/engine_step.h"

namespace mr::cuda::test {
namespace {

class Config : public testing::Test {
 protected:
  Config() : device_(open_device()), model_(random_model(device_, desc_of(4, 2, 64), kQ8_0)) {}

  Refusal refusal_of_types(int32_t kv_type, int32_t act_type) const {
    mr_runner_config config = config_of(kv_type);
    config.act_type = act_type;
    const LedgerCounts before = device_->ledger.counts();
    const Refusal refused = refusal_of([&] { const Runner runner(model_, config); });
    EXPECT_EQ(device_->ledger.counts().free(), before.free());
    EXPECT_EQ(device_->runners.load(), 0);
    mr_runner_cost cost{};
    EXPECT_EQ(refusal_of([&] { Runner::cost(*model_, config, &cost); }).code, refused.code);
    return refused;
  }

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Model> model_;
};

TEST_F(Config, TakesActivationsOfEitherTypeBesideEveryCache) {
  for (const int32_t type : {int32_t{MR_KV_F16}, int32_t{MR_KV_BF16}, int32_t{MR_KV_F8}})
    for (const int32_t act : {0, int32_t{MR_KV_F16}, int32_t{MR_KV_BF16}})
      EXPECT_EQ(refusal_of_types(type, act).code, MR_OK) << type << ", " << act;
}

TEST_F(Config, RefusesOtherTypesByName) {
  EXPECT_EQ(refusal_of_types(MR_KV_F32, 0).code, MR_UNIMPLEMENTED);
  EXPECT_EQ(refusal_of_types(2, 0).code, MR_INVALID_ARGUMENT);
  EXPECT_EQ(refusal_of_types(MR_KV_F16, 2).code, MR_INVALID_ARGUMENT);
  EXPECT_EQ(refusal_of_types(MR_KV_F16, -1).code, MR_INVALID_ARGUMENT);
}

TEST_F(Config, OfNegativeHostBlocksIsRefused) {
  mr_runner_config config = config_of(MR_KV_F16);
  config.host_blocks = -1;
  EXPECT_EQ(refusal_of([&] { const Runner runner(model_, config); }).code, MR_INVALID_ARGUMENT);
}

mr_mixer_desc delta_net(int32_t key_dim) {
  mr_mixer_desc m{};
  m.kind = MR_MIX_DELTA;
  m.heads = m.kv_heads = 1;
  m.key_dim = key_dim;
  m.value_dim = 32;
  m.conv = 4;
  m.rope = -1;
  return m;
}

// With a rotation of 64 dims.
mr_mixer_desc latent_of(int32_t latent) {
  mr_mixer_desc m{};
  m.kind = MR_MIX_LATENT;
  m.heads = 2;
  m.kv_heads = 1;
  m.key_dim = 80;
  m.value_dim = 32;
  m.latent = latent;
  return m;
}

TEST_F(Config, RefusesBlocksWithoutKernelsByName) {
  const auto refused = [&](const char* name, auto change) {
    Description desc = description_of(desc_of(4, 2, 64));
    change(desc, desc.layers[1]);
    const Refusal refusal = refusal_of([&] { const Model model(device_, desc); });
    EXPECT_EQ(refusal.code, MR_UNIMPLEMENTED);
    EXPECT_NE(refusal.message.find(name), std::string::npos) << refusal.message;
  };
  refused("layer 1: head_dim is 513", [](Description&, mr_layer_desc& l) { l.mixer.key_dim = l.mixer.value_dim = 513; });
  refused("layer 1 has heads whose keys and values differ", [](Description&, mr_layer_desc& l) { l.mixer.value_dim = 32; });
  refused("layer 1 has a latent of 513 dims", [](Description&, mr_layer_desc& l) { l.mixer = latent_of(513); });
  refused("layer 1 has attention that sees later positions", [](Description&, mr_layer_desc& l) { l.mixer.flags |= MR_MIX_BIDIRECTIONAL; });
  refused("layer 1: key_dim is 513", [](Description&, mr_layer_desc& l) { l.mixer = delta_net(513); });
  refused("5 rotations", [](Description& d, mr_layer_desc&) { d.ropes.resize(5, d.ropes[0]); });
  refused("5 kinds of attention", [](Description& d, mr_layer_desc&) {
    d.layers.resize(5, d.layers[0]);
    for (int32_t i = 0; i < 5; ++i) d.layers[static_cast<size_t>(i)].mixer.window = i;
  });
}

TEST_F(Config, RefusesStatesOnSeveralDevicesByName) {
  const auto refused = [](const char* name, auto change) {
    Description desc = description_of(desc_of(4, 2, 64));
    change(desc.layers[1].mixer);
    EXPECT_EQ(refusal_of([&] { check_description(desc, 1, 99 << 10); }).code, MR_OK) << name;
    const Refusal several = refusal_of([&] { check_description(desc, 2, 99 << 10); });
    EXPECT_EQ(several.code, MR_UNIMPLEMENTED);
    EXPECT_NE(several.message.find(std::string("layer 1 has ") + name), std::string::npos) << several.message;
  };
  refused("a gated delta rule", [](mr_mixer_desc& m) { m = delta_net(512); });
  refused("a short convolution", [](mr_mixer_desc& m) {
    m = delta_net(0);
    m.kind = MR_MIX_CONV;
    m.heads = m.kv_heads = m.value_dim = 0;
  });
}

TEST_F(Config, RefusesRoutersOfTypesWithoutKernelsByName) {
  for (const int32_t type : {kF32, kBF16, kQ8_0}) {
    mr_tensor_desc tensor{};
    tensor.struct_size = sizeof tensor;
    tensor.role = MR_ROLE_ROUTER;
    tensor.layer = 1;
    tensor.type = type;
    tensor.ndims = 2;
    tensor.dims[0] = 64;
    tensor.dims[1] = 8;
    const Refusal refused = refusal_of([&] { (void)Model::resident_size(*device_, tensor); });
    EXPECT_EQ(refused.code, type == kQ8_0 ? MR_UNIMPLEMENTED : MR_OK);
    if (type == kQ8_0) {
      EXPECT_NE(refused.message.find("router of layer 1 has weights of type Q8_0"), std::string::npos) << refused.message;
    }
  }
}

// A block has 99 KiB on compute capability 8.6, and 163 on 8.0.
TEST_F(Config, RefusesHeadsThatSharedMemoryDoesNotHold) {
  Description desc = description_of(desc_of(4, 2, 64));
  for (const int32_t dim : {64, 256, 257, 512}) {
    desc.layers[1].mixer.key_dim = desc.layers[1].mixer.value_dim = dim;
    const Refusal small = refusal_of([&] { check_description(desc, 1, 99 << 10); });
    EXPECT_EQ(small.code, dim <= 256 ? MR_OK : MR_UNIMPLEMENTED) << dim;
    if (dim > 256) {
      EXPECT_NE(small.message.find("layer 1: head_dim is " + std::to_string(dim)), std::string::npos) << small.message;
    }
    EXPECT_EQ(refusal_of([&] { check_description(desc, 1, 163 << 10); }).code, MR_OK) << dim;
  }
}

TEST_F(Config, RefusesLatentsThatSharedMemoryOrDevicesDoNotHold) {
  Description desc = description_of(desc_of(4, 2, 64));
  desc.layers[1].mixer = latent_of(512);
  EXPECT_EQ(refusal_of([&] { check_description(desc, 1, 163 << 10); }).code, MR_OK);
  for (const auto& [ranks, shared] : {std::pair{1, 99 << 10}, std::pair{2, 163 << 10}}) {
    const Refusal refused = refusal_of([&, r = ranks, s = shared] { check_description(desc, r, s); });
    EXPECT_EQ(refused.code, MR_UNIMPLEMENTED);
    EXPECT_NE(refused.message.find("layer 1 has attention over a latent"), std::string::npos) << refused.message;
  }
}

TEST_F(Config, SaysThatItsClassesDiffer) {
  mr_device_info info{};
  info.one_class = 7;
  device_->info(&info);
  EXPECT_EQ(info.one_class, 0);
}

}  // namespace
}  // namespace mr::cuda::test
