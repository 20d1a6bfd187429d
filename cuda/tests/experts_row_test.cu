// The branch of a single row with a shared expert, against the branch of its experts alone and launch_combine: every bit.
#include <algorithm>

#include "kernels/experts/choose.h"
#include "kernels/experts/combine.h"
#include "millrace/engine.h"
#include "tests/experts_gemm_fixture.h"

namespace mr::cuda {
namespace {

class ExpertRow : public testing::TestWithParam<std::tuple<TypeName, Act>> {
 protected:
  static void SetUpTestSuite() { ASSERT_EQ(prepare_expert_gemms(), cudaSuccess); }
  int32_t type() const { return std::get<0>(GetParam()).type; }
  Act act() const { return std::get<1>(GetParam()); }
  int64_t block() const { return reference::shape(type()).block; }
};

std::vector<std::tuple<TypeName, Act>> every_type() {
  std::vector<std::tuple<TypeName, Act>> all;
  for (const TypeName& type : kTypeNames)
    for (const Act act : acts_of(type.type)) all.emplace_back(type, act);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ExpertRow, testing::ValuesIn(every_type()), [](const auto& info) {
  return std::string(std::get<0>(info.param).name) + (std::get<1>(info.param) == Act::kF16 ? "_f16" : "_bf16");
});

// The variants: a shared expert with a router or without, with a norm or without, a branch that is added or written, and padding.
TEST_P(ExpertRow, AddsTheSharedExpertAsCombineDoes) {
  std::mt19937 random(23);
  mr_experts_desc e{};
  e.count = 4;
  e.used = 2;
  const auto used = static_cast<size_t>(e.used);
  const int64_t width = block() == 1 ? 24 : block(), width_stride = round_up(width, 8);
  for (const int32_t hidden : {37, 1100}) {
    // Gate and up have few columns: a mixture's inputs have no part in this.
    const int64_t cols = block() == 1 ? 16 : block(), in_stride = round_up(cols, 8);
    const Stack gate(type(), width, cols, e.count, random), up(type(), width, cols, e.count, random);
    const Stack down(type(), hidden, width, e.count, random), router(kF32, e.count, hidden, 1, random);
    const Inputs in = random_inputs(act(), 1, cols, in_stride, random);
    const std::vector<float> residual = normals(hidden, 1, random);
    Guarded dx(in.bits), logits(static_cast<size_t>(e.count) * 4), down_bias(normals(e.count * hidden, 1, random));
    Guarded y(normals(hidden, 1, random)), of_shared(normals(hidden, 0.1f, random)), norm(normals(hidden, 1, random));
    for (int32_t variant = 0; variant < 8; ++variant) {
      const bool routed = variant % 2 == 0, normed = variant % 4 == 0, adds = variant < 4, padding = variant == 7;
      SCOPED_TRACE(testing::Message() << hidden << " columns, variant " << variant);
      Guarded slot(std::vector<int32_t>{padding ? -1 : 0}), weight(4), tile_count(4), done(kPlanCounters * 4, 0);
      Guarded ids(used * 4), weights(used * 4), pairs(used * 4), tiles(used * sizeof(ExpertTile));
      Guarded gated(used * static_cast<size_t>(width_stride) * 2, 0), gated_ahead(used * static_cast<size_t>(width_stride) * 2, 0);
      Guarded sums(static_cast<size_t>(hidden) * 4, 0), whole(residual), parts(residual);
      ChooseArgs choice{};
      choice.router.x = whole.as<float>();
      choice.router.x_stride = round_up(hidden, 4);
      choice.router.eps = 1e-6f;
      choice.router.scale = 1;
      choice.router.router = router.weight;
      choice.router.logits = logits.as<float>();
      choice.router.rows = choice.route.rows = 1;
      choice.route.experts = e;
      choice.route.logits = logits.as<float>();
      choice.route.slot = slot.as<int32_t>();
      choice.route.ids = ids.as<int32_t>();
      choice.route.weights = weights.as<float>();
      choice.route.plan = {pairs.as<int32_t>(), nullptr, nullptr, tiles.as<ExpertTile>(), tile_count.as<int32_t>(), done.as<int32_t>()};
      choice.tile = kLeastExpertTile;
      if (routed) choice.shared = {weight.as<float>(), of_shared.as<float>(), normed ? norm.as<float>() : nullptr};
      ASSERT_EQ(launch_choose(choice, Stream{}), cudaSuccess);
      ExpertGemmArgs args;
      args.targets[0] = {gate.weight, nullptr};
      args.targets[1] = {up.weight, nullptr};
      args.count = 2;
      args.act = act();
      args.x = dx.data();
      args.x_stride = in_stride;
      args.x_share = e.used;
      args.out = gated.data();
      args.out_stride = width_stride;
      args.plan = choice.route.plan;
      args.tile = kLeastExpertTile;
      args.rows = 1;
      args.experts = e.count;
      args.pairs = e.used;
      ExpertGemmArgs by_row = args;
      by_row.targets[0] = {down.weight, nullptr};
      by_row.targets[1] = {};
      by_row.count = by_row.x_share = 1;
      by_row.x = gated.data();
      by_row.x_stride = width_stride;
      if (!expert_branch_supported(by_row)) GTEST_SKIP() << "the type has no kernels of a single row";
      ASSERT_EQ(launch_expert_gemm(args, Stream{}), cudaSuccess);
      args.out = gated_ahead.data();
      args.ahead = true;
      ASSERT_EQ(launch_expert_gemm(args, Stream{}), cudaSuccess);
      EXPECT_EQ(gated_ahead.read<uint16_t>(), gated.read<uint16_t>());
      const float *const chosen = weights.as<float>(), *const bias = down_bias.as<float>();
      ASSERT_EQ(launch_expert_branch(by_row, {chosen, bias, nullptr, sums.as<float>()}, Stream{}), cudaSuccess);
      CombineArgs combine{};
      combine.ids = ids.as<int32_t>();
      combine.ids_stride = e.used;
      combine.used = 1;
      combine.experts = e.count;
      combine.y = sums.as<float>();
      combine.shared = y.as<float>();
      combine.shared_router = routed ? of_shared.as<float>() : nullptr;
      combine.norm = normed ? norm.as<float>() : nullptr;
      combine.x = parts.as<float>();
      combine.branch = adds ? nullptr : parts.as<float>();
      combine.y_stride = combine.shared_stride = combine.x_stride = round_up(hidden, 4);
      combine.eps = 1e-6f;
      combine.rows = 1;
      combine.dim = hidden;
      ASSERT_EQ(launch_combine(combine, Stream{}), cudaSuccess);
      const RowBranch branch{chosen, bias, whole.as<float>(), adds ? nullptr : whole.as<float>(), y.as<float>(),
                             routed ? weight.as<float>() : nullptr};
      ASSERT_EQ(launch_expert_branch(by_row, branch, Stream{}), cudaSuccess);
      EXPECT_EQ(whole.read<uint32_t>(), parts.read<uint32_t>());
      EXPECT_EQ(whole.read<float>() == residual, padding);
    }
  }
}

}  // namespace
}  // namespace mr::cuda
