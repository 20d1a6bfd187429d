// attention/decode_merge: merges the parts of a row. The block that finishes the group's last unit merges the group,
// and the block that finishes the row's last group merges the groups. Nobody waits: each block counts, and the last one
// does the work.
#pragma once

#include "kernels/act.cuh"
#include "kernels/attention/decode_plan.cuh"
#include "kernels/attention/merge.cuh"
#include "kernels/instructions.cuh"

namespace mr::cuda::decode {

// Threads of a merge handle quads: four neighbouring elements of a head.
template <int kDim>
constexpr int kQuads = kDim / 4;

// Writes zeros for rows without units.
__device__ __forceinline__ void clear_padding(const DecodeAttentionArgs& a, const int32_t* first) {
  const int32_t width = a.common.heads * a.common.layout.head_dim;
  for (int32_t r = blockIdx.x; r < a.count; r += gridDim.x)
    if (first[r + 1] == first[r])
      for (int32_t i = threadIdx.x; i < width; i += kThreads)
        static_cast<uint16_t*>(a.common.out)[r * a.common.out_stride + i] = 0;  // of either type
}

// Returns whether `more` completes the counter to `all`, and then zeroes it for the next launch. Earlier blocks' writes
// are then visible to all threads of this block. All threads must call it; `last` is shared.
__device__ __forceinline__ bool is_last(int32_t* done, int32_t more, int32_t all, bool& last) {
  __syncthreads();
  if (threadIdx.x == 0) {
    last = count_done(done, more) + more == all;
    if (last) *done = 0;
  }
  __syncthreads();
  return last;
}

// Writes a quad of an item's output, divided by the sum of weights. Heads begin at even elements if their dim is even. If not kDivides it
// is multiplied by the reciprocal of the sum, for kernels whose registers have no room for divisions.
template <int kDim, bool kDivides = true>
__device__ __forceinline__ void finish(const Plan& plan, const Item& item, int quad, float4 x, Part all) {
  const AttentionArgs& a = plan.p.args.common;
  const int32_t dim = a.layout.head_dim, d = quad % kQuads<kDim> * 4;
  const int64_t head = item.head0 + quad / kQuads<kDim>;
  float share = add_sink(all, a.sinks, head);
  const float sum = all.sum;
  if constexpr (!kDivides) share /= sum;
  x = make_float4(x.x * share, x.y * share, x.z * share, x.w * share);
  if constexpr (kDivides) x = make_float4(x.x / sum, x.y / sum, x.z / sum, x.w / sum);
  uint16_t* const out = static_cast<uint16_t*>(a.out) + item.row * a.out_stride + head * dim + d;
  if (dim % 2 == 0) {
    if (d < dim) *reinterpret_cast<uint32_t*>(out) = act_bits(a.out_act, x.x, x.y);
    if (d + 2 < dim) *reinterpret_cast<uint32_t*>(out + 2) = act_bits(a.out_act, x.z, x.w);
  } else {
    const float elements[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (d + i < dim) out[i] = act_bits(a.out_act, elements[i]);
  }
}

__device__ __forceinline__ float4 merge_quads(const float4& into, const float4& next, float2 shares) {
  return make_float4(merge_values(into.x, next.x, shares), merge_values(into.y, next.y, shares),
                     merge_values(into.z, next.z, shares), merge_values(into.w, next.w, shares));
}

// Returns a quad in the workspace slot of a unit, for the query heads from head0 on.
template <int kDim>
__device__ __forceinline__ float4* quad_at(const Plan& plan, const Item& item, int32_t place, int quad) {
  const int64_t at = (static_cast<int64_t>(place) * plan.p.args.common.heads + item.head0) * kDim;
  return reinterpret_cast<float4*>(plan.p.out + at) + quad;
}
__device__ __forceinline__ float2* stat_at(const Plan& plan, const Item& item, int32_t place, int head) {
  return plan.p.stat + static_cast<int64_t>(place) * plan.p.args.common.heads + item.head0 + head;
}

// Parts lists the workspace slots of parts with ascending keys: `first`, then `rest` and every `step` further.
struct Parts {
  int32_t first, rest, step, count;
  __device__ __forceinline__ int32_t operator[](int32_t i) const { return i == 0 ? first : rest + (i - 1) * step; }
};

// Merges parts of an item's row, column and tile in order, and passes each quad with its Part to `end`. kAhead parts
// are loaded before the first of them is merged.
template <int kDim, int kAhead, class End>
__device__ __forceinline__ void merge_parts(const Plan& plan, const Item& item, const Parts& parts, End end) {
#pragma unroll 1
  for (int quad = threadIdx.x; quad < item.heads * kQuads<kDim>; quad += kThreads) {
    Part total{0, 0};
    float4 x = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int32_t i0 = 0; i0 < parts.count; i0 += kAhead) {
      float2 stats[kAhead];
      float4 values[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (i0 + i >= parts.count) break;
        stats[i] = __ldcg(stat_at(plan, item, parts[i0 + i], quad / kQuads<kDim>));
        values[i] = __ldcg(quad_at<kDim>(plan, item, parts[i0 + i], quad));
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (i0 + i >= parts.count) break;
        const Part next{stats[i].x, stats[i].y};
        if (i0 + i == 0) {
          total = next;
          x = values[i];
        } else {
          const float2 shares = merge(total, next);
          x = merge_quads(x, values[i], shares);
        }
      }
    }
    end(quad, x, total);
  }
}

// Runs after an item that is not a whole row has been written to the workspace. `totals` (kTileHeads) and `last` are
// shared and written after barriers.
template <int kDim, int kAhead, bool kDivides = true>
__device__ __forceinline__ void deliver(const Plan& plan, const Item& item, float2* totals, bool& last) {
  const Params& p = plan.p;
  const int32_t group0 = item.unit - item.unit % plan.d.group_units, in_group = min(plan.d.group_units, item.units - group0);
  const int32_t row_place = plan.d.first[item.row], group_place = row_place + group0;
  const auto into_row = [&](int quad, const float4& x, const Part& part) { finish<kDim, kDivides>(plan, item, quad, x, part); };
  if (item.count < in_group) {
    int32_t* const done = p.group_done + static_cast<int64_t>(group_place) * plan.d.columns + item.column;
    if (!is_last(done, item.count, in_group, last)) return;
    // The block of the group's first unit merged all of its own units; every other unit has its own part.
    const int32_t index = item.index - (item.unit - group0), together = min(in_group, plan.d.share - index % plan.d.share);
    const Parts parts{group_place, group_place + together, 1, 1 + in_group - together};
    if (in_group == item.units) {
      merge_parts<kDim, kAhead>(plan, item, parts, into_row);
      return;
    }
    merge_parts<kDim, kAhead>(plan, item, parts, [&](int quad, const float4& x, const Part& part) {
      __stcg(quad_at<kDim>(plan, item, group_place, quad), x);
      if (quad % kQuads<kDim> == 0) totals[quad / kQuads<kDim>] = make_float2(part.top, part.sum);
    });
    __syncthreads();  // all threads have read the first part's stats, which the group's now replace
    if (static_cast<int32_t>(threadIdx.x) < item.heads)
      __stcg(stat_at(plan, item, group_place, threadIdx.x), totals[threadIdx.x]);
  }
  const int32_t groups = (item.units + plan.d.group_units - 1) / plan.d.group_units;
  if (!is_last(p.row_done + item.row * plan.d.columns + item.column, 1, groups, last)) return;
  merge_parts<kDim, kAhead>(plan, item, Parts{row_place, row_place + plan.d.group_units, plan.d.group_units, groups}, into_row);
}

}  // namespace mr::cuda::decode
