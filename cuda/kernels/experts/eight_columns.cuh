// eight_columns: the stages of eight_rows.cuh and of eight_pairs.cuh, and the products of a stage: one panel of weights times eight columns
// of inputs.
#pragma once

#include "kernels/experts/grouped.h"
#include "kernels/gemm/folded.cuh"
#include "kernels/gemm/gemv_tile.cuh"
#include "kernels/gemm/mxfp4_unit.cuh"
#include "kernels/instructions.cuh"

namespace mr::cuda {

// EightStage is the part of a stage that one warp requests and reads.
template <int32_t T>
struct EightStage {
  static constexpr WeightFormat f = Format<T>::f;
  // Units of a stage: a group, or up to three that have at most 2 304 bytes. With fewer, requests are a fifth of the instructions of MXFP4.
  static constexpr int32_t unit = f.quants + f.high + f.scales, fit = 2304 / unit;
  static constexpr int32_t units = f.units > 1 ? f.units : fit > 3 ? 3 : fit < 1 ? 1 : fit;
  static constexpr int32_t bytes = f.units > 1 ? Format<T>::group_bytes : units * unit;
  // As many stages of all warps, up to 8, as fit if blocks share `room` KiB and have `others` bytes each for other things.
  static constexpr int32_t fitting(int32_t room, int32_t blocks, int32_t others) {
    const int32_t left = (room * 1024 / blocks - 1024 - others) / (kSlices * bytes);
    return left < 8 ? left : 8;
  }

  // Copies a stage with `left` units of the slice or fewer. Lane l passes where its first 16 bytes begin and go.
  __device__ __forceinline__ static void request(uint32_t to, const uint8_t* from, int32_t left, int32_t lane) {
    const int32_t copied = f.units > 1 ? bytes : min(units, left) * unit;
#pragma unroll
    for (int32_t at = 0; at < bytes; at += 512)
      if (at + lane * 16 < copied) copy16(to + at, from + at, evict_first_policy());
  }

  // Adds the products of unit u of a stage of a type that does not fold. x: as load_matrices returns each 32 inputs.
  template <class E>
  __device__ __forceinline__ static void multiply(float (&acc)[4], const GroupHeader<T>& header, const uint32_t (&x)[2][4],
                                                  uint32_t stage, int32_t u, int32_t lane) {
    const uint32_t quants = stage + u * (f.units > 1 ? f.quants : unit);
    uint32_t a[4][4];
    if constexpr (Format<T>::is_float) {
#pragma unroll
      for (int32_t s = 0; s < 4; ++s) load_fragment(a[s], quants, s, lane);
    } else if constexpr (T == kMXFP4) {
      take_mxfp4_unit(a, quants, quants + f.quants, lane);
    } else {
      RoundedUnit<T> rounded;
      if constexpr (f.units > 1) rounded.begin(quants, stage + Format<T>::high_at(u), stage + Format<T>::scales_at(u), header, lane);
      else rounded.begin(quants, quants + f.quants, quants + f.quants + f.high, header, lane);
      rounded.take_all(a);
    }
#pragma unroll
    for (int32_t s = 0; s < 4; ++s) mma16816<E>(acc, a[s], x[s / 2][s % 2 * 2], x[s / 2][s % 2 * 2 + 1]);
  }
};

// Returns 16 bytes of a row of x from byte `at` on, with zeros from the last column on; zeros if the row does not exist. Every lane loads
// some bytes of x, so that no branch separates the loads of a lane, which are in flight together.
template <int32_t T>
__device__ __forceinline__ uint4 input_piece(const GemvParams& p, bool exists, int32_t row, int32_t at) {
  const int32_t left = exists ? p.cols * 2 - at : 0;
  const uint8_t* const from = static_cast<const uint8_t*>(p.x) + (left > 0 ? row * p.x_stride * 2 + at : 0);
  const uint4 v = __ldcg(reinterpret_cast<const uint4*>(from));
  const auto inside = [&](uint32_t word, int32_t begin) {
    if constexpr (Format<T>::is_float) return left >= begin + 4 ? word : left > begin ? word & 0xffffu : 0;
    else return left > 0 ? word : 0;  // blocks are of 16 inputs or more
  };
  return make_uint4(inside(v.x, 0), inside(v.y, 4), inside(v.z, 8), inside(v.w, 12));
}

// EightItem is an item of a block whose items are `step` panels apart. Divisions would be a tenth of an item's instructions, so the
// position advances by additions.
struct EightItem {
  int32_t tile, panel;

  __device__ __forceinline__ void advance(int32_t step_tiles, int32_t step_panels, int32_t panels) {
    tile += step_tiles;
    panel += step_panels;
    if (panel < panels) return;
    panel -= panels;
    ++tile;
  }
};

}  // namespace mr::cuda
