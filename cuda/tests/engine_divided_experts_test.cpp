// Mixtures of experts that several GPUs hold together: the bits of one GPU, the bytes of the file, and refusals.
#include <algorithm>
#include <string>

#include "tests/divided_cases.h"
#include "tests/engine_together.h"

namespace mr::cuda::test {
namespace {

class ExpertsAmong : public testing::TestWithParam<std::vector<int32_t>> {  // indices of GPUs
 protected:
  void SetUp() override {
    if (gpus() < ranks()) GTEST_SKIP() << "GPUs here: " << gpus() << "; this test needs " << ranks();
  }
  static int32_t ranks() { return static_cast<int32_t>(GetParam().size()); }
};

TEST_P(ExpertsAmong, GiveTheBitsOfOneGpu) {
  const auto one = open_device(), all = open_together(GetParam());
  for (const auto& [name, c] : divided_cases(ranks())) {
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

// Proves that the comparison sees every share: a changed bit of either changes the results, and the digest.
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
  for (const auto& [name, c] : divided_cases(ranks())) {
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
