// Grouped GEMMs of a class give the same bits launch after launch, and by mma the bits by wgmma.
//
// Back-to-back launches are compared on the device, because a single comparison does not catch a race between a block's copies and
// loads that occurs once in several hundred (gemm_repeated_test.cu).
#include "tests/experts_gemm_fixture.h"

namespace mr::cuda {
namespace {

constexpr int32_t kRows = 768, kCols = 2048, kExperts = 8, kLaunches = 1000;

__global__ void compare(const uint32_t* got, const uint32_t* want, int64_t words, unsigned* others) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < words; i += int64_t{gridDim.x} * blockDim.x)
    if (got[i] != want[i]) atomicAdd(others, 1u);
}

class RepeatedExpertGemm : public testing::TestWithParam<TypeName> {
 protected:
  void SetUp() override {
    ASSERT_EQ(prepare_expert_gemms(), cudaSuccess);
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    // Tiles of every number of columns, and experts of several tiles: 300 pairs, 128, 97, 64, 1, none, 200 and 70.
    const int32_t pairs_of[kExperts] = {300, 128, 97, 64, 1, 0, 200, 70};
    for (int32_t e = 0; e < kExperts; ++e) choice_.ids.insert(choice_.ids.end(), static_cast<size_t>(pairs_of[e]), e);
    std::shuffle(choice_.ids.begin(), choice_.ids.end(), random_);
    choice_.rows = static_cast<int32_t>(choice_.ids.size());
  }
  void TearDown() override { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }

  // Compares launches with tiles of `tile` pairs with `want`, or writes it if it is the first. form: a kernel whose bits are compared
  // with the bits of few_rows.cuh, if the device has it; null for the kernel that launch_expert_gemm chooses.
  void play(const Stack* const (&stacks)[2], int32_t count, GemmClass kind, int32_t tile, const Guarded& x, Guarded& want, bool first,
            const GroupedForm* form = nullptr) {
    SCOPED_TRACE(testing::Message() << count << " targets, tiles of " << tile);
    const int32_t pairs = choice_.pairs();
    const int64_t words = int64_t{pairs} * kRows / (count == 2 ? 2 : 1);
    Guarded ids(choice_.ids), list(static_cast<size_t>(pairs) * 4), begins(kExperts * 4), numbers(kExperts * 4), counts(4), done(4, 0);
    Guarded tiles(static_cast<size_t>(expert_tiles(kExperts, pairs, tile)) * sizeof(ExpertTile)), got(static_cast<size_t>(words) * 4);
    const ExpertPlan plan{list.as<int32_t>(),     begins.as<int32_t>(), numbers.as<int32_t>(),
                          tiles.as<ExpertTile>(), counts.as<int32_t>(), done.as<int32_t>()};
    ASSERT_EQ(launch_plan_experts({ids.as<int32_t>(), pairs, kExperts, tile, plan}, {stream_, has_dependents()}), cudaSuccess);
    const auto launch_into = [&](const Guarded& out, const GroupedForm* by) {
      ExpertGemmArgs a;
      for (int32_t i = 0; i < count; ++i) a.targets[i].weight = stacks[i]->weight;
      a.count = count;
      a.kind = kind;
      a.act = acts_of(GetParam().type)[0];
      a.x = x.data();
      a.x_stride = kCols;
      a.out = out.data();
      a.out_stride = kRows;
      a.plan = plan;
      a.tile = tile;
      a.rows = choice_.rows;
      a.pairs = pairs;
      a.x_share = choice_.used;
      a.experts = kExperts;
      const Stream on{stream_, has_dependents()};
      return by == nullptr ? launch_expert_gemm(a, on) : launch_expert_gemm_as(*by, a, on);
    };
    if (first) {
      constexpr GroupedForm few = GroupedForm::kFew;
      ASSERT_EQ(launch_into(want, form == nullptr ? nullptr : &few), cudaSuccess);
    }
    Guarded others(std::vector<unsigned>{0});
    for (int32_t i = 0; i < kLaunches; ++i) {
      const cudaError_t error = launch_into(got, form);
      if (error == cudaErrorNotSupported && form != nullptr && i == 0) return;
      ASSERT_EQ(error, cudaSuccess);
      compared_ = true;
      compare<<<264, 512, 0, stream_>>>(got.as<uint32_t>(), want.as<uint32_t>(), words, others.as<unsigned>());
    }
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(others.read<unsigned>()[0], 0u) << "words differ, of " << words << " of a launch";
    // The comparison itself works: one wrong word is found.
    ASSERT_EQ(cudaMemset(got.as<uint32_t>() + words - 1, 0xff, 4), cudaSuccess);
    ASSERT_EQ(cudaMemset(others.data(), 0, 4), cudaSuccess);
    compare<<<264, 512, 0, stream_>>>(got.as<uint32_t>(), want.as<uint32_t>(), words, others.as<unsigned>());
    EXPECT_EQ(others.read<unsigned>()[0], 1u);
  }

  std::mt19937 random_{31};
  Choice choice_{0, 1, kExperts, {}};
  bool compared_ = false;
  cudaStream_t stream_ = nullptr;
};

TEST_P(RepeatedExpertGemm, LaunchesHaveTheSameBits) {
  const int32_t type = GetParam().type;
  const Stack gate(type, kRows, kCols, kExperts, random_), up(type, kRows, kCols, kExperts, random_);
  const Stack* const stacks[] = {&gate, &up};
  const Guarded x(random_inputs(acts_of(type)[0], choice_.rows, kCols, kCols, random_).bits);
  for (const int32_t count : {1, 2}) {
    Guarded want(static_cast<size_t>(choice_.pairs()) * kRows * 4);
    for (const int32_t tile : {kManyWgmmaTile, kManyTile})
      play(stacks, count, GemmClass::kPrefill, tile, x, want, tile == kManyWgmmaTile);
    for (const int32_t tile : {kLeastExpertTile, kMostExpertTile, kDecodeWgmmaTile})
      play(stacks, count, GemmClass::kDecode, tile, x, want, tile == kLeastExpertTile);
  }
}

// Of eight rows, whose experts have up to eight pairs.
TEST_P(RepeatedExpertGemm, LaunchesOfEightRowsHaveTheSameBits) {
  const int32_t type = GetParam().type;
  const Stack gate(type, kRows, kCols, kExperts, random_), up(type, kRows, kCols, kExperts, random_);
  const Stack* const stacks[] = {&gate, &up};
  choice_ = random_choice(8, 5, kExperts, random_);
  const Guarded x(random_inputs(acts_of(type)[0], choice_.rows, kCols, kCols, random_).bits);
  for (const GroupedForm form : {GroupedForm::kEightPairs, GroupedForm::kEight}) {
    const int32_t targets = form == GroupedForm::kEight ? 2 : 1;
    Guarded want(static_cast<size_t>(choice_.pairs()) * kRows * 4);
    play(stacks, targets, GemmClass::kDecode, kLeastExpertTile, x, want, true, &form);
  }
  if (!compared_) GTEST_SKIP() << "the device has no kernel of eight rows for the type";
}

INSTANTIATE_TEST_SUITE_P(All, RepeatedExpertGemm, testing::ValuesIn(kTypeNames), name_of);

}  // namespace
}  // namespace mr::cuda
