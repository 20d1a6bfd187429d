// attention/prefill_merge: merges the pieces of split tiles from the workspace into the output.
#pragma once

#include "kernels/attention/merge.cuh"
#include "kernels/attention/prefill_params.cuh"
#include "kernels/launch.h"

namespace mr::cuda::prefill {

constexpr int kMergeThreads = 128;

// Merges the pieces of a row of a split tile; a thread owns one quad of one head.
inline __global__ void __launch_bounds__(kMergeThreads) merge_pieces(const __grid_constant__ Params p) {
  const AttentionArgs& c = p.args.common;
  const int dim = c.layout.padded_dim, quads = dim / 4, halves = halves_of(dim), quads_a_half = quads / halves;
  grid_wait();
  grid_trigger();
  const PrefillMerge m = p.args.merges[blockIdx.x];
  const int32_t i = static_cast<int32_t>(blockIdx.y) * kMergeThreads + static_cast<int32_t>(threadIdx.x);
  const int32_t head = i / quads, quad = i % quads;
  if (head >= c.heads) return;
  const int32_t pieces = prefill_piece_of(c.rows.position[m.row]) + 1;
  const int64_t first = static_cast<int64_t>(m.place) * c.heads + head, step = static_cast<int64_t>(m.stride) * c.heads;
  Part total{0, 0};
  float4 x = make_float4(0, 0, 0, 0);
  constexpr int kAhead = 8;  // pieces read before the first of them is merged
  for (int32_t begin = 0; begin < pieces; begin += kAhead) {
    float2 parts[kAhead];
    float4 values[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int64_t at = first + min(begin + j, pieces - 1) * step;
      parts[j] = __ldcg(p.parts + at * halves + quad / quads_a_half);
      values[j] = __ldcg(reinterpret_cast<const float4*>(p.values + at * p.slot_dims) + quad);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (begin + j >= pieces) break;
      const Part next{parts[j].x, parts[j].y};
      if (begin + j == 0) {
        total = next;
        x = values[j];
      } else {
        const float2 shares = merge(total, next);
        x.x = merge_values(x.x, values[j].x, shares);
        x.y = merge_values(x.y, values[j].y, shares);
        x.z = merge_values(x.z, values[j].z, shares);
        x.w = merge_values(x.w, values[j].w, shares);
      }
    }
  }
  uint16_t* const to = output_of(c, m.row, head);
  const int32_t d = quad_dim(quad);
  const float of_values = add_sink(total, c.sinks, head), share = of_values / total.sum;
  store_pair(c.out_act, to, d, c.layout.head_dim, x.x * share, x.y * share);
  store_pair(c.out_act, to, d + 8, c.layout.head_dim, x.z * share, x.w * share);
}

}  // namespace mr::cuda::prefill
