// Grouped GEMMs against float64 on odd shapes, and the guarantee that a pair's bits depend on its row alone.
#include <algorithm>
#include <functional>

#include "kernels/experts/combine.h"
#include "millrace/engine.h"
#include "tests/experts_gemm_fixture.h"

namespace mr::cuda {
namespace {

struct Sum {
  double value = 0, magnitude = 0, inputs = 0;  // inputs: of their magnitudes
};

Sum sum_of(const Stack& stack, int32_t expert, int64_t row, const double* x) {
  const int64_t cols = stack.weight.cols;
  std::vector<reference::Weight> w(static_cast<size_t>(cols));
  reference::decode_parts(stack.weight.type, stack.files[static_cast<size_t>(expert)].data() + static_cast<uint64_t>(row) * (stack.file_each / static_cast<uint64_t>(stack.weight.rows)),
                          cols, w.data());
  Sum sum;
  for (int64_t k = 0; k < cols; ++k) {
    const double a = w[static_cast<size_t>(k)].scaled * x[k], b = w[static_cast<size_t>(k)].shift * x[k];
    sum.value += a + b;
    sum.magnitude += std::fabs(a) + std::fabs(b);
    sum.inputs += std::fabs(x[k]);
  }
  return sum;
}

// 2^-22 of the magnitudes for each step of 16 columns, and weights rounded to the type of x, whose smallest step is 2^-24 in f16.
double bound(Act act, int64_t cols, const Sum& sum) {
  const double of_magnitude = (static_cast<double>(cols) / 16 + 24) * 0x1p-22 + (act == Act::kF16 ? 0x1p-11 : 0x1p-8);
  return of_magnitude * sum.magnitude + (act == Act::kF16 ? 0x1p-25 * sum.inputs : 0) + 1e-6;
}

double activated(int32_t activation, double gate, double up) {
  if (activation == MR_ACT_CLAMPED) {
    const double y = std::min(gate, 7.0);
    return y / (1 + std::exp(-1.702 * y)) * (1 + std::max(-7.0, std::min(up, 7.0)));
  }
  const double u = activation == MR_ACT_GELU_TANH ? 2 * std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate) : gate;
  return gate / (1 + std::exp(-u)) * up;
}

double act_value(Act act, uint32_t bits) {
  const auto half = static_cast<uint16_t>(bits);
  if (act == Act::kF16) return reference::half_value(reinterpret_cast<const uint8_t*>(&half));
  const uint32_t wide = bits << 16;
  float v;
  std::memcpy(&v, &wide, 4);
  return static_cast<double>(v);
}

float f32_value(uint32_t bits) {
  float v;
  std::memcpy(&v, &bits, 4);
  return v;
}

class ExpertGemm : public testing::TestWithParam<std::tuple<TypeName, Act, GemmClass>> {
 protected:
  static void SetUpTestSuite() { ASSERT_EQ(prepare_expert_gemms(), cudaSuccess); }
  int32_t type() const { return std::get<0>(GetParam()).type; }
  Call call() const { return {std::get<2>(GetParam()), std::get<1>(GetParam())}; }
  int64_t block() const { return reference::shape(type()).block; }
};

// Quantised weights have kernels for f16 inputs alone.
std::vector<std::tuple<TypeName, Act, GemmClass>> every_kernel() {
  std::vector<std::tuple<TypeName, Act, GemmClass>> all;
  for (const TypeName& type : kTypeNames)
    for (const Act act : acts_of(type.type))
      for (const GemmClass kind : {GemmClass::kDecode, GemmClass::kPrefill}) all.emplace_back(type, act, kind);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ExpertGemm, testing::ValuesIn(every_kernel()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + (std::get<1>(info.param) == Act::kF16 ? "_f16" : "_bf16") +
                                  (std::get<2>(info.param) == GemmClass::kPrefill ? "_prefill" : "_decode");
                         });

// One expert; fewer rows than experts; an expert with no row; all rows at one expert; more rows than a tile.
std::vector<Choice> choices(std::mt19937& random) {
  std::vector<Choice> out{random_choice(1, 1, 1, random), random_choice(3, 2, 5, random), random_choice(70, 2, 3, random), random_choice(1, 3, 4, random)};
  out.push_back({9, 1, 4, std::vector<int32_t>(9, 2)});
  out.push_back({2, 1, 4, {3, 3}});
  return out;
}

TEST_P(ExpertGemm, SumsAreCloseToFloat64) {
  std::mt19937 random(11);
  const int64_t shapes[][2] = {{2, block()}, {37, block() == 1 ? 75 : 3 * block()}, {272, block() == 1 ? 330 : 512}};
  for (const auto& shape : shapes) {
    const int64_t rows = shape[0], cols = shape[1], stride = round_up(cols, 8) + 8;
    const Stack stack(type(), rows, cols, 5, random);
    const Stack* const stacks[] = {&stack};
    const std::vector<float> bias = normals(5 * rows, 1, random);
    const float* const biases[] = {bias.data()};
    for (const Choice& choice : choices(random)) {
      SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", " << choice.rows << " rows, " << choice.used << " of " << choice.experts);
      const Inputs in = random_inputs(call().act, choice.pairs(), cols, stride, random);
      Call scaled = call();
      scaled.x_scale = 64;
      const std::vector<uint32_t> got = multiply(scaled, choice, stacks, 1, biases, in.bits.data(), stride, 1);
      for (int32_t p = 0; p < choice.pairs(); ++p)
        for (int64_t r = 0; r < rows; r += rows > 100 ? 5 : 1) {
          const int32_t expert = choice.ids[static_cast<size_t>(p)];
          const Sum want = sum_of(stack, expert, r, in.values.data() + p * cols);
          const double value = 64 * want.value + static_cast<double>(bias[static_cast<size_t>(expert * rows + r)]);
          const double y = static_cast<double>(f32_value(got[static_cast<size_t>(p * rows + r)]));
          ASSERT_TRUE(std::fabs(y - value) <= 64 * bound(call().act, cols, want)) << "pair " << p << " row " << r << ": " << y << " for " << value;
        }
    }
  }
}

