// grouped_epilogue: how the grouped GEMMs of several and of many rows finish and store the sums of a fragment of 16 rows by 8 pairs. Lane
// 4g + t has those of rows g (in [0] and [1]) and g + 8 (in [2] and [3]), of pairs 2t and 2t + 1.
#pragma once

#include "kernels/act.cuh"
#include "kernels/experts/gated.cuh"
#include "kernels/experts/grouped.h"
#include "kernels/instructions.cuh"

namespace mr::cuda {

template <class A>
struct GroupedEpilogue {
  const GroupedParams& grouped;
  const GemvParams& p;
  const int32_t lane;

  // RowBiases are an expert's biases of a lane's rows in a panel.
  struct RowBiases {
    bool any = false;
    float of[2] = {};
  };
  __device__ __forceinline__ RowBiases biases(const KernelTarget& target, int32_t expert, int32_t panel) const {
    RowBiases out;
    out.any = target.bias != nullptr;
    if (!out.any) return out;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t row = panel * kPanelRows + i * 8 + lane / 4;
      if (row < target.rows) out.of[i] = target.bias[static_cast<int64_t>(expert) * target.rows + row];
    }
    return out;
  }

  __device__ __forceinline__ void finish(float (&sums)[4], const RowBiases& bias) const {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      sums[i] *= p.x_scale;
      if (bias.any) sums[i] += bias.of[i / 2];
    }
  }

  // Stores the sums of a lane's two pairs. A number below 0 is of no pair.
  __device__ __forceinline__ void store_sums(const float (&sums)[4], int32_t panel, const int32_t (&pairs)[2]) const {
    const int32_t row = panel * kPanelRows + lane / 4, rows = p.targets[0].rows;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      if (pairs[i] < 0) continue;
      float* const out = static_cast<float*>(p.targets[0].out) + pairs[i] * p.targets[0].out_stride;
      if (row < rows) out[row] = sums[i];
      if (row + 8 < rows) out[row + 8] = sums[i + 2];
    }
  }

  // Stores the sums of the pairs pairs[first], ..., pairs[count - 1] that are in the fragment.
  __device__ __forceinline__ void store_sums(const float (&sums)[4], int32_t panel, const int32_t* pairs, int32_t first,
                                             int32_t count) const {
    const int32_t at = first + lane % 4 * 2;
    store_sums(sums, panel, {at < count ? pairs[at] : -1, at + 1 < count ? pairs[at + 1] : -1});
  }

  // Stores the products of activated gates and ups. pair: of column lane / 4 of the fragment, or below 0. Of a pair's outputs g and
  // g + 8, lane 4g + t gets those of pair g at 2t and 2t + 1, and 8 further.
  __device__ __forceinline__ void store_gated(float (&gate)[4], const float (&up)[4], int32_t panel, int32_t pair) const {
    const int32_t rows = p.targets[0].rows;
    gated_products(grouped.activation, gate, up);
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      const uint32_t outputs = transpose(ActOps<A>::pack(gate[half * 2] * p.pair_share, gate[half * 2 + 1] * p.pair_share));
      const int32_t row = panel * kPanelRows + half * 8 + lane % 4 * 2;
      if (pair < 0 || row >= rows) continue;
      uint16_t* const out = static_cast<uint16_t*>(p.targets[0].out) + pair * p.targets[0].out_stride + row;
      if (row + 1 < rows) *reinterpret_cast<uint32_t*>(out) = outputs;
      else *out = static_cast<uint16_t>(outputs);
    }
  }
};

}  // namespace mr::cuda
