// gemv_tile: a tile of a GEMV kernel, the reduction of its eight split-K slices, and its epilogue.
#pragma once

#include <type_traits>

#include "kernels/act.cuh"
#include "kernels/gemm/activation.cuh"
#include "kernels/gemm/heads_epilogue.cuh"
#include "kernels/gemm/targets.cuh"

namespace mr::cuda {

// GemvShape is the compile-time shape of a GEMV kernel.
template <int32_t panels_, int32_t tokens_, int32_t units_, int32_t blocks_>
struct GemvShape {
  static constexpr int32_t panels = panels_;
  static constexpr int32_t tokens = tokens_;  // of a tile; with 1, the other columns of the 8-column fragment repeat it
  static constexpr int32_t units = units_;    // of a stage: 1, 2 or 4
  static constexpr int32_t blocks_per_sm = blocks_;  // registers are limited so that this many fit
  static constexpr int32_t warps = kSlices, threads = warps * 32;
  static constexpr int32_t rows = panels * kPanelRows;
  static_assert(tokens == 1 || tokens == 8);
  // Partial sums in floats: one plane for each slice, one column for each token.
  static constexpr int32_t reduction_stride = rows + 4, reduction_plane = tokens * reduction_stride;
  static constexpr int32_t reduction = kSlices * reduction_plane;
};

// KiB of shared memory of the SMs that run machine code of a compute capability.
constexpr int32_t gemv_shared_kib(int32_t capability) {
  return capability >= 120 ? 100 : capability >= 90 ? 228 : capability >= 86 ? 100 : 164;
}
#ifdef __CUDA_ARCH__
constexpr int32_t kGemvSharedKiB = gemv_shared_kib(__CUDA_ARCH__ / 10);
#else
constexpr int32_t kGemvSharedKiB = 0;  // host code passes the size
#endif

// Returns bytes(room) with room as a constant, for the machine code of a compute capability.
template <class F>
int32_t gemv_shared_bytes(int32_t capability, F&& bytes) {
  switch (gemv_shared_kib(capability)) {
    case 228: return bytes(std::integral_constant<int32_t, 228>{});
    case 164: return bytes(std::integral_constant<int32_t, 164>{});
    default: return bytes(std::integral_constant<int32_t, 100>{});
  }
}

// An item's row tile, and its first token.
__device__ __forceinline__ int32_t tile_of(const GemvParams& p, int32_t item) { return p.token_tiles == 1 ? item : item / p.token_tiles; }
template <class S>
__device__ __forceinline__ int32_t first_token(const GemvParams& p, int32_t item) {
  return p.token_tiles == 1 ? 0 : item % p.token_tiles * S::tokens;
}

template <class A, class S>
struct GemvTile {
  const GemvParams& p;
  float* partial_sums;  // two buffers of S::reduction floats, used alternately
  int32_t warp, lane;
  HeadsRow heads = {};

  // Returns whether the block runs the epilogue kHeads; tiles of two panels do not.
  __device__ __forceinline__ bool ends_heads() const { return S::panels == 1 && p.epilogue == Epilogue::kHeads; }

  // Stores this warp's sums of a panel for the reduction.
  __device__ __forceinline__ void put(const float (&sums)[4], int32_t panel, float* buffer) const {
    if (S::tokens == 1 && lane % 4 != 0) return;
    float* sum = buffer + warp * S::reduction_plane + (lane & 3) * 2 * S::reduction_stride + panel * kPanelRows + (lane >> 2);
    sum[0] = sums[0];
    sum[8] = sums[2];
    if constexpr (S::tokens > 1) {
      sum[S::reduction_stride] = sums[1];
      sum[S::reduction_stride + 8] = sums[3];
    }
  }

  // Reduces the slices of a tile, once every warp has stored its own, and runs the epilogue. Tiles alternate between
  // two buffers, so that no warp writes into one that others still read.
  __device__ __forceinline__ void finish(int32_t item, const float* buffer) const {
    __syncthreads();
    each_row(item, [&](int32_t index) {
      float v[kSlices];
#pragma unroll
      for (int32_t s = 0; s < kSlices; ++s) v[s] = buffer[s * S::reduction_plane + index];
      return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    });
  }

  // Calls sum(index into the buffer) for each row of the tile and stores the result: one element for each thread.
  template <class F>
  __device__ __forceinline__ void each_row(int32_t item, F&& sum) const {
    static_assert(S::rows * S::tokens <= S::threads);
    const int32_t tile = tile_of(p, item), token0 = first_token<S>(p, item), thread = warp * 32 + lane;
    if (thread >= S::rows * S::tokens) return;
    if (p.pair) {
      const int32_t local = thread % kPanelRows, column = thread / kPanelRows, row = tile * kPanelRows + local;
      if (column >= min(p.tokens - token0, S::tokens) || row >= p.targets[0].rows) return;
      const int32_t index = column * S::reduction_stride + local;
      return end_pair(row, token0 + column, sum(index), sum(index + kPanelRows));
    }
    int32_t within;
    const KernelTarget& target = target_of(p, tile, within);
    const int32_t local = thread % S::rows, column = thread / S::rows, row = within * S::rows + local;
    if (column >= min(p.tokens - token0, S::tokens) || row >= target.rows) return;
    const int64_t element = (token0 + column) * target.out_stride + row;
    // The residual is loaded ahead of the reduction, to overlap the two latencies.
    const float before = p.epilogue == Epilogue::kAddF32 ? static_cast<const float*>(target.out)[element] : 0;
    float y = sum(column * S::reduction_stride + local) * p.x_scale;
    if (target.bias != nullptr) y += target.bias[row];
    switch (p.epilogue) {
      case Epilogue::kStoreF32: static_cast<float*>(target.out)[element] = y; break;
      case Epilogue::kAddF32: static_cast<float*>(target.out)[element] = before + y; break;
      case Epilogue::kSwiGLU: break;
      case Epilogue::kHeads:
        if constexpr (S::panels == 1) heads.finish(p.heads.layout.act, row, lane, y);
        break;
    }
  }

  // If ends_heads(): looks up the row that this thread stores for an item, if there is one. first: of the block's
  // items.
  __device__ __forceinline__ void aim_heads(int32_t item, bool first) {
    const int32_t thread = warp * 32 + lane, column = thread / S::rows;
    if (thread >= S::rows * S::tokens || item >= p.items) return;
    const int32_t token = first_token<S>(p, item) + column;
    if (token >= p.tokens) return;
    if (first || p.token_tiles > 1) heads.find(p.heads, token);
    int32_t within;
    const KernelTarget& target = target_of(p, tile_of(p, item), within);
    heads.aim(p.heads, target, within * S::rows + thread % S::rows, token);
  }

  __device__ __forceinline__ void end_pair(int32_t row, int32_t token, float gate, float up) const {
    gate *= p.x_scale;
    up *= p.x_scale;
    if (p.targets[0].bias != nullptr) gate += p.targets[0].bias[row];
    if (p.targets[1].bias != nullptr) up += p.targets[1].bias[row];
    const float u = p.gelu != 0 ? gelu_argument(gate) : gate;
    const float y = gate / (1.0f + expf(-u)) * up * p.pair_share;
    static_cast<A*>(p.targets[0].out)[token * p.targets[0].out_stride + row] = ActOps<A>::from(y);
  }
};

}  // namespace mr::cuda