TEST_P(ExpertGemm, PairsAreCloseToFloat64) {
  std::mt19937 random(12);
  const int64_t rows = 21, cols = block() == 1 ? 75 : 2 * block(), stride = round_up(cols, 8) + 8;
  const Stack gate(type(), rows, cols, 5, random), up(type(), rows, cols, 5, random);
  const Stack* const stacks[] = {&gate, &up};
  const std::vector<float> gate_bias = normals(5 * rows, 4, random), up_bias = normals(5 * rows, 8, random);
  const float* const biases[] = {gate_bias.data(), up_bias.data()};
  for (const int32_t activation : {MR_ACT_SILU, MR_ACT_GELU_TANH, MR_ACT_CLAMPED})
    for (const Choice& choice : choices(random)) {
      SCOPED_TRACE(testing::Message() << choice.rows << " rows, " << choice.used << " of " << choice.experts << ", activation " << activation);
      const Inputs in = random_inputs(call().act, choice.rows, cols, stride, random);
      Call gated = call();
      gated.activation = activation;
      gated.pair_scale = 4;
      const std::vector<uint32_t> got = multiply(gated, choice, stacks, 2, biases, in.bits.data(), stride, choice.used);
      for (int32_t p = 0; p < choice.pairs(); ++p)
        for (int64_t r = 0; r < rows; ++r) {
          const auto at = static_cast<size_t>(choice.ids[static_cast<size_t>(p)] * rows + r);
          const double* const x = in.values.data() + p / choice.used * cols;
          const Sum g = sum_of(gate, choice.ids[static_cast<size_t>(p)], r, x), u = sum_of(up, choice.ids[static_cast<size_t>(p)], r, x);
          const double a = g.value + static_cast<double>(gate_bias[at]), b = u.value + static_cast<double>(up_bias[at]);
          const double want = activated(activation, a, b) / 4;
          // The slopes of the activations are at most 1.2, and those of the product follow.
          const double da = bound(call().act, cols, g), db = bound(call().act, cols, u);
          const double least = (call().act == Act::kF16 ? 0x1p-11 : 0x1p-8) * std::fabs(want);
          const double limit = least + (1.2 * da * (std::fabs(b) + db + 1) + (std::fabs(a) + da) * db) / 4 + 1e-6;
          const double y = act_value(call().act, got[static_cast<size_t>(p * rows + r)]);
          ASSERT_TRUE(std::fabs(y - want) <= limit) << "pair " << p << " row " << r << ": " << y << " for " << want;
        }
    }
}

// A row alone, among 7, among 64 and among 300, whose other rows use other experts.
TEST_P(ExpertGemm, APairHasTheSameBitsAmongAnyOthers) {
  std::mt19937 random(13);
  const int64_t rows = 37, cols = block() == 1 ? 330 : 512, stride = round_up(cols, 8) + 8;
  const Stack gate(type(), rows, cols, 6, random), up(type(), rows, cols, 6, random);
  const Stack* const stacks[] = {&gate, &up};
  const std::vector<float> bias = normals(6 * rows, 1, random);
  const float* const biases[] = {bias.data(), bias.data()};
  const Choice own = random_choice(1, 2, 6, random);
  const Inputs row = random_inputs(call().act, 1, cols, stride, random);
  for (const int32_t count : {1, 2}) {
    const std::vector<uint32_t> alone = multiply(call(), own, stacks, count, biases, row.bits.data(), stride, 2);
    for (const int32_t others : {7, 64, 300}) {
      Choice among = random_choice(others, 2, 6, random);
      Inputs in = random_inputs(call().act, others, cols, stride, random);
      const int32_t at = others * 2 / 3;
      std::copy(own.ids.begin(), own.ids.end(), among.ids.begin() + at * 2);
      std::copy(row.bits.begin(), row.bits.end(), in.bits.begin() + at * stride);
      in.bits[static_cast<size_t>((at + 1) % others * stride)] = 0x7fff;  // a neighbour that is not a number
      const std::vector<uint32_t> got = multiply(call(), among, stacks, count, biases, in.bits.data(), stride, 2);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), got.begin() + at * 2 * rows)) << count << " targets, among " << others;
    }
  }
}

