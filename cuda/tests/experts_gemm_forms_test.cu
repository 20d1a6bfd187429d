// The kernels of the decode class of grouped GEMMs have the same bits: those of few_rows.cuh, for every number of pairs of a tile.
#include <algorithm>

#include "millrace/engine.h"
#include "tests/experts_gemm_fixture.h"

namespace mr::cuda {
namespace {

class ExpertGemmForms : public testing::TestWithParam<std::tuple<TypeName, Act>> {
 protected:
  static void SetUpTestSuite() { ASSERT_EQ(prepare_expert_gemms(), cudaSuccess); }
  int32_t type() const { return std::get<0>(GetParam()).type; }
  Act act() const { return std::get<1>(GetParam()); }

  // Returns a number of columns: about `cols`, and within a unit if the type allows it.
  int64_t columns(int64_t cols) const {
    const int64_t block = reference::shape(type()).block;
    return block == 1 ? cols / 2 * 2 - 1 : std::max<int64_t>(cols / block, 1) * block;
  }

  // Compares all kernels of several pairs for one target and for two, where expert e has pairs_of[e] pairs.
  void compare(const std::vector<int32_t>& pairs_of, int64_t rows, int64_t cols) {
    const auto experts = static_cast<int32_t>(pairs_of.size());
    Choice choice{0, 1, experts, {}};
    for (int32_t e = 0; e < experts; ++e) choice.ids.insert(choice.ids.end(), static_cast<size_t>(pairs_of[static_cast<size_t>(e)]), e);
    std::shuffle(choice.ids.begin(), choice.ids.end(), random_);
    choice.rows = static_cast<int32_t>(choice.ids.size());
    const int64_t stride = round_up(cols, 8) + 8;
    Stack gate(type(), rows, cols, experts, random_), up(type(), rows, cols, experts, random_);
    if (type() == kMXFP4) {
      spread_exponents(gate);
      spread_exponents(up);
    }
    const Stack* const stacks[] = {&gate, &up};
    const std::vector<float> gate_bias = normals(experts * rows, 4, random_), up_bias = normals(experts * rows, 8, random_);
    const float* const biases[] = {gate_bias.data(), up_bias.data()};
    const Inputs in = random_inputs(act(), choice.rows, cols, stride, random_);
    const std::pair<int32_t, bool> calls[] = {{1, true}, {2, true}, {2, false}};
    for (const auto& [count, biased] : calls) {
      SCOPED_TRACE(testing::Message() << count << " targets of " << rows << " x " << cols << (biased ? ", biases" : ""));
      Call call{GemmClass::kDecode, act()};
      call.activation = MR_ACT_CLAMPED;
      call.x_scale = 64;
      call.pair_scale = 4;
      const int32_t targets = count;
      const float* const* const added = biased ? biases : nullptr;
      const auto bits_by = [&](GroupedForm form, int32_t tile) {
        Call by = call;
        by.tile = tile;
        by.form = &form;
        return multiply(by, choice, stacks, targets, added, in.bits.data(), stride, 1);
      };
      const std::vector<uint32_t> want = bits_by(GroupedForm::kFew, kLeastExpertTile);
      ASSERT_FALSE(want.empty());
      const std::vector<uint32_t> several = bits_by(GroupedForm::kSeveral, kMostExpertTile);
      EXPECT_TRUE(several.empty() || several == want);
      const std::vector<uint32_t> eight = bits_by(GroupedForm::kEightPairs, kLeastExpertTile);
      EXPECT_EQ(eight.empty(), !single() || count == 2);
      EXPECT_TRUE(eight.empty() || eight == want);
      for (const int32_t tile : {24, kDecodeWgmmaTile}) {
        if (tile == 24 && !biased) continue;
        const std::vector<uint32_t> wgmma = bits_by(GroupedForm::kSeveralWgmma, tile);
        EXPECT_EQ(wgmma.empty(), !has_wgmma());
        EXPECT_TRUE(wgmma.empty() || wgmma == want) << "tiles of " << tile;
      }
    }
  }

