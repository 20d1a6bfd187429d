// prefill_wgmma_epilogue: the epilogue of the prefill class. Of a pair, half of the warps hold the gate's rows and the
// others the up's.
//
// Results are collected in stages of the pipeline that the producer sets aside (fill_epilogue_stages), a piece of the
// tile's tokens at a time, and leave by TMA stores while the next tile's units already arrive in other stages. If
// outputs are not aligned for TMA, threads write their own elements.
#pragma once

#include "kernels/act.cuh"
#include "kernels/gemm/activation.cuh"
#include "kernels/gemm/prefill_wgmma_pipeline.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// x / (1 + e^-u). Both approximations are good to 2^-20 unless the result is lost in rounding; what they flush to zero
// would vanish when added to 1, or is 0 anyway.
__device__ __forceinline__ float activated(float x, bool gelu) {
  const float u = gelu ? gelu_argument(x) : x;
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(u * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
  return x * inverse;
}

template <int32_t T, class A, int32_t rows, int32_t tokens>
struct PrefillEpilogue {
  using Pipeline = PrefillPipeline<T, rows, tokens>;
  using Layout = typename Pipeline::Layout;
  using StageCursor = typename Pipeline::StageCursor;
  using Sums = float[tokens / 2];
  static constexpr int32_t half_panels = Layout::panels / 2;

  const WgmmaParams& p;
  const Pipeline& pipeline;
  int32_t unreleased = -1;  // epilogue stage to release once its stores have read it; -1: none
  int32_t unannounced = -1;  // partition whose stores were issued but not announced; -1: none

  // Finishes this warp's panel of a partition of a tile, which may lie past the last. half: a tile of a pair of which
  // only the first half of the tokens has sums. cursor: the first stage after the partition's units.
  __device__ __forceinline__ void finish(const Sums& sums, int32_t tile, int32_t token0, int32_t partition, bool half,
                                         StageCursor& cursor) {
    if (tile >= p.tiles) return pipeline.pass(cursor);
    if (!p.pair) return end_rows(sums, tile, token0, partition, cursor);
    // The gate's warps finish the first half of the tokens.
    const bool gate = pipeline.panel < half_panels;
    end_half(sums, gate, tile, token0, gate || !half, cursor);
  }

  // Releases the last epilogue stage.
  __device__ __forceinline__ void settle() {
    if (unreleased < 0) return;
    if (elected()) stores_wait_read<0>();
    pipeline.release(unreleased);
    unreleased = -1;
  }

  // Announces that a partition has been stored, once its stores have completed. The warp that issued them does it.
  __device__ __forceinline__ void announce() {
    if (unannounced < 0) return;
    if (pipeline.panel % 4 == 0 && elected()) {
      stores_wait();
      pipeline.partitions.announce(pipeline.panel / 4, unannounced);
    }
    __syncwarp();
    unannounced = -1;
  }

  // Must run before the block ends, so that all stores have completed.
  __device__ __forceinline__ void close() {
    if (elected()) stores_wait();
    __syncwarp();
    announce();
  }

 private:
  __device__ __forceinline__ int32_t g() const { return pipeline.lane / 4; }
  __device__ __forceinline__ int32_t t() const { return pipeline.lane % 4; }

  // Releases an epilogue stage: at once, or with the next one if this warp has issued stores from it.
  __device__ __forceinline__ void give_back(int32_t stage, bool stores) {
    if (!stores) return pipeline.release(stage);
    if (unreleased >= 0) {
      if (elected()) stores_wait_read<1>();
      pipeline.release(unreleased);
    }
    unreleased = stage;
  }

  // Address of this thread's column of a matrix (store_columns), in results of `width` bytes of rows for each token,
  // 128 or 64, swizzled as the boxes of the map are; w: the warp's sixteen rows.
  template <int32_t width>
  __device__ __forceinline__ uint32_t column(int32_t w) const {
    const int32_t token = pipeline.lane / 16 * 8 + pipeline.lane % 8, turned = width == 128 ? token % 8 : token / 2 % 4;
    return static_cast<uint32_t>(token * width + ((w * 2 + pipeline.lane / 8 % 2) ^ turned) * 16);
  }

  // Scales are powers of two, so the product is exact and fmaf rounds once, like an addition.
  __device__ __forceinline__ static float scaled(float sum, float scale, float bias) { return fmaf(sum, scale, bias); }

  // Loads the biases of rows row and row + 8; they are added with the first partition.
  __device__ __forceinline__ void biases(const KernelTarget& target, int32_t row, float (&bias)[2], int32_t partition = 0) const {
    bias[0] = bias[1] = 0;
    if (target.bias == nullptr || partition > 0) return;
    if (row < target.rows) bias[0] = target.bias[row];
    if (row + 8 < target.rows) bias[1] = target.bias[row + 8];
  }

  // Finishes a partition of a tile of one weight, 64 rows for each warpgroup.
  __device__ __forceinline__ void end_rows(const Sums& sums, int32_t tile, int32_t token0, int32_t partition, StageCursor& cursor) {
    int32_t index;
    const int32_t first = pipeline.first_row(tile, index), row = first + pipeline.panel * kPanelRows + g();
    const int32_t group = pipeline.panel / 4, w = pipeline.panel % 4;
    const KernelTarget& target = p.targets[index];
    float bias[2];
    biases(target, row, bias, partition);
    const bool adds = p.epilogue == Epilogue::kAddF32, announces = adds && partition + 1 < p.partitions;
    if (!p.boxed_out) {
      // If one block does all partitions of a tile, its threads add to what they wrote themselves and need no
      // semaphore.
      const bool others = adds && p.concurrent;
      if (others && partition > 0) {
        if (w == 0 && elected()) pipeline.partitions.await(group, partition);
        __syncwarp();
        named_barrier(1 + group, 128);
      }
      store_rows(target, sums, bias, row, token0 + t() * 2);
      if (others && announces) {
        named_barrier(1 + group, 128);
        unannounced = partition;
      }
      return;
    }
    constexpr int32_t piece = Layout::piece(false), box = Layout::out_box(false), lines = 2;  // of 128 bytes a token
    // Row r of token n is in line r / 32, in the 16-byte piece r / 4 % 8 ^ n % 8 of it.
    const uint32_t own = w / 2 * (piece * 128) + t() * 256 + ((w % 2 * 4 + g() / 4) ^ t() * 2) * 16 + g() % 4 * 4;
    const auto place = [&](uint32_t to, int32_t n, int32_t i) {
      return to + (own ^ static_cast<uint32_t>(i / 2 * 32 + i % 2 * 16)) + i % 2 * 128 + n * 1024;
    };
#pragma unroll
    for (int32_t epilogue_stage = 0; epilogue_stage < Layout::epilogue_stages(false); ++epilogue_stage, cursor.next()) {
      constexpr int32_t most = piece / 8, together = box / 8;
      const int32_t stage = cursor.stage, begin = epilogue_stage * most, count = Layout::piece_tokens(false, epilogue_stage) / 8;
      const uint32_t to = pipeline.stage_memory + stage * Layout::stage + group * (piece * 128 * lines);
      pipeline.await(cursor);
#pragma unroll
      for (int32_t n0 = 0; n0 < most; n0 += together) {
        if (n0 >= count) break;
        float y[together][4];
#pragma unroll
        for (int32_t n = 0; n < together; ++n) {
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            y[n][i] = scaled(sums[(begin + n0 + n) * 4 + i], p.x_scale, bias[i / 2]);
            if (adds) y[n][i] += load_shared_float(place(to, n0 + n, i));
          }
        }
#pragma unroll
        for (int32_t n = 0; n < together; n += 2) {
#pragma unroll
          for (int32_t i = 0; i < 8; ++i) store_shared4(place(to, n0 + n + i / 4, i % 4), __float_as_uint(y[n + i / 4][i % 4]));
        }
      }
      shared_fence();
      named_barrier(1 + group, 128);
      if (w == 0 && elected()) {
        for (int32_t line = 0; line < lines; ++line) {
          for (int32_t n = 0; n < count * 8; n += box) {
            tensor_store(&pipeline.maps.out[index], first + group * 64 + line * 32, token0 + epilogue_stage * piece + n,
                         to + (line * piece + n) * 128);
          }
        }
        stores_commit();
      }
      __syncwarp();
      give_back(stage, w == 0);
    }
    if (announces) unannounced = partition;
  }

  // Writes rows row and row + 8 of two tokens in every eight, from `token` on. The residual is read for up to 32
  // elements at a time.
  __device__ __forceinline__ void store_rows(const KernelTarget& target, const Sums& sums, const float (&bias)[2], int32_t row,
                                             int32_t token) const {
    const bool has[2] = {row < target.rows, row + 8 < target.rows};
    constexpr int32_t together = 8;
#pragma unroll
    for (int32_t n0 = 0; n0 < tokens / 8; n0 += together) {
      float y[together][4];
#pragma unroll
      for (int32_t n = 0; n < together; ++n) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          y[n][i] = scaled(sums[(n0 + n) * 4 + i], p.x_scale, bias[i / 2]);
          const int32_t token_index = token + (n0 + n) * 8 + i % 2;
          if (p.epilogue == Epilogue::kAddF32 && has[i / 2] && token_index < p.tokens)
            y[n][i] += static_cast<const float*>(target.out)[token_index * target.out_stride + row + i / 2 * 8];
        }
      }
#pragma unroll
      for (int32_t n = 0; n < together; ++n) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t token_index = token + (n0 + n) * 8 + i % 2;
          if (!has[i / 2] || token_index >= p.tokens) continue;
          const int64_t place = token_index * target.out_stride + row + i / 2 * 8;
          static_cast<float*>(target.out)[place] = y[n][i];
        }
      }
    }
  }

  // Finishes a tile of a pair: each half of the warps hands the other its sums of half of the tokens, and finishes the
  // rest. An epilogue stage holds the results of the gate's half for a piece, those of the up's half, and then what
  // every warp hands over. gate: whether this warp has the gate's rows. stores: whether those tokens exist.
  __device__ __forceinline__ void end_half(const Sums& sums, bool gate, int32_t tile, int32_t token0, bool stores, StageCursor& cursor) {
    constexpr int32_t half = tokens / 16;  // in units of eight tokens
    const int32_t kept = gate ? 0 : half;
    // Returns sum i of eight tokens n of the half that this warp keeps, or gives. Both are selected from registers.
    const auto of_kept = [&](int32_t n, int32_t i) { return gate ? sums[n * 4 + i] : sums[(half + n) * 4 + i]; };
    const auto of_given = [&](int32_t n, int32_t i) { return gate ? sums[(half + n) * 4 + i] : sums[n * 4 + i]; };
    constexpr int32_t piece = Layout::piece(true), box = Layout::out_box(true), width = half_panels * 32;
    constexpr int32_t most = piece / 8, together = box / 8;
    const int32_t within = pipeline.panel % half_panels, first = tile * (rows / 2), row = first + within * kPanelRows + g();
    const KernelTarget& target = p.targets[0];
    float bias[2][2];
    biases(target, row, bias[0]);
    biases({nullptr, p.targets[1].bias, nullptr, 0, target.rows, 0, 0}, row, bias[1]);
    const float up_scale = p.x_scale * p.pair_share;
    for (float& b : bias[1]) b *= p.pair_share;
    const uint32_t own = column<width>(within);
#pragma unroll
    for (int32_t epilogue_stage = 0; epilogue_stage < Layout::epilogue_stages(true); ++epilogue_stage, cursor.next()) {
      const int32_t stage = cursor.stage, begin = epilogue_stage * most, count = Layout::piece_tokens(true, epilogue_stage) / 8;
      const uint32_t results = pipeline.stage_memory + stage * Layout::stage, to = results + (gate ? 0 : piece * width);
      const uint32_t handoff = results + 2 * piece * width + pipeline.lane * 16;
      const auto hand = [&](bool of_gate, int32_t n) { return handoff + (((of_gate ? 0 : half_panels) + within) * most + n) * 512; };
      pipeline.await(cursor);
#pragma unroll
      for (int32_t n = 0; n < most; ++n) {
        if (n >= count) break;
        const int32_t from = begin + n;
        store_shared16(hand(gate, n), make_uint4(__float_as_uint(of_given(from, 0)), __float_as_uint(of_given(from, 1)),
                                                 __float_as_uint(of_given(from, 2)), __float_as_uint(of_given(from, 3))));
      }
      named_barrier(3, Layout::warps * 32);
#pragma unroll
      for (int32_t n0 = 0; n0 < most; n0 += together) {
        if (n0 >= count) break;
        uint4 consumed[together];
#pragma unroll
        for (int32_t n = 0; n < together; ++n) consumed[n] = load_shared16(hand(!gate, n0 + n));
        float y[together][4];
#pragma unroll
        for (int32_t n = 0; n < together; ++n) {
          const uint32_t bits[4] = {consumed[n].x, consumed[n].y, consumed[n].z, consumed[n].w};
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            const float mine = of_kept(begin + n0 + n, i), other = __uint_as_float(bits[i]);
            const float y0 = scaled(gate ? mine : other, p.x_scale, bias[0][i / 2]);
            const float y1 = scaled(gate ? other : mine, up_scale, bias[1][i / 2]);
            y[n][i] = activated(y0, p.gelu != 0) * y1;
          }
        }
        if (p.boxed_out) {
#pragma unroll
          for (int32_t n = 0; n < together; n += 2) {
            const float(&z)[4] = y[n + 1];
            store_columns(to + own + (n0 + n) * 8 * width, {ActOps<A>::pack(y[n][0], y[n][1]), ActOps<A>::pack(y[n][2], y[n][3]),
                                                            ActOps<A>::pack(z[0], z[1]), ActOps<A>::pack(z[2], z[3])});
          }
          continue;
        }
#pragma unroll
        for (int32_t n = 0; n < together; ++n) {
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            const int32_t token = token0 + (kept + begin + n0 + n) * 8 + t() * 2 + i % 2;
            if (stores && row + i / 2 * 8 < target.rows && token < p.tokens) {
              static_cast<A*>(target.out)[token * target.out_stride + row + i / 2 * 8] = A(y[n][i]);
            }
          }
        }
      }
      shared_fence();
      if (p.boxed_out) {
        named_barrier(gate ? 1 : 2, half_panels * 32);
        if (stores && within == 0 && elected()) {
          for (int32_t n = 0; n < count * 8; n += box)
            tensor_store(&pipeline.maps.out[0], first, token0 + kept * 8 + epilogue_stage * piece + n, to + n * width);
          stores_commit();
        }
        __syncwarp();
      }
      give_back(stage, stores && p.boxed_out != 0 && within == 0);
    }
  }
};

#endif

}  // namespace mr::cuda
