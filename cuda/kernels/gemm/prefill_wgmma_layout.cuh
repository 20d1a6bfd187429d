// prefill_wgmma_layout: how a block of the prefill class divides its shared memory, threads and registers.
//
// A stage of the pipeline is one unit of 64 inputs: the planes of the panels' packed bytes, and the tokens as swizzled
// rows of 128 bytes.
#pragma once

#include "kernels/gemm/packed_access.cuh"
#include "kernels/gemm/prefill_wgmma.h"

#if MR_HOPPER
#include <cuda.h>
#endif

namespace mr::cuda {

constexpr int32_t kWgmmaThreads = 3 * 128;  // the third warpgroup donates registers and has the producer warp

template <int32_t T, int32_t rows_, int32_t tokens_>
struct PrefillLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t tokens = tokens_, panels = rows_ / kPanelRows, warps = panels;  // one panel for each consumer warp
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
  // The epilogue needs room for sixteen tokens of a pair, which Q2_K's units alone do not give it.
  static constexpr int32_t stage = weights + rows > 16 * 6 * rows_ ? weights + rows : 16 * 6 * rows_;
  static_assert(stage % 1024 == 0);
  static constexpr bool publishes = Format<T>::six_bits;
  // Helpers hand fragments to consumers; readers are all warps that read a stage.
  static constexpr int32_t helpers = f.block > 1 && warps == 4 ? warps : 0, readers = warps + helpers;
  static constexpr int32_t slots = 2, handoff = slots * helpers * 2048;  // a unit's fragments of a warp
  static constexpr int32_t exchange_each = publishes ? f.units * 256 : 0;  // of a warp
  static constexpr int32_t exchange = readers * exchange_each;
  static constexpr int32_t spare = 128;  // target of copies that are never read
  static constexpr int32_t most_stages = 16, barriers = (2 * most_stages + 2 * slots * helpers) * 8;
  static constexpr int32_t stages_that_fit = (226 * 1024 - spare - exchange - handoff - barriers) / stage;
  static constexpr int32_t stages = stages_that_fit > most_stages ? most_stages : stages_that_fit;
  static constexpr int32_t used = stages * stage + spare + exchange + handoff + barriers + 1024;  // 1024: to align the stages
  // Shared memory admits one block of a kernel to an SM, so clusters that start early, on the SMs that the kernel
  // before leaves first, spread over the whole device.
  static constexpr int32_t alone = 115 * 1024, bytes = used > alone ? used : alone;

  // The epilogue borrows stages of the pipeline, each for a piece of the tile's tokens; of a pair, each half of the
  // warps finishes half of the tokens and has pieces of its own. epilogue_bytes: of a token in a piece: its sums or
  // results; of a pair the sums that the halves exchange, and the results.
  __host__ __device__ static constexpr int32_t epilogue_bytes(bool pair) {
    return rows_ * (pair ? 6 : 4);
  }
  __host__ __device__ static constexpr int32_t epilogue_tokens(bool pair) {
    return pair ? tokens / 2 : tokens;
  }
  // Tokens of a TMA box of results.
  __host__ __device__ static constexpr int32_t out_box(bool pair) {
    return epilogue_tokens(pair) >= 32 && stage / epilogue_bytes(pair) >= 32 ? 32 : 16;
  }
  __host__ __device__ static constexpr int32_t epilogue_stages(bool pair) {
    const int32_t most = stage / epilogue_bytes(pair) / out_box(pair) * out_box(pair);
    return (epilogue_tokens(pair) + most - 1) / most;
  }
  // Tokens of every piece but the last, which may have fewer.
  __host__ __device__ static constexpr int32_t piece(bool pair) {
    const int32_t boxes = epilogue_tokens(pair) / out_box(pair);
    return (boxes + epilogue_stages(pair) - 1) / epilogue_stages(pair) * out_box(pair);
  }
  __host__ __device__ static constexpr int32_t piece_tokens(bool pair, int32_t i) {
    const int32_t left = epilogue_tokens(pair) - i * piece(pair);
    return left < piece(pair) ? left : piece(pair);
  }
  static_assert(stages >= 3);
  // If two warpgroups multiply, a third donates its registers to them. If one multiplies without helpers, half of an
  // SM's registers suffice, and the block can start on an SM where the kernel before still runs.
  static constexpr bool gives_registers = warps > 4;
  static constexpr int32_t threads = gives_registers ? kWgmmaThreads : readers * 32 + 32;
  static constexpr int32_t blocks = gives_registers || helpers > 0 ? 1 : 2;
};

#if MR_HOPPER
struct PrefillMaps {
  CUtensorMap tokens;  // boxes of one unit's columns and a block's share of a tile's tokens
  CUtensorMap out[kGemmTargets];  // of each target, if boxed_out: 128 bytes of rows (or half a tile's) and some tokens
  CUtensorMap weights[kGemmTargets][kPrefillPlanes];  // of each target: boxes of a plane of half a tile's panels
};
#endif

}  // namespace mr::cuda
