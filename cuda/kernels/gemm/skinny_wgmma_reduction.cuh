// skinny_wgmma_reduction: how two blocks add the sums of their four warpgroups for a tile of 64 rows, and the epilogue.
//
// Each block finishes two of the tile's panels. A warp sends its sums of a panel to that block's shared memory, where
// every warpgroup has a buffer; an mbarrier counts the bytes and the warps. Sums stay fragments: for eight tokens, lane
// l = 4g + t has rows g and g + 8 of tokens 2t and 2t + 1. Buffers and barriers alternate between two tiles: a warp may
// send for a tile once all warps have read the tile before the last. If a cluster processes a single tile, there is one
// buffer.
#pragma once

#include "kernels/gemm/prefill_wgmma.h"
#include "kernels/gemm/activation.cuh"
#include "kernels/gemm/heads_epilogue.cuh"
#include "kernels/gemm/pipeline.cuh"
#include "kernels/gemm/skinny_wgmma.h"
#include "kernels/gemm/targets.cuh"
#include "kernels/instructions.cuh"

namespace mr::cuda {

template <int32_t tokens>
struct SkinnyReductionLayout {
  static constexpr int32_t eights = tokens / 8, fragment = 512;  // bytes of 16 rows and eight tokens
  static constexpr int32_t plane = eights * fragment;            // of a panel, from one warpgroup
  static constexpr int32_t bytes = 2 * 4 * plane;
  static constexpr int32_t tiles = tokens == kSkinnyMaxTokens ? 1 : 2;  // tiles that have buffers
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ends_heads: whether the kernel has the epilogue kHeads.
template <class A, int32_t tokens, bool ends_heads>
struct SkinnyReduction {
  using Layout = SkinnyReductionLayout<tokens>;
  using Sums = float[tokens / 2];

  const WgmmaParams& p;
  uint32_t memory, sums_ready;  // Layout::tiles buffers, and two barriers
  int32_t rank, group, warp, lane;
  int32_t sent = 0, ended = 0;  // index of the buffer of the next tile to send, and to finish
  uint32_t phase = 0;

  // Returns the block that finishes a panel of a tile, and the panel's index there. Gate and up of one row meet in one
  // block.
  __device__ __forceinline__ int32_t owner_of(int32_t panel) const { return p.pair ? panel % 2 : panel / 2; }
  __device__ __forceinline__ int32_t place_of(int32_t panel) const { return p.pair ? panel / 2 : panel % 2; }

  // Sends this warp's sums of a tile.
  __device__ __forceinline__ void send(const Sums& sums) {
    const int32_t panel = warp % 4, owner = owner_of(panel), source = rank * 2 + group;
    const uint32_t to = remote(memory + sent * Layout::bytes + (place_of(panel) * 4 + source) * Layout::plane + lane * 16, owner);
    const uint32_t barrier = remote(sums_ready + sent * 8, owner);
    if (warp == 0 && lane == 0) barrier_expect(sums_ready + sent * 8, Layout::bytes);
#pragma unroll
    for (int32_t n = 0; n < Layout::eights; ++n) {
      store_async(to + n * Layout::fragment, sums[n * 4], sums[n * 4 + 1], sums[n * 4 + 2], sums[n * 4 + 3], barrier);
    }
    __syncwarp();
    if (lane < kSkinnyCluster) barrier_arrive_at(sums_ready + sent * 8, lane);
    sent ^= 1;
  }

  // Finishes a tile. Tiles must be finished once each, in the order in which they were sent.
  __device__ __forceinline__ void end(int32_t item) {
    if (p.pair) {
      barrier_wait(sums_ready + ended * 8, phase);
      end_pair(item);
    } else if (ends_heads && p.epilogue == Epilogue::kHeads) {
      end_rows<HeadsEnd>(item);
    } else {
      end_rows<RowsEnd>(item);
    }
    ended ^= 1;
    if (ended == 0) phase ^= 1;
  }

  // Adds the four warpgroups' sums of a fragment as a balanced tree.
  __device__ __forceinline__ void reduced(float (&y)[4], int32_t place, int32_t n) const {
    const uint32_t from = memory + ended * Layout::bytes + place * 4 * Layout::plane + n * Layout::fragment + lane * 16;
    float v[4][4];
#pragma unroll
    for (int32_t s = 0; s < 4; ++s) {
      const uint4 bits = load_shared16(from + s * Layout::plane);
      v[s][0] = __uint_as_float(bits.x);
      v[s][1] = __uint_as_float(bits.y);
      v[s][2] = __uint_as_float(bits.z);
      v[s][3] = __uint_as_float(bits.w);
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) y[i] = (v[0][i] + v[1][i]) + (v[2][i] + v[3][i]);
  }

  // RowsEnd stores a fragment as f32, or adds it to the residual, which is loaded ahead of the sums (Ahead). row and token: of a
  // lane's first sum.
  struct RowsEnd {
    using Ahead = float[4];
    const WgmmaParams& p;
    const KernelTarget& target;

