// attention_decode_merge: how the units of a row become its output, by the block that finishes the last of them.
#pragma once

#include "kernels/act.cuh"
#include "kernels/attention_decode_plan.cuh"
#include "kernels/attention_merge.cuh"

namespace mr::cuda::decode {

// One more unit is done; gives how many were before. What the block wrote before its last barrier is visible to whoever
// counts later, and what earlier counters wrote is visible after it.
__device__ __forceinline__ int32_t count_done(int32_t* done) {
  int32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(done) : "memory");
  return before;
}

// The output of element e of an item: what was merged, divided by the sum of weights.
template <int kDim>
__device__ __forceinline__ void finish(const Plan& plan, const Item& item, int e, float x, float sum) {
  const AttentionArgs& a = plan.p.args.common;
  const int32_t dim = a.layout.head_dim, d = e % kDim;
  if (d < dim) store_act(a.out_act, a.out, item.row * a.out_stride + static_cast<int64_t>(item.head0 + e / kDim) * dim + d, x / sum);
}

// Merges all units of an item's row in order: chunks of a group, then the groups.
template <int kDim>
__device__ __forceinline__ void merge_units(const Plan& plan, const Item& item, int32_t units) {
  const int32_t all_heads = plan.p.args.common.heads, group_units = kChunksAGroup / plan.span;
  const int64_t first_unit = plan.first[item.row];
#pragma unroll 1
  for (int e = threadIdx.x; e < item.heads * kDim; e += kThreads) {
    const float2* const stat = plan.p.stat + first_unit * all_heads + item.head0 + e / kDim;
    const float* const out = plan.p.out + (first_unit * all_heads + item.head0) * kDim + e;
    Part total{0, 0};
    float x = 0;
    for (int32_t begin = 0; begin < units; begin += group_units) {
      const int32_t end = min(units, begin + group_units);
      Part part{0, 0};
      float y = 0;
      constexpr int kAhead = 8;  // units read before the first of them is merged
      for (int32_t u0 = begin; u0 < end; u0 += kAhead) {
        float2 stats[kAhead];
        float values[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int64_t u = min(u0 + i, end - 1);
          stats[i] = __ldcg(stat + u * all_heads);
          values[i] = __ldcg(out + u * all_heads * kDim);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (u0 + i >= end) break;
          const Part next{stats[i].x, stats[i].y};
          if (u0 + i == begin) {
            part = next;
            y = values[i];
          } else {
            const float2 shares = merge(part, next);
            y = merge_values(y, values[i], shares);
          }
        }
      }
      if (begin == 0) {
        total = part;
        x = y;
      } else {
        const float2 shares = merge(total, part);
        x = merge_values(x, y, shares);
      }
    }
    finish<kDim>(plan, item, e, x, total.sum);
  }
}

}  // namespace mr::cuda::decode