// As several GPUs have them: whole panels of each expert, and a last part that ends within one.
TEST_P(ExpertGemm, PartsOfRowsHaveTheBitsOfTheWhole) {
  std::mt19937 random(15);
  const int64_t rows = 83, cut = 32, cols = block() == 1 ? 330 : 256, stride = round_up(cols, 8) + 8;
  const Stack gate(type(), rows, cols, 5, random), up(type(), rows, cols, 5, random);
  const std::vector<float> bias = normals(5 * rows, 1, random);
  for (const int32_t among : {1, 3, 18}) {
    const Choice choice = random_choice(among, 2, 5, random);
    const Inputs in = random_inputs(call().act, among, cols, stride, random);
    for (const int32_t count : {1, 2}) {
      const Stack* const stacks[] = {&gate, &up};
      const float* const biases[] = {bias.data(), bias.data()};
      const std::vector<uint32_t> whole = multiply(call(), choice, stacks, count, biases, in.bits.data(), stride, 2);
      const std::pair<int64_t, int64_t> ranges[] = {{0, cut}, {cut, rows - cut}};
      for (const auto& [first, some] : ranges) {
        const Stack part_of_gate(gate, first, some), part_of_up(up, first, some);
        const Stack* const parts[] = {&part_of_gate, &part_of_up};
        std::vector<float> part_of_bias;
        for (int64_t e = 0; e < 5; ++e)
          part_of_bias.insert(part_of_bias.end(), bias.begin() + e * rows + first, bias.begin() + e * rows + first + some);
        const float* const biases_of_part[] = {part_of_bias.data(), part_of_bias.data()};
        const std::vector<uint32_t> got = multiply(call(), choice, parts, count, biases_of_part, in.bits.data(), stride, 2);
        for (int32_t p = 0; p < choice.pairs(); ++p)
          EXPECT_TRUE(std::equal(got.begin() + p * some, got.begin() + (p + 1) * some, whole.begin() + p * rows + first))
              << "pair " << p << " of " << among << " rows, " << count << " targets, from row " << first;
      }
    }
  }
}

// Of experts with 1 to 64 pairs, one of them without any, in tiles of 8 to 64 pairs, or of the prefill class with 1 to 130 pairs in
// tiles of 64 and 128, by one target and by a pair of targets.
TEST_P(ExpertGemm, TilesOfAnySizeHaveTheSameBits) {
  const bool prefill = call().kind == GemmClass::kPrefill;
  std::mt19937 random(14);
  const int64_t widths[] = {37, 272}, lengths[] = {block() == 1 ? 330 : 3 * block(), block() == 1 ? 75 : 256};
  const std::vector<float> gate_bias = normals(7 * 272, 4, random), up_bias = normals(7 * 272, 8, random);
  const float* const biases[] = {gate_bias.data(), up_bias.data()};
  for (const int32_t i : {0, 1}) {
    const int64_t rows = widths[i], cols = lengths[i], stride = round_up(cols, 8) + 8;
    const Stack gate(type(), rows, cols, 7, random), up(type(), rows, cols, 7, random);
    const Stack* const stacks[] = {&gate, &up};
    Choice choice{0, 1, 7, {}};
    const int32_t few[] = {1, 9, 0, 17, 8, 64, 33}, many[] = {1, 130, 0, 113, 65, 33, 8};
    for (int32_t e = 0; e < 7; ++e) choice.ids.insert(choice.ids.end(), static_cast<size_t>((prefill ? many : few)[e]), e);
    std::shuffle(choice.ids.begin(), choice.ids.end(), random);
    choice.rows = static_cast<int32_t>(choice.ids.size());
    const Inputs in = random_inputs(call().act, choice.rows, cols, stride, random);
    const int32_t least = prefill ? kManyTile : kLeastExpertTile, most = prefill ? kManyWgmmaTile : kDecodeWgmmaTile;
    for (const int32_t count : {1, 2}) {
      Call by_least = call();
      by_least.activation = MR_ACT_CLAMPED;
      by_least.tile = least;
      const std::vector<uint32_t> want = multiply(by_least, choice, stacks, count, biases, in.bits.data(), stride, 1);
      for (int32_t tile = 2 * least; tile <= most; tile *= 2) {
        Call larger = by_least;
        larger.tile = tile;
        EXPECT_TRUE(multiply(larger, choice, stacks, count, biases, in.bits.data(), stride, 1) == want)
            << count << " targets of " << rows << " x " << cols << ", tiles of " << tile;
      }
    }
  }
}

