// The branch of a single row with a shared expert, against the branch of its experts alone and launch_combine: every bit. And layers of
// such rows, launched one by one and as programmatic dependents.
#include <algorithm>
#include <memory>

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

// The buffers of a layer, which start as NaN: a value that is read before it is written shows.
struct RowLayer {
  RowLayer(int64_t hidden, int64_t width, int64_t shared_width, int64_t used)
      : x(bytes(hidden, 2), 0xff), logits(bytes(8, 4), 0xff), ids(bytes(used, 4), 0xff), weights(bytes(used, 4), 0xff),
        pairs(bytes(used, 4), 0xff), tiles(bytes(used, sizeof(ExpertTile)), 0xff), tile_count(4, 0xff), weight(4, 0xff),
        gated(bytes(used * width, 2), 0xff), shared(bytes(shared_width, 4), 0xff), y(bytes(hidden, 4), 0xff) {}
  static size_t bytes(int64_t count, size_t each) { return static_cast<size_t>(count) * each; }
  Guarded x, logits, ids, weights, pairs, tiles, tile_count, weight, gated, shared, y;
};

// Launches three layers of a row as dependents, again and again, and requires the bits of plain launches. For the GEMMs of a shared expert
// routers stand: they are not short either (launch.h). Without one, a warp has more of down than its stages hold.
void expect_layers_overlap_with_the_same_bits(int32_t type, Act act, bool has_shared) {
  std::mt19937 random(24);
  const bool overlaps = has_dependents();
  const int32_t hidden = overlaps ? 2048 : 256, width = has_shared ? 256 : 2304, shared_width = 128, times = overlaps ? 100 : 2;
  mr_experts_desc e{};
  e.count = 8;
  e.used = 4;
  e.flags = MR_EXPERTS_RENORM;
  const Stack gate(type, width, hidden, e.count, random), up(type, width, hidden, e.count, random);
  const Stack down(type, hidden, width, e.count, random), router(kF32, e.count, hidden, 1, random);
  const Stack shared_up(kF32, shared_width, hidden, 1, random), shared_down(kF32, hidden, shared_width, 1, random);
  const Guarded start(normals(hidden, 1, random)), of_shared(normals(hidden, 0.1f, random)), norm(std::vector<float>(hidden, 0.5f));
  Guarded x(static_cast<size_t>(hidden) * 4), slot(std::vector<int32_t>{0}), done(kPlanCounters * 4, 0);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  const auto multiply = [&](const Stack& by, const float* in, const float* normed, float* out, const Stream& on) {
    RouterArgs args{};
    args.x = in;
    args.x_stride = by.weight.cols;
    args.norm = normed;
    args.eps = 1e-6f;
    args.scale = 1;
    args.router = by.weight;
    args.logits = out;
    args.rows = 1;
    ASSERT_EQ(launch_router(args, on), cudaSuccess);
  };
  std::vector<uint32_t> want;
  for (int32_t time = 0; time < times; ++time) {
    const Stream on{stream, time > 0 && overlaps};
    std::vector<std::unique_ptr<RowLayer>> layers;
    for (int32_t i = 0; i < 3; ++i) layers.push_back(std::make_unique<RowLayer>(hidden, width, shared_width, e.used));
    const auto bytes = static_cast<size_t>(hidden) * 4;
    ASSERT_EQ(cudaMemcpyAsync(x.data(), start.data(), bytes, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
    for (const auto& layer : layers) {
      ChooseArgs choice{};
      choice.router.x = choice.norm.x = x.as<float>();
      choice.router.x_stride = choice.norm.x_stride = choice.norm.out_stride = hidden;
      choice.router.norm = choice.norm.weight = norm.as<float>();
      choice.router.eps = choice.norm.eps = 1e-6f;
      choice.router.scale = choice.norm.scale = 1;
      choice.router.router = router.weight;
      choice.router.logits = layer->logits.as<float>();
      choice.router.rows = choice.route.rows = choice.norm.rows = 1;
      choice.norm.out = layer->x.data();
      choice.norm.act = act;
      choice.norm.dim = hidden;
      choice.route.experts = e;
      choice.route.logits = layer->logits.as<float>();
      choice.route.slot = slot.as<int32_t>();
      choice.route.ids = layer->ids.as<int32_t>();
      choice.route.weights = layer->weights.as<float>();
      choice.route.plan = {layer->pairs.as<int32_t>(), nullptr, nullptr, layer->tiles.as<ExpertTile>(), layer->tile_count.as<int32_t>(),
                           done.as<int32_t>()};
      choice.tile = kLeastExpertTile;
      if (has_shared) choice.shared = {layer->weight.as<float>(), of_shared.as<float>(), norm.as<float>()};
      ASSERT_EQ(launch_choose(choice, on), cudaSuccess);
      if (has_shared) multiply(shared_up, x.as<float>(), norm.as<float>(), layer->shared.as<float>(), on);
      ExpertGemmArgs args;
      args.targets[0] = {gate.weight, nullptr};
      args.targets[1] = {up.weight, nullptr};
      args.count = 2;
      args.act = act;
      args.x = layer->x.data();
      args.x_stride = hidden;
      args.x_share = e.used;
      args.out = layer->gated.data();
      args.out_stride = width;
      args.plan = choice.route.plan;
      args.tile = kLeastExpertTile;
      args.rows = 1;
      args.experts = e.count;
      args.pairs = e.used;
      args.pair_scale = 64;
      args.ahead = has_shared;
      ASSERT_EQ(launch_expert_gemm(args, on), cudaSuccess);
      if (has_shared) multiply(shared_down, layer->shared.as<float>(), nullptr, layer->y.as<float>(), on);
      args.targets[0] = {down.weight, nullptr};
      args.targets[1] = {};
      args.count = args.x_share = 1;
      args.x = layer->gated.data();
      args.x_stride = width;
      if (!expert_branch_supported(args)) GTEST_SKIP() << "the type has no kernels of a single row";
      RowBranch branch{layer->weights.as<float>(), nullptr, x.as<float>(), nullptr, nullptr, nullptr};
      if (has_shared) {
        branch.shared = layer->y.as<float>();
        branch.shared_weight = layer->weight.as<float>();
      }
      ASSERT_EQ(launch_expert_branch(args, branch, on), cudaSuccess);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<uint32_t> got = x.read<uint32_t>();
    if (time == 0) {
      want = got;
      for (const uint32_t bits : want) ASSERT_NE(bits & 0x7f800000u, 0x7f800000u) << "the numbers have grown too large";
    }
    ASSERT_EQ(got, want) << "time " << time;
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_P(ExpertRow, OverlapsTheSharedExpertWithTheSameBits) { expect_layers_overlap_with_the_same_bits(type(), act(), true); }

TEST_P(ExpertRow, DownOverlapsGateAndUpWithTheSameBits) { expect_layers_overlap_with_the_same_bits(type(), act(), false); }

}  // namespace
}  // namespace mr::cuda
