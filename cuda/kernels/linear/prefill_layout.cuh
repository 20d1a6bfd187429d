// prefill_layout: how a block of the prefill class divides its shared memory, its threads and its registers.
//
// A stage of the ring is one unit of 64 inputs: the planes of the panels' packed bytes, and the tokens as rows of 128 bytes,
// swizzled.
#pragma once

#include "kernels/linear/packed_access.cuh"
#include "kernels/linear/prefill.h"

#if MR_HOPPER
#include <cuda.h>
#endif

namespace mr::cuda {

constexpr int32_t kPrefillThreads = 3 * 128;  // the third warpgroup gives its registers away and asks for data with one warp

template <int32_t T, int32_t rows_, int32_t tokens_>
struct PrefillLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t tokens = tokens_, panels = rows_ / kPanelRows, warps = panels;  // a panel for each warp that multiplies
  // A stage holds the planes one after another, each as two halves of the panels.
  static constexpr bool boxed = prefill_boxed(f);
  __host__ __device__ static constexpr int32_t plane_bytes(int32_t i) {
    constexpr WeightFormat format = f;
    return prefill_plane(format, i);
  }
  __host__ __device__ static constexpr int32_t half_bytes(int32_t i) { return (panels / 2 * plane_bytes(i) + 127) / 128 * 128; }
  __host__ __device__ static constexpr int32_t plane_at(int32_t i) {
    return 2 * ((i > 0 ? half_bytes(0) : 0) + (i > 1 ? half_bytes(1) : 0) + (i > 2 ? half_bytes(2) : 0) + (i > 3 ? half_bytes(3) : 0));
  }
  static constexpr int32_t weights = (plane_at(kPrefillPlanes) + 1023) / 1024 * 1024, rows = tokens * 128;
  static constexpr int32_t stage = weights + rows;
  static constexpr bool publishes = Format<T>::superblock && Format<T>::has_min;
  // Warps that hand fragments to those that multiply, and all that read a stage.
  static constexpr int32_t helpers = f.block > 1 && warps == 4 ? warps : 0, readers = warps + helpers;
  static constexpr int32_t slots = 2, handed = slots * helpers * 2048;  // a unit's fragments of a warp
  static constexpr int32_t exchange_each = publishes ? f.units * 256 : 0;  // a warp's
  static constexpr int32_t exchange = readers * exchange_each;
  static constexpr int32_t spare = 128;  // what nobody reads is copied here
  static constexpr int32_t most_stages = 16, barriers = (2 * most_stages + 2 * slots * helpers) * 8;
  static constexpr int32_t stages_that_fit = (226 * 1024 - spare - exchange - handed - barriers) / stage;
  static constexpr int32_t stages = stages_that_fit > most_stages ? most_stages : stages_that_fit;
  static constexpr int32_t bytes = stages * stage + spare + exchange + handed + barriers + 1024;  // 1024: to align the ring

  // The end of a tile borrows stages of the ring, each for a piece of the tile's tokens; of a pair each half of the warps ends half of
  // the tokens, and takes a piece of its own. Bytes a token of a piece: its sums, or what becomes of them, of a pair those sums that
  // the halves hand to each other and what becomes of them.
  __host__ __device__ static constexpr int32_t end_bytes(ProductEnd end) {
    return rows_ * (end == ProductEnd::kSwiGLU ? 6 : end == ProductEnd::kStoreAct ? 2 : 4);
  }
  __host__ __device__ static constexpr int32_t end_tokens(ProductEnd end) { return end == ProductEnd::kSwiGLU ? tokens / 2 : tokens; }
  // Results go out by boxes of so many tokens.
  __host__ __device__ static constexpr int32_t out_box(ProductEnd end) {
    return end_tokens(end) >= 32 && stage / end_bytes(end) >= 32 ? 32 : 16;
  }
  __host__ __device__ static constexpr int32_t loans(ProductEnd end) {
    const int32_t most = stage / end_bytes(end) / out_box(end) * out_box(end);
    return (end_tokens(end) + most - 1) / most;
  }
  // Tokens of every piece but the last, which may have less.
  __host__ __device__ static constexpr int32_t piece(ProductEnd end) {
    const int32_t boxes = end_tokens(end) / out_box(end);
    return (boxes + loans(end) - 1) / loans(end) * out_box(end);
  }
  __host__ __device__ static constexpr int32_t piece_tokens(ProductEnd end, int32_t i) {
    const int32_t left = end_tokens(end) - i * piece(end);
    return left < piece(end) ? left : piece(end);
  }
  // Behind one block of a kernel no other of it fits: clusters that begin early, on the multiprocessors that the kernel before
  // leaves first, spread over all of them.
  static_assert(bytes > 114 * 1024 && stages >= 3);
  // Where two warpgroups multiply, a third gives them its registers. Where one does and none helps it, half of a multiprocessor's
  // registers suffice, and kernels before that still run leave room to begin beside them.
  static constexpr bool gives_registers = warps > 4;
  static constexpr int32_t threads = gives_registers ? kPrefillThreads : readers * 32 + 32;
  static constexpr int32_t blocks = gives_registers || helpers > 0 ? 1 : 2;
};

#if MR_HOPPER
struct PrefillMaps {
  CUtensorMap tokens;  // boxes of one unit's columns and a block's share of a tile's tokens
  CUtensorMap out[3];  // of each target, where results are boxed: 128 bytes of rows, or half a tile's if less, and some tokens
  CUtensorMap weights[3][kPrefillPlanes];  // of each target: boxes of a plane of half a tile's panels
};
#endif

}  // namespace mr::cuda