  // Gives blocks the exponents that one product applies (mxfp4_unit.cuh), and few blocks others, so that some units need two.
  void spread_exponents(Stack& stack) {
    constexpr uint8_t others[] = {0, 96, 103, 128, 134};
    for (size_t e = 0; e < stack.files.size(); ++e) {
      for (size_t at = 0; at < stack.files[e].size(); at += 17)
        stack.files[e][at] = random_() % 200 == 0 ? others[random_() % 5] : static_cast<uint8_t>(104 + random_() % 24);
      Guarded source(stack.files[e]);
      ASSERT_EQ(launch_repack(source.data(), matrix_of(stack.weight, static_cast<int64_t>(e)), Stream{}), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
  }

  // Returns whether operands have one term.
  bool single() const { return quantised(type()) || type() == (act() == Act::kF16 ? kF16 : kBF16); }

  // Returns whether the device multiplies the type by wgmma.
  bool has_wgmma() const {
    return single() && expert_tile(GemmClass::kDecode, 1, kDecodeWgmmaTile) == kDecodeWgmmaTile;
  }

  std::mt19937 random_{17};
};

TEST_P(ExpertGemmForms, EveryNumberOfPairsHasTheSameBits) {
  std::vector<int32_t> pairs_of;
  for (int32_t pairs = 0; pairs <= kDecodeWgmmaTile; ++pairs) pairs_of.push_back(pairs);
  compare(pairs_of, 37, columns(330));
}

// Items that end within the matrices, slices of several groups, and experts of several tiles.
TEST_P(ExpertGemmForms, LongRowsHaveTheSameBits) { compare({0, 5, 66, 17}, 205, columns(9 * 256)); }

TEST_P(ExpertGemmForms, OneExpertWithAllPairsHasTheSameBits) { compare({0, 131, 0}, 83, columns(600)); }

// Gate and up of at most eight rows, and one target: rows that share experts, rows that use one, rows that share none, and padding.
TEST_P(ExpertGemmForms, EightRowsHaveTheSameBits) {
  const std::pair<int64_t, int64_t> shapes[] = {{37, columns(256)}, {16, columns(9 * 256)}, {83, columns(600)}, {21, columns(16 * 256)}};
  for (const auto& [rows, cols] : shapes) {
    const int64_t stride = round_up(cols, 8) + 8;
    Stack gate(type(), rows, cols, 6, random_), up(type(), rows, cols, 6, random_);
    if (type() == kMXFP4) spread_exponents(gate);
    const Stack* const stacks[] = {&gate, &up};
    const std::vector<float> gate_bias = normals(6 * rows, 4, random_), up_bias = normals(6 * rows, 8, random_);
    const float* const biases[] = {gate_bias.data(), up_bias.data()};
    Choice padded = random_choice(7, 3, 6, random_);
    std::fill(padded.ids.begin() + 6, padded.ids.begin() + 12, 6);
    const Choice all_padding{2, 2, 6, std::vector<int32_t>(4, 6)};
    const Choice choices[] = {random_choice(8, 4, 6, random_), {8, 1, 6, std::vector<int32_t>(8, 4)}, {2, 3, 6, {0, 2, 4, 1, 3, 5}},
                              {8, 6, 6, random_choice(8, 6, 6, random_).ids}, random_choice(1, 1, 6, random_), padded, all_padding};
    for (const Choice& choice : choices) {
      SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", " << choice.rows << " rows, " << choice.used << " experts each");
      const Inputs in = random_inputs(act(), choice.rows, cols, stride, random_);
      const auto bits_by = [&](GroupedForm form, int32_t targets, int32_t tile, bool biased) {
        Call by{GemmClass::kDecode, act(), MR_ACT_CLAMPED, 64, 4, tile, &form};
        return multiply(by, choice, stacks, targets, biased ? biases : nullptr, in.bits.data(), stride, choice.used);
      };
      for (const bool biased : {true, false}) {
        const std::vector<uint32_t> want = bits_by(GroupedForm::kFew, 2, kLeastExpertTile, biased);
        ASSERT_FALSE(want.empty());
        for (const int32_t tile : {kLeastExpertTile, kDecodeWgmmaTile}) {
          if (tile != kLeastExpertTile && !biased) continue;
          const std::vector<uint32_t> got = bits_by(GroupedForm::kEight, 2, tile, biased);
          EXPECT_EQ(got.empty(), !single());
          EXPECT_TRUE(got.empty() || got == want) << "tiles of " << tile;
        }
      }
      if (cols > 10 * 256) continue;
      const std::vector<uint32_t> want = bits_by(GroupedForm::kFew, 1, kLeastExpertTile, true);
      const std::vector<uint32_t> got = bits_by(GroupedForm::kEightPairs, 1, kDecodeWgmmaTile, true);
      EXPECT_EQ(got.empty(), !single());
      EXPECT_TRUE(got.empty() || got == want);
    }
  }
}

// Launches that eight_rows.cuh or eight_pairs.cuh refuses: more rows, more pairs of a tile, more columns, another number of targets.
TEST_P(ExpertGemmForms, EightRowsRefuseOthers) {
  struct Refused {
    int32_t rows, targets, tile;
    int64_t cols;
    GroupedForm form;
  };
  const Refused all[] = {{9, 2, 8, 256, GroupedForm::kEight},       {8, 2, 8, 17 * 256, GroupedForm::kEight},
                         {8, 1, 8, 256, GroupedForm::kEight},       {9, 1, 16, 256, GroupedForm::kEightPairs},
                         {8, 1, 8, 12 * 256, GroupedForm::kEightPairs}, {8, 2, 8, 256, GroupedForm::kEightPairs}};
  for (const Refused& refused : all) {
    const int64_t cols = columns(refused.cols), stride = round_up(cols, 8) + 8;
    const Stack gate(type(), 16, cols, 2, random_), up(type(), 16, cols, 2, random_);
    const Stack* const stacks[] = {&gate, &up};
    const Choice choice = random_choice(refused.rows, 1, 2, random_);
    const Inputs in = random_inputs(act(), refused.rows, cols, stride, random_);
    const Call by{GemmClass::kDecode, act(), MR_ACT_SILU, 1, 1, refused.tile, &refused.form};
    EXPECT_TRUE(multiply(by, choice, stacks, refused.targets, nullptr, in.bits.data(), stride, 1).empty());
  }
}

std::vector<std::tuple<TypeName, Act>> every_operand() {
  std::vector<std::tuple<TypeName, Act>> all;
  for (const TypeName& type : kTypeNames)
    for (const Act act : acts_of(type.type)) all.emplace_back(type, act);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ExpertGemmForms, testing::ValuesIn(every_operand()), [](const auto& info) {
  return std::string(std::get<0>(info.param).name) + (std::get<1>(info.param) == Act::kF16 ? "_f16" : "_bf16");
});

}  // namespace
}  // namespace mr::cuda