// Down of a single row and the sum over its experts in one kernel: added to the residual stream, or as a branch; and padding.
TEST_P(ExpertGemm, ABranchOfOneRowHasTheBitsOfItsParts) {
  if (call().kind == GemmClass::kPrefill) GTEST_SKIP() << "of the decode class";
  std::mt19937 random(15);
  const int64_t rows = 37;
  // With the most columns a warp has more of five experts than its stages hold.
  for (const int64_t cols : {block() == 1 ? 75 : block(), block() == 1 ? 330 : 3 * block(), block() == 1 ? int64_t{1100} : int64_t{2304}}) {
    const int64_t stride = round_up(cols, 8) + 8, out_stride = 40;
    const Stack down(type(), rows, cols, 6, random);
    const std::vector<float> bias = normals(6 * rows, 1, random), weights = normals(6, 1, random), x = normals(rows, 1, random);
    for (const int32_t used : {1, 2, 5}) {
      const Choice choice = random_choice(1, used, 6, random);
      const Inputs in = random_inputs(call().act, used, cols, stride, random);
      for (const bool padding : {false, true}) {
        Guarded ids(padding ? std::vector<int32_t>(static_cast<size_t>(used), 6) : choice.ids), list(static_cast<size_t>(used) * 4);
        Guarded first(6 * 4), number(6 * 4), tiles(static_cast<size_t>(used) * sizeof(ExpertTile)), counts(4), done(kPlanCounters * 4, 0);
        Guarded dx(in.bits), dweights(weights), dbias(bias);
        const ExpertPlan plan{list.as<int32_t>(),       first.as<int32_t>(),  number.as<int32_t>(),
                              tiles.as<ExpertTile>(), counts.as<int32_t>(), done.as<int32_t>()};
        ASSERT_EQ(launch_plan_experts({ids.as<int32_t>(), used, 6, kLeastExpertTile, plan}, Stream{}), cudaSuccess);
        Guarded y(static_cast<size_t>(used * out_stride) * 4, 0);
        ExpertGemmArgs args;
        args.targets[0] = {down.weight, nullptr};
        args.act = call().act;
        args.x = dx.data();
        args.x_stride = stride;
        args.out = y.data();
        args.out_stride = out_stride;
        args.plan = plan;
        args.tile = kLeastExpertTile;
        args.rows = 1;
        args.experts = 6;
        args.pairs = used;
        args.x_scale = 64;
        if (!expert_branch_supported(args)) GTEST_SKIP() << "the device has too little shared memory";
        ASSERT_EQ(launch_expert_gemm(args, Stream{}), cudaSuccess);
        for (const bool adds : {true, false}) {
          Guarded parts(x), whole(x);
          CombineArgs combine{};
          combine.ids = ids.as<int32_t>();
          combine.weights = dweights.as<float>();
          combine.ids_stride = combine.used = used;
          combine.experts = 6;
          combine.y = y.as<float>();
          combine.bias = adds ? dbias.as<float>() : nullptr;
          combine.x = parts.as<float>();
          combine.branch = adds ? nullptr : parts.as<float>();
          combine.y_stride = combine.x_stride = out_stride;
          combine.rows = 1;
          combine.dim = static_cast<int32_t>(rows);
          ASSERT_EQ(launch_combine(combine, Stream{}), cudaSuccess);
          const RowBranch branch{dweights.as<float>(), combine.bias, whole.as<float>(), adds ? nullptr : whole.as<float>()};
          ASSERT_EQ(launch_expert_branch(args, branch, Stream{}), cudaSuccess);
          EXPECT_EQ(whole.read<uint32_t>(), parts.read<uint32_t>())
              << used << " experts, " << cols << " columns" << (padding ? ", padding" : "");
        }
      }
    }
  }
}

TEST(ExpertGemms, RefuseWhatTheyCannotCompute) {
  ASSERT_EQ(prepare_expert_gemms(), cudaSuccess);
  ExpertGemmArgs args;
  args.experts = 1;
  args.tile = kLeastExpertTile;
  EXPECT_EQ(launch_expert_gemm(args, Stream{}), cudaErrorInvalidValue);  // no weights
}

}  // namespace
}  // namespace mr::cuda
