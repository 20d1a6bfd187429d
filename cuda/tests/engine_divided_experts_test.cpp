// Mixtures of experts that several GPUs hold together: the bits of one GPU, the bytes of the file, and refusals.
#include <algorithm>
#include <functional>
#include <string>

#include "tests/engine_together.h"

namespace mr::cuda::test {
namespace {

struct Case {
  Description desc;
  std::function<int32_t(int32_t)> type;  // of the matrices of a role
};

// Routers are F16, as no engine has quantised ones.
std::function<int32_t(int32_t)> types(int32_t experts, int32_t others) {
  return [=](int32_t role) -> int32_t {
    if (role == MR_ROLE_ROUTER) return kF16;
    return role == MR_ROLE_EXPERT_GATE || role == MR_ROLE_EXPERT_UP || role == MR_ROLE_EXPERT_DOWN ? experts : others;
  };
}

mr_experts_desc experts_of(int32_t count, int32_t used, uint32_t flags, int32_t shared_width = 0) {
  mr_experts_desc e{};
  e.count = count;
  e.used = used;
  e.flags = flags;
  e.shared_width = shared_width;
  return e;
}

// A dense layer and two of experts.
Description mixture_of(int32_t ranks, const mr_experts_desc& experts, int32_t width) {
  UniformShape shape = desc_of(2 * ranks, ranks, 64);
  shape.layers = 3;
  Description desc = description_of(shape);
  for (size_t i = 1; i < desc.layers.size(); ++i) {
    desc.layers[i].mlp.kind = MR_MLP_EXPERTS;
    desc.layers[i].mlp.width = width;
    desc.layers[i].experts = experts;
  }
  return desc;
}

// As gpt-oss: sinks, biases, the clamped activation, MXFP4.
Case with_biases(int32_t ranks) {
  Description desc = mixture_of(ranks, experts_of(8, 4, MR_EXPERTS_RENORM | MR_EXPERTS_ROUTER_BIAS | MR_EXPERTS_BIAS), 160);
  for (mr_layer_desc& layer : desc.layers) {
    layer.mixer.flags |= MR_MIX_SINKS | MR_MIX_QKV_BIAS | MR_MIX_OUT_BIAS;
    if (layer.mlp.kind == MR_MLP_EXPERTS) layer.mlp.activation = MR_ACT_CLAMPED;
  }
  return {desc, types(kMXFP4, kQ8_0)};
}

// As Gemma 4: layers with heads of other widths, a shared expert, norms of every branch, scales.
Case with_norms(int32_t ranks) {
  Description desc =
      mixture_of(ranks, experts_of(12, 3, MR_EXPERTS_RENORM | MR_EXPERTS_APART | MR_EXPERTS_SCALES, 16 * ranks + 32), 16 * ranks + 64);
  for (mr_layer_desc& layer : desc.layers) {
    layer.mixer.flags |= MR_MIX_END_NORM | MR_MIX_QK_NORM;
    layer.mlp.flags |= MR_MLP_END_NORM;
    layer.mlp.activation = MR_ACT_GELU_TANH;
    layer.output_scale = 1;
  }
  desc.layers[0].mixer.window = 20;
  mr_mixer_desc& last = desc.layers[2].mixer;
  last.key_dim = last.value_dim = 128;
  last.flags |= MR_MIX_VALUE_IS_KEY | MR_MIX_V_NORM;
  return {desc, types(kQ8_0, kQ8_0)};
}

std::vector<std::pair<std::string, Case>> cases(int32_t ranks) {
  std::vector<std::pair<std::string, Case>> all;
  // 200: parts of unlike size, the last of which ends within a panel.
  all.push_back({"few of many", {mixture_of(ranks, experts_of(16, 2, MR_EXPERTS_RENORM), 200), types(kF16, kF16)}});
  all.push_back({"biases", with_biases(ranks)});
  all.push_back({"norms", with_norms(ranks)});
  const mr_experts_desc with_gate = experts_of(8, 2, MR_EXPERTS_CHOICE_BIAS | MR_EXPERTS_SHARED_GATE, 16 * ranks + 32);
  Case shared{mixture_of(ranks, with_gate, 128), types(kQ8_0, kQ8_0)};
  for (mr_layer_desc& layer : shared.desc.layers)
    if (layer.mlp.kind == MR_MLP_EXPERTS) layer.experts.gating = MR_GATE_SIGMOID;
  all.push_back({"a shared expert and its gate", shared});
  all.push_back({"a shared expert", {mixture_of(ranks, experts_of(8, 2, 0, 16 * ranks + 16), 128), types(kQ8_0, kF16)}});
  Case scaled{mixture_of(ranks, experts_of(8, 2, 0, 96), 128), types(kQ8_0, kF16)};
  scaled.desc.residual_scale = 0.25f;
  all.push_back({"branches that are scaled", scaled});
  // Gate and up of unlike types; all experts, so that a step's rows are more than are computed at once.
  all.push_back({"types that differ", {mixture_of(ranks, experts_of(24, 24, MR_EXPERTS_RENORM), 128), [](int32_t role) -> int32_t {
    return role == MR_ROLE_EXPERT_UP ? kQ8_0 : kF16;
  }}});
  Case gated{mixture_of(ranks, experts_of(4, 4, MR_EXPERTS_RENORM), 128), types(kQ8_0, kQ8_0)};
  for (mr_layer_desc& layer : gated.desc.layers) layer.mixer.flags |= MR_MIX_OUT_GATE;
  all.push_back({"attention with an output gate", gated});
  // As MiniMax-M2; and with biases, which the norms read, with values that are keys, and keys of another layer.
  Case rows{mixture_of(ranks, experts_of(8, 2, MR_EXPERTS_RENORM), 128), types(kQ8_0, kQ8_0)};
  for (mr_layer_desc& layer : rows.desc.layers) layer.mixer.flags |= MR_MIX_QK_ROW_NORM;
  rows.desc.layers[0].mixer.flags |= MR_MIX_QKV_BIAS;
  rows.desc.layers[1].mixer.flags |= MR_MIX_VALUE_IS_KEY;
  rows.desc.layers[2].mixer.kv_layer = 1;
  all.push_back({"norms over whole rows of Q and K", rows});
  return all;
}

class ExpertsAmong : public testing::TestWithParam<std::vector<int32_t>> {  // indices of GPUs
 protected:
  void SetUp() override {
    if (gpus() < ranks()) GTEST_SKIP() << "GPUs here: " << gpus() << "; this test needs " << ranks();
  }
  static int32_t ranks() { return static_cast<int32_t>(GetParam().size()); }
};

TEST_P(ExpertsAmong, GiveTheBitsOfOneGpu) {
  const auto one = open_device(), all = open_together(GetParam());
  for (const auto& [name, c] : cases(ranks())) {
    const std::vector<TensorBytes> tensors = described_tensors(c.desc, c.type, random_bytes);
    const auto alone = bound_model(one, c.desc, tensors), divided = bound_model(all, c.desc, tensors);
    for (const bool graphs : {true, false}) {
      RunnerOptions options;
      options.graphs = graphs;
      Runner first(alone, config_of(MR_KV_F16), options), second(divided, config_of(MR_KV_F16), options);
      for (const int32_t count : {1, 9, 70}) {
        const std::vector<Output> want = play(first, requests(count, c.desc.vocab)), got = play(second, requests(count, c.desc.vocab));
        ASSERT_EQ(want.size(), got.size());
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_FALSE(want[i].bits.empty());
          EXPECT_EQ(std::count(want[i].bits.begin(), want[i].bits.end(), static_cast<uint32_t>(-1)), 0) << name << ": a row failed";
          EXPECT_TRUE(want[i] == got[i]) << name << ": request " << i << " of " << count << (graphs ? "" : ", launch by launch");
        }
      }
    }
  }
}

// Proves that the comparison sees every share: a changed bit of either changes what is computed, and the digest.
TEST_P(ExpertsAmong, ComputeWithEveryShare) {
  const auto all = open_together(GetParam());
  const Description desc = mixture_of(ranks(), experts_of(4, 4, MR_EXPERTS_RENORM | MR_EXPERTS_BIAS, 16 * ranks()), 16 * ranks());
  const std::vector<TensorBytes> tensors = described_tensors(desc, types(kF16, kF16), random_bytes);
  const auto model = bound_model(all, desc, tensors);
  Runner runner(model, config_of(MR_KV_F16));
  const std::vector<Output> want = play(runner, requests(3, desc.vocab));
  for (int32_t i = 0; i < static_cast<int32_t>(tensors.size()); ++i) {
    const mr_tensor_desc& t = tensors[static_cast<size_t>(i)].desc;
    if (t.layer != 1 || held_by_all(t.role) || (!is_stack(t.role) && t.role < MR_ROLE_SHARED_GATE)) continue;
    uint64_t begin = 0;
    for (int32_t rank = 0; rank < ranks(); ++rank) {
      const uint64_t bit = begin * 8 + (t.type == kF16 ? 14 : 30);  // the high bit of an exponent
      begin += Shard::resident_size(t, rank, ranks());
      uint8_t before[32], after[32];
      model->digest(i, before);
      model->flip_bit(i, bit);
      model->digest(i, after);
      EXPECT_FALSE(std::equal(before, before + 32, after)) << tensor_name(t.role, t.layer) << ", rank " << rank;
      EXPECT_FALSE(play(runner, requests(3, desc.vocab)) == want) << tensor_name(t.role, t.layer) << ", rank " << rank;
      model->flip_bit(i, bit);
    }
  }
  EXPECT_TRUE(play(runner, requests(3, desc.vocab)) == want);
}

TEST_P(ExpertsAmong, AreDigestedAsTheirFiles) {
  const auto one = open_device(), all = open_together(GetParam());
  for (const auto& [name, c] : cases(ranks())) {
    const std::vector<TensorBytes> tensors = described_tensors(c.desc, c.type, random_bytes);
    const auto alone = bound_model(one, c.desc, tensors), divided = bound_model(all, c.desc, tensors);
    uint64_t said = 0;
    for (int32_t i = 0; i < static_cast<int32_t>(tensors.size()); ++i) {
      const mr_tensor_desc& t = tensors[static_cast<size_t>(i)].desc;
      uint8_t want[32], got[32];
      alone->digest(i, want);
      divided->digest(i, got);
      EXPECT_TRUE(std::equal(want, want + 32, got)) << name << ": " << tensor_name(t.role, t.layer);
      said += Model::resident_size(*all, t);
    }
    mr_device_info info{};
    all->info(&info);
    EXPECT_EQ(info.bytes_used[MR_PURPOSE_WEIGHTS], said) << name;
  }
}

TEST_P(ExpertsAmong, AreRefusedByNameWhereTheyCannotBe) {
  const auto device = open_together(GetParam());
  const auto refused = [&](const Description& desc, const std::string& part) {
    try {
      Model model(device, desc);
      ADD_FAILURE() << part;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, MR_UNIMPLEMENTED);
      EXPECT_NE(e.message.find(part), std::string::npos) << e.message;
    }
  };
  const std::string among = ": too little for " + std::to_string(ranks()) + " GPUs";
  const int32_t narrow = 16 * (ranks() - 1);
  refused(mixture_of(ranks(), experts_of(4, 2, 0), narrow), "expert width is " + std::to_string(narrow) + among);
  refused(mixture_of(ranks(), experts_of(4, 2, 0, narrow), 128), "shared_width is " + std::to_string(narrow) + among);
  Description state = mixture_of(ranks(), experts_of(4, 2, 0), 128);
  state.layers[1].mixer = {};
  state.layers[1].mixer.kind = MR_MIX_CONV;
  state.layers[1].mixer.conv = 3;
  refused(state, "layer 1 has a short convolution, which several GPUs do not divide");
  EXPECT_EQ(device->models.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(Of, ExpertsAmong, testing::Values(std::vector<int32_t>{0, 1}, std::vector<int32_t>{0, 1, 2, 3}),
                         [](const auto& info) { return std::to_string(info.param.size()) + "Gpus"; });

}  // namespace
}  // namespace mr::cuda::test