    template <class F>
    __device__ __forceinline__ void each(int32_t row, int32_t token, F&& call) const {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t r = row + i / 2 * 8, t = token + i % 2;
        if (r < target.rows && t < p.tokens) call(i, static_cast<float*>(target.out)[t * target.out_stride + r]);
      }
    }
    __device__ __forceinline__ void load(Ahead& before, int32_t row, int32_t token, int32_t) const {
      if (p.epilogue == Epilogue::kAddF32) each(row, token, [&](int32_t i, const float& out) { before[i] = out; });
    }
    __device__ __forceinline__ void store(const Ahead& before, int32_t row, int32_t token, int32_t, const float (&y)[4]) const {
      each(row, token, [&](int32_t i, float& out) { out = p.epilogue == Epilogue::kAddF32 ? before[i] + y[i] : y[i]; });
    }
  };

  // HeadsEnd stores a fragment of queries, keys or values. The lanes of rows g and g + 1, g even, have two tokens of each; the
  // first takes both rows of one token, the other those of the next.
  struct HeadsEnd {
    using Ahead = HeadsPairs::Token;
    const WgmmaParams& p;
    const KernelTarget& target;

    __device__ __forceinline__ void load(Ahead& out, int32_t row, int32_t token, int32_t lane) const {
      const int32_t odd = lane / 4 % 2, own = token + odd;
      if (row < target.rows && own < p.tokens) HeadsPairs(p.heads, target, row - odd).load(out, own);
    }
    __device__ __forceinline__ void store(const Ahead& from, int32_t row, int32_t token, int32_t lane, const float (&y)[4]) const {
      const int32_t odd = lane / 4 % 2, own = token + odd;
      const float first = __shfl_xor_sync(0xffffffffu, odd ? y[0] : y[1], 4), second = __shfl_xor_sync(0xffffffffu, odd ? y[2] : y[3], 4);
      const float pairs[4] = {odd ? first : y[0], odd ? y[1] : first, odd ? second : y[2], odd ? y[3] : second};
      if (row < target.rows && own < p.tokens) HeadsPairs(p.heads, target, row - odd).store(from, own, pairs);
    }
  };

  template <class End>
  __device__ __forceinline__ void end_rows(int32_t item) const {
    const int32_t tile = item / p.token_tiles, token0 = item % p.token_tiles * tokens + lane % 4 * 2;
    int32_t within;
    const KernelTarget& target = target_of(p, tile, within);
    const End end{p, target};
    const int32_t row0 = (within * kSkinnyPanels + rank * 2) * kPanelRows + lane / 4;
    // The fragments of the two panels are dealt to the eight warps.
    constexpr int32_t all = 2 * Layout::eights, most = (all + 7) / 8;
    typename End::Ahead ahead[most];
    const auto each = [&](auto&& call) {
#pragma unroll
      for (int32_t k = 0; k < most; ++k) {
        const int32_t index = warp + k * 8, place = index / Layout::eights, n = index % Layout::eights;
        if (all % 8 == 0 || index < all) call(k, place, n, row0 + place * kPanelRows, token0 + n * 8);
      }
    };
    each([&](int32_t k, int32_t, int32_t, int32_t row, int32_t token) { end.load(ahead[k], row, token, lane); });
    barrier_wait(sums_ready + ended * 8, phase);
    each([&](int32_t k, int32_t place, int32_t n, int32_t row, int32_t token) {
      float y[4];
      reduced(y, place, n);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t r = row + i / 2 * 8;
        y[i] *= p.x_scale;
        if (target.bias != nullptr && r < target.rows) y[i] += target.bias[r];
      }
      end.store(ahead[k], row, token, lane, y);
    });
  }

  __device__ __forceinline__ void end_pair(int32_t item) const {
    const int32_t left = p.tokens - item % p.token_tiles * tokens;
#pragma unroll 1
    for (int32_t n = warp; n < Layout::eights && n * 8 < left; n += 8) end_pair(item, n);
  }

  // Finishes the fragment of tokens [8 n, 8 n + 8).
  __device__ __forceinline__ void end_pair(int32_t item, int32_t n) const {
    const int32_t tile = item / p.token_tiles, token = item % p.token_tiles * tokens + n * 8 + lane % 4 * 2;
    const int32_t row = tile * (kSkinnyPanels / 2 * kPanelRows) + rank * kPanelRows + lane / 4;
    const KernelTarget& target = p.targets[0];
    float gate[4], up[4];
    reduced(gate, 0, n);
    reduced(up, 1, n);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t r = min(row + i / 2 * 8, target.rows - 1);
      gate[i] *= p.x_scale;
      up[i] *= p.x_scale;
      if (target.bias != nullptr) gate[i] += target.bias[r];
      if (p.targets[1].bias != nullptr) up[i] += p.targets[1].bias[r];
    }
    activate_each(gate, p.gelu != 0);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t r = row + i / 2 * 8, t = token + i % 2;
      if (r >= target.rows || t >= p.tokens) continue;
      static_cast<A*>(target.out)[t * target.out_stride + r] = A(gate[i] * up[i] * p.pair_share);
    }
  }
};

#endif

}  // namespace mr::cuda
