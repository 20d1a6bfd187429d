// rank_experts: a mixture of experts, from the residual stream to its branch. Rows are computed some at a time, which bounds the
// memory of what their experts return and changes no bit.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/experts/choose.h"
#include "kernels/experts/combine.h"
#include "kernels/experts/experts.h"
#include "kernels/experts/route.h"
#include "src/error.h"
#include "src/rank.h"

namespace mr::cuda {

void Rank::mixture(const StepShape& shape, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const mr_experts_desc& e = desc_.experts(index);
  int32_t most = sizes_.expert_rows(e);
  if (!swiglu_supported(l.expert_gate, l.expert_up))  // their sums lie where those of down will
    most = std::min(most, static_cast<int32_t>(space_.experts.out_count / (2 * e.used * row_stride(desc_.mlp(index).width))));
  std::vector<Span> pieces;
  for (const Span& span : spans(shape))
    for (int32_t done = 0; done < span.count; done += most)
      pieces.push_back({span.first + done, std::min(most, span.count - done), span.kind});
  ExpertBytes bytes{space_.experts.bytes, 0, pieces.size() == 1 ? nullptr : space_.experts.read, true};
  for (const PackedWeight* w : {&l.expert_gate, &l.expert_up, &l.expert_down}) bytes.each += weight_packed_bytes(w->type, w->rows, w->cols);
  for (const Span& piece : pieces) {
    mix(shape, piece, index, bytes, on);
    bytes.first = false;
  }
}

void Rank::mix(const StepShape& shape, const Span& rows, int32_t index, const ExpertBytes& bytes, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const BranchNorm source = mlp_norm(index);
  choose_experts(shape, rows, index, source, bytes, on);
  const ExpertGemmArgs down = gate_experts(rows, index, source.type, on);
  CombineArgs sum = combine_args(rows, index);
  const bool of_one_row = expert_branch_supported(down);
  if (of_one_row && sum.end_norm == nullptr && sum.shared == nullptr) {
    CUDA_CHECK(launch_expert_branch(down, {sum.weights, sum.bias, sum.x, sum.branch}, on));
    return;
  }
  if (of_one_row) {
    CUDA_CHECK(launch_expert_branch(down, {sum.weights, sum.bias, nullptr, space_.experts.out}, on));
    sum.weights = sum.bias = nullptr;
    sum.used = 1;
  } else {
    CUDA_CHECK(launch_expert_gemm(down, on));
  }
  if (l.shared_down.data != nullptr) multiply_shared(rows, index, on);
  CUDA_CHECK(launch_combine(sum, on));
}

// The router, its choice, the plan of the grouped GEMMs, and the norm of their inputs: of few rows in one launch.
void Rank::choose_experts(const StepShape& shape, const Span& rows, int32_t index, const BranchNorm& source, const ExpertBytes& bytes,
                          const Stream& on) {
  const Layer& l = shard_.layer(index);
  const mr_experts_desc& e = desc_.experts(index);
  const ExpertSpace& space = space_.experts;
  RouterArgs router{};
  router.x = space_.x + rows.first * sizes_.hidden_stride;
  router.x_stride = sizes_.hidden_stride;
  router.norm = l.router_norm != nullptr ? l.router_norm : l.ffn_norm;
  router.eps = desc_.norm_eps;
  router.scale = l.router_norm != nullptr ? 1 / std::sqrt(static_cast<float>(desc_.hidden)) : 1;
  router.router = l.router;
  router.bias = l.router_bias;
  router.logits = space.logits;
  router.rows = rows.count;

  RouteArgs route{};
  route.experts = e;
  route.logits = space.logits;
  route.choice_bias = l.choice_bias;
  route.scales = l.expert_scale;
  route.slot = rows_from(shape, rows.first).slot;
  route.ids = space.ids;
  route.weights = space.weights;
  route.rows = rows.count;
  route.plan = space.plan;
  route.bytes = bytes;
  if (choose_supported(e, rows.count)) {
    const bool norms = !source.applied && source.weight != nullptr;
    const int32_t tile = expert_tile(rows.kind, e.count, rows.count * e.used);
    CUDA_CHECK(launch_choose({router, route, norms ? norm_args(source, rows) : RmsNormArgs{}, tile}, on));
    if (!norms) norm(source, rows, on);
    return;
  }
  CUDA_CHECK(launch_router(router, on));
  CUDA_CHECK(launch_route(route, on));
  norm(source, rows, on);
  if (rows.count == 1) return;
  const int32_t tile = expert_tile(rows.kind, e.count, rows.count * e.used);
  const PlanExpertsArgs plan{space.ids, rows.count * e.used, e.count, tile, space.plan, bytes};
  CUDA_CHECK(launch_plan_experts(plan, on));
}

// Gate and up, from space().norm into space().experts.ffn, by pair. Returns the GEMM from there into space().experts.out.
ExpertGemmArgs Rank::gate_experts(const Span& rows, int32_t index, const InputType& type, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const mr_experts_desc& e = desc_.experts(index);
  const ExpertSpace& space = space_.experts;
  const int64_t width = row_stride(desc_.mlp(index).width);
  const int32_t activation = desc_.mlp(index).activation, pairs = rows.count * e.used;
  const InputType gated_type = activations_.gated(type.act);
  ExpertGemmArgs args;
  args.kind = rows.kind;
  args.act = type.act;
  args.x_scale = type.scale;
  args.plan = space.plan;
  args.tile = expert_tile(rows.kind, e.count, rows.count * e.used);
  args.rows = rows.count;
  args.experts = e.count;
  args.pairs = pairs;
  args.pair_scale = gated_type.scale;
  args.activation = activation;

  const ExpertTarget gate{l.expert_gate, l.expert_gate_bias}, up{l.expert_up, l.expert_up_bias};
  args.x = act_row(space_.norm, rows.first, sizes_.hidden_stride);
  args.x_stride = sizes_.hidden_stride;
  args.x_share = e.used;
  args.out_stride = width;
  if (swiglu_supported(l.expert_gate, l.expert_up)) {
    args.targets[0] = gate;
    args.targets[1] = up;
    args.count = 2;
    args.out = space.ffn;
    CUDA_CHECK(launch_expert_gemm(args, on));
  } else {
    float* const sums[2] = {space.out, space.out + pairs * width};
    args.targets[0] = gate;
    args.out = sums[0];
    CUDA_CHECK(launch_expert_gemm(args, on));
    args.targets[0] = up;
    args.out = sums[1];
    CUDA_CHECK(launch_expert_gemm(args, on));
    SwigluArgs gated{};
    gated.gate = sums[0];
    gated.up = sums[1];
    gated.in_is_f32 = true;
    gated.act = type.act;
    gated.out = space.ffn;
    gated.rows = pairs;
    gated.dim = desc_.mlp(index).width;
    gated.in_stride = gated.up_stride = gated.out_stride = width;
    gated.scale = 1 / gated_type.scale;
    gated.activation = activation;
    CUDA_CHECK(launch_swiglu(gated, on));
  }

  args.targets[0] = {l.expert_down, nullptr};
  args.count = 1;
  args.x = space.ffn;
  args.x_stride = width;
  args.x_share = 1;
  args.out = space.out;
  args.out_stride = sizes_.hidden_stride;
  args.x_scale = gated_type.scale;
  return args;
}

// Into space().experts.shared.
void Rank::multiply_shared(const Span& rows, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const ExpertSpace& space = space_.experts;
  // The first of these rows is the first of the buffers.
  ActRows ffn = space.shared_ffn[static_cast<size_t>(index)];
  ffn.base = act_row(ffn.base, -rows.first, ffn.stride);
  const Act act = activations_.act_of({&l.shared_gate, &l.shared_up, &l.shared_down});
  const bool as_experts = l.expert_norm == nullptr && act == experts_act(l);  // whose inputs are in space().norm
  gated_pair(rows, index, {l.ffn_norm, normed_type(act, l.ffn_norm), as_experts}, l.shared_gate, l.shared_up, ffn, on);
  const GemmTarget down{l.shared_down, nullptr, space.shared - rows.first * sizes_.hidden_stride, sizes_.hidden_stride};
  CUDA_CHECK(launch_gemm(gemm_args(rows, activations_.gated(act), ffn.base, ffn.stride, Epilogue::kStoreF32, 1, &down), on));
}

// Into the residual stream, or where a branch ends with more, into space().branch.
CombineArgs Rank::combine_args(const Span& rows, int32_t index) const {
  const Layer& l = shard_.layer(index);
  const mr_experts_desc& e = desc_.experts(index);
  const ExpertSpace& space = space_.experts;
  const int64_t skip = rows.first * sizes_.hidden_stride;
  CombineArgs args{};
  args.ids = space.ids;
  args.weights = space.weights;
  args.used = e.used;
  args.experts = e.count;
  args.y = space.out;
  args.bias = l.expert_down_bias;
  args.end_norm = l.expert_end_norm;
  args.shared = e.shared_width == 0 ? nullptr : space.shared;
  args.shared_router = l.shared_router;
  args.norm = l.ffn_norm;
  args.shared_end_norm = l.shared_end_norm;
  args.x = space_.x + skip;
  args.branch = ends_mlp(desc_, index) ? space_.branch + skip : nullptr;
  args.y_stride = args.shared_stride = args.x_stride = sizes_.hidden_stride;
  args.eps = desc_.norm_eps;
  args.rows = rows.count;
  args.dim = desc_.hidden;
  return args;
}

}  // namespace mr::cuda
