// rank_experts: a mixture of experts, from the residual stream to its branch. Rows are computed some at a time, which bounds the
// memory of what their experts return and changes no bit.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "kernels/elementwise.h"
#include "kernels/experts/choose.h"
#include "kernels/experts/combine.h"
#include "kernels/experts/experts.h"
#include "kernels/experts/route.h"
#include "src/error.h"
#include "src/rank.h"

namespace mr::cuda {

int32_t Rank::expert_rows(int32_t index) const {
  const mr_experts_desc& e = desc_.experts(index);
  const int32_t most = sizes_.expert_rows(e);
  const Layer& l = shard_.layer(index);
  if (swiglu_supported(l.expert_gate, l.expert_up)) return most;
  // The sums of gate and of up lie where those of down will. A rank has a part of the width; the whole is the same on all ranks.
  return std::min(most, static_cast<int32_t>(space_.experts.out_count / (2 * e.used * row_stride(model_->desc().mlp(index).width))));
}

void Rank::gate_experts(const StepShape& shape, const Span& rows, int32_t index, const Stream& on) {
  choose_experts(shape, rows, index, mlp_norm(index), on);
  // The experts of a single row overlap a shared expert that goes first. It must leave their inputs as they are.
  const bool shared = shard_.layer(index).shared_gate.data != nullptr;
  const bool first = shared && branch_adds_shared(rows, index) && shared_as_experts(index);
  if (first) gate_shared(rows, index, on);
  multiply_gates(rows, index, first, on);
  if (shared && !first) gate_shared(rows, index, on);
}

// Returns whether the kernel that ends the branch of a single row adds the shared expert, whose weight the choice computes.
bool Rank::branch_adds_shared(const Span& rows, int32_t index) const {
  const Layer& l = shard_.layer(index);
  return model_->ranks() == 1 && l.shared_gate.data != nullptr && l.expert_end_norm == nullptr && l.shared_end_norm == nullptr &&
         choose_supported(desc_.experts(index), rows.count) && expert_branch_supported(down_args(rows, index));
}

ExpertGemmArgs Rank::down_args(const Span& rows, int32_t index) const {
  const ExpertSpace& space = space_.experts;
  ExpertGemmArgs down = expert_args(rows, index);
  down.targets[0] = {shard_.layer(index).expert_down, nullptr};
  down.x = space.ffn;
  down.x_stride = row_stride(model_->desc().mlp(index).width);
  down.out = space.out;
  down.out_stride = sizes_.hidden_stride;
  down.x_scale = down.pair_scale;
  return down;
}

void Rank::project_experts(const Span& rows, int32_t index, const Stream& on) {
  const ExpertSpace& space = space_.experts;
  const Layer& l = shard_.layer(index);
  const ExpertGemmArgs down = down_args(rows, index);
  CombineArgs sum = combine_args(rows, index);
  if (branch_adds_shared(rows, index)) {
    project_shared(rows, index, space.shared, on);
    const float* const weight = sum.shared_router == nullptr ? nullptr : space.shared_weight;
    CUDA_CHECK(launch_expert_branch(down, {sum.weights, sum.bias, sum.x, sum.branch, sum.shared, weight}, on));
    return;
  }
  float* shared = space.shared;
  if (sums_apart(index)) {
    sum.end_norm = sum.shared = sum.shared_router = sum.shared_end_norm = nullptr;
    sum.branch = space.sums + shard_.hidden().first;
    shared = sum.branch + rows.count * sizes_.hidden_stride;
  }
  const bool of_one_row = expert_branch_supported(down), ends = sum.end_norm == nullptr && sum.shared == nullptr;
  if (of_one_row) {
    float* const out = ends ? sum.branch : space.out;
    CUDA_CHECK(launch_expert_branch(down, {sum.weights, sum.bias, out == nullptr ? sum.x : nullptr, out}, on));
    sum.weights = sum.bias = nullptr;
    sum.used = 1;
  } else {
    CUDA_CHECK(launch_expert_gemm(down, on));
  }
  if (l.shared_down.data != nullptr) project_shared(rows, index, shared, on);
  if (!of_one_row || !ends) CUDA_CHECK(launch_combine(sum, on));
}

void Rank::combine_experts(const Span& rows, int32_t index, const Stream& on) {
  CombineArgs sum = combine_args(rows, index);
  const int64_t part = shard_.hidden().first;
  sum.x -= part;
  if (sum.branch != nullptr) sum.branch -= part;
  sum.dim = desc_.hidden;
  sum.y = space_.experts.sums;
  sum.weights = sum.bias = nullptr;
  sum.used = 1;
  if (sum.shared != nullptr) sum.shared = sum.y + rows.count * sizes_.hidden_stride;
  CUDA_CHECK(launch_combine(sum, on));
}

// Of the experts of all ranks, which the first rank counts for them.
ExpertBytes Rank::expert_bytes(const StepShape& shape, const Span& rows, int32_t index) const {
  ExpertBytes bytes{space_.experts.bytes, 0, rows.count == shape.rows ? nullptr : space_.experts.read, rows.first == 0};
  for (int32_t rank = 0; rank < model_->ranks(); ++rank) {
    const Layer& part = model_->shard(rank).layer(index);
    for (const PackedWeight* w : {&part.expert_gate, &part.expert_up, &part.expert_down})
      bytes.each += weight_packed_bytes(w->type, w->rows, w->cols);
  }
  return bytes;
}

// The router, its choice, the plan of the grouped GEMMs, and the norm of their inputs: of few rows in one launch.
void Rank::choose_experts(const StepShape& shape, const Span& rows, int32_t index, const BranchNorm& source, const Stream& on) {
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
  route.bytes = expert_bytes(shape, rows, index);
  if (choose_supported(e, rows.count)) {
    const bool norms = !source.applied && source.weight != nullptr;
    const int32_t tile = expert_tile(rows.kind, e.count, rows.count * e.used);
    ChooseArgs args{router, route, norms ? norm_args(source, rows) : RmsNormArgs{}, tile, {}};
    if (l.shared_router != nullptr && branch_adds_shared(rows, index)) args.shared = {space.shared_weight, l.shared_router, l.ffn_norm};
    CUDA_CHECK(launch_choose(args, on));
    if (!norms) norm(source, rows, on);
    return;
  }
  CUDA_CHECK(launch_router(router, on));
  CUDA_CHECK(launch_route(route, on));
  norm(source, rows, on);
  if (rows.count == 1) return;
  const int32_t tile = expert_tile(rows.kind, e.count, rows.count * e.used);
  const PlanExpertsArgs plan{space.ids, rows.count * e.used, e.count, tile, space.plan, route.bytes};
  CUDA_CHECK(launch_plan_experts(plan, on));
}

// What the grouped GEMMs of these rows share. pair_scale is that of space().experts.ffn.
ExpertGemmArgs Rank::expert_args(const Span& rows, int32_t index) const {
  const mr_experts_desc& e = desc_.experts(index);
  ExpertGemmArgs args;
  args.kind = rows.kind;
  args.act = mlp_norm(index).type.act;
  args.plan = space_.experts.plan;
  args.tile = expert_tile(rows.kind, e.count, rows.count * e.used);
  args.rows = rows.count;
  args.experts = e.count;
  args.pairs = rows.count * e.used;
  args.pair_scale = activations_.gated(args.act).scale;
  args.activation = desc_.mlp(index).activation;
  return args;
}

// Gate and up, from space().norm into its part of space().experts.ffn, by pair.
void Rank::multiply_gates(const Span& rows, int32_t index, bool ahead, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const ExpertSpace& space = space_.experts;
  const int64_t width = row_stride(model_->desc().mlp(index).width);
  void* const ffn = act_column(space.ffn, shard_.rows(index).ffn.first);
  const ExpertTarget gate{l.expert_gate, l.expert_gate_bias}, up{l.expert_up, l.expert_up_bias};
  ExpertGemmArgs args = expert_args(rows, index);
  args.x = act_row(space_.norm, rows.first, sizes_.hidden_stride);
  args.x_stride = sizes_.hidden_stride;
  args.x_share = desc_.experts(index).used;
  args.x_scale = mlp_norm(index).type.scale;
  if (swiglu_supported(l.expert_gate, l.expert_up)) {
    args.targets[0] = gate;
    args.targets[1] = up;
    args.count = 2;
    args.out = ffn;
    args.out_stride = width;
    args.ahead = ahead;
    CUDA_CHECK(launch_expert_gemm(args, on));
    return;
  }
  const int64_t stride = row_stride(l.expert_gate.rows);
  float* const sums[2] = {space.out, space.out + args.pairs * stride};
  args.out_stride = stride;
  args.targets[0] = gate;
  args.out = sums[0];
  CUDA_CHECK(launch_expert_gemm(args, on));
  args.targets[0] = up;
  args.out = sums[1];
  CUDA_CHECK(launch_expert_gemm(args, on));
  SwigluArgs gated{};
  gated.gate = sums[0];
  gated.up = sums[1];
  gated.act = args.act;
  gated.out = ffn;
  gated.rows = args.pairs;
  gated.dim = static_cast<int32_t>(l.expert_gate.rows);
  gated.in_stride = gated.up_stride = stride;
  gated.out_stride = width;
  gated.scale = 1 / args.pair_scale;
  gated.activation = args.activation;
  CUDA_CHECK(launch_swiglu(gated, on));
}

ActRows Rank::shared_ffn(const Span& rows, int32_t index) const {
  ActRows ffn = space_.experts.shared_ffn[static_cast<size_t>(index)];
  ffn.base = act_row(ffn.base, -rows.first, ffn.stride);
  return ffn;
}

// Returns whether the inputs of the experts, in space().norm, are those of the shared expert.
bool Rank::shared_as_experts(int32_t index) const {
  const Layer& l = shard_.layer(index);
  return l.expert_norm == nullptr && activations_.act_of({&l.shared_gate, &l.shared_up, &l.shared_down}) == experts_act(l);
}

void Rank::gate_shared(const Span& rows, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  ActRows ffn = shared_ffn(rows, index);
  ffn.base = act_column(ffn.base, shard_.rows(index).shared.first);
  const Act act = activations_.act_of({&l.shared_gate, &l.shared_up, &l.shared_down});
  gated_pair(rows, index, {l.ffn_norm, normed_type(act, l.ffn_norm), shared_as_experts(index)}, l.shared_gate, l.shared_up, ffn, on);
}

// Its part of the columns of rows.count rows, from out on.
void Rank::project_shared(const Span& rows, int32_t index, float* out, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const ActRows ffn = shared_ffn(rows, index);
  const Act act = activations_.act_of({&l.shared_gate, &l.shared_up, &l.shared_down});
  const GemmTarget down{l.shared_down, nullptr, out - rows.first * sizes_.hidden_stride, sizes_.hidden_stride};
  CUDA_CHECK(launch_gemm(gemm_args(rows, activations_.gated(act), ffn.base, ffn.stride, Epilogue::kStoreF32, 1, &down), on));
}

// Its part of the columns, into the residual stream, or where a branch ends with more, into space().branch. y and the shared
// expert's results have the part from their first column on.
CombineArgs Rank::combine_args(const Span& rows, int32_t index) const {
  const Layer& l = shard_.layer(index);
  const mr_experts_desc& e = desc_.experts(index);
  const ExpertSpace& space = space_.experts;
  const int64_t skip = rows.first * sizes_.hidden_stride + shard_.hidden().first;
  CombineArgs args{};
  args.ids = space.ids;
  args.weights = space.weights;
  args.ids_stride = args.used = e.used;
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
  args.dim = static_cast<int32_t>(shard_.hidden().count);
  return args;
}

}  // namespace mr::cuda
