// prefill_end: what becomes of a tile's sums in the prefill class. Of a pair half of the warps hold the gate's rows, the others the up's.
//
// Results are gathered in stages that the ring lends (PrefillRings::lend), a piece of the tile's tokens at a time, and go out from there by
// tensor maps, while the next tile's units already arrive in other stages. Where outputs do not lie as maps need, threads write their own.
#pragma once

#include "kernels/act.cuh"
#include "kernels/linear/prefill_rings.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// x / (1 + e^-x). Both approximations are good to 2^-20 where the result is not lost in its rounding; what they flush is lost beside 1, or is 0.
__device__ __forceinline__ float silu(float x) {
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
  return x * inverse;
}

template <int32_t T, class A, int32_t rows, int32_t tokens>
struct PrefillEnd {
  using Rings = PrefillRings<T, rows, tokens>;
  using Layout = typename Rings::Layout;
  using Place = typename Rings::Place;
  using Sums = float[tokens / 2];
  static constexpr int32_t half_panels = Layout::panels / 2;

  const PrefillParams& p;
  const Rings& rings;
  int32_t owed = -1;  // the lent stage that this warp gives back once its stores have read it; none: -1
  int32_t untold = -1;  // the part whose stores have been asked for and of which nobody has been told; none: -1

  // This warp's panel of a part of a tile, which may lie past the last; half: of a tile of a pair whose first half of tokens alone has sums;
  // `at`: the first stage behind the part's units.
  __device__ __forceinline__ void finish(const Sums& sums, int32_t tile, int32_t token0, int32_t part, bool half, Place& at) {
    if (tile >= p.tiles) return rings.pass(at);
    switch (p.end) {
      case ProductEnd::kStoreF32: return end_rows<ProductEnd::kStoreF32>(sums, tile, token0, part, at);
      case ProductEnd::kAddF32: return end_rows<ProductEnd::kAddF32>(sums, tile, token0, part, at);
      case ProductEnd::kStoreAct: return end_rows<ProductEnd::kStoreAct>(sums, tile, token0, part, at);
      case ProductEnd::kSwiGLU:
        // The gate's warps keep the first half of the tokens.
        if (rings.panel < half_panels) return end_half<true>(sums, tile, token0, true, at);
        return end_half<false>(sums, tile, token0, !half, at);
      case ProductEnd::kHeads: return rings.pass(at);
    }
  }

  // Gives back the last lent stage.
  __device__ __forceinline__ void settle() {
    if (owed < 0) return;
    if (elected()) stores_wait_read<0>();
    rings.release(owed);
    owed = -1;
  }

  // Tells those who wait for a part that it has been stored, once its stores have been written: the warp that asked for them.
  __device__ __forceinline__ void announce() {
    if (untold < 0) return;
    if (rings.panel % 4 == 0 && elected()) {
      stores_wait();
      rings.parts.announce(rings.panel / 4, untold);
    }
    __syncwarp();
    untold = -1;
  }

  // Before the block ends: what was stored has been written.
  __device__ __forceinline__ void close() {
    if (elected()) stores_wait();
    __syncwarp();
    announce();
  }

 private:
  __device__ __forceinline__ int32_t g() const { return rings.lane / 4; }
  __device__ __forceinline__ int32_t t() const { return rings.lane % 4; }

  // Gives a lent stage back: at once, or where this warp has asked for its stores, with the next.
  __device__ __forceinline__ void give_back(int32_t stage, bool stores) {
    if (!stores) return rings.release(stage);
    if (owed >= 0) {
      if (elected()) stores_wait_read<1>();
      rings.release(owed);
    }
    owed = stage;
  }

  // Where this thread's column of a matrix begins (store_columns), in results of `width` bytes of rows a token, 128 or 64, whose 16-byte
  // pieces lie as the map's boxes have them; w: the warp's sixteen rows.
  template <int32_t width>
  __device__ __forceinline__ uint32_t column(int32_t w) const {
    const int32_t token = rings.lane / 16 * 8 + rings.lane % 8, turned = width == 128 ? token % 8 : token / 2 % 4;
    return static_cast<uint32_t>(token * width + ((w * 2 + rings.lane / 8 % 2) ^ turned) * 16);
  }

  // Scales are powers of two: their products are exact.
  __device__ __forceinline__ static float scaled(float sum, float scale, float bias) { return fmaf(sum, scale, bias); }

  // What rows row and row + 8 get, with the first part.
  __device__ __forceinline__ void biases(const DecodeTarget& target, int32_t row, float (&bias)[2], int32_t part = 0) const {
    bias[0] = bias[1] = 0;
    if (target.bias == nullptr || part > 0) return;
    if (row < target.rows) bias[0] = target.bias[row];
    if (row + 8 < target.rows) bias[1] = target.bias[row + 8];
  }

  // A part of a tile of one weight, 64 rows a warpgroup.
  template <ProductEnd kind>
  __device__ __forceinline__ void end_rows(const Sums& sums, int32_t tile, int32_t token0, int32_t part, Place& at) {
    int32_t index;
    const int32_t first = rings.first_row(tile, index), row = first + rings.panel * kPanelRows + g();
    const int32_t group = rings.panel / 4, w = rings.panel % 4;
    const DecodeTarget& target = p.targets[index];
    float bias[2];
    biases(target, row, bias, part);
    const bool tells = kind == ProductEnd::kAddF32 && part + 1 < p.parts;
    if (!p.boxed_out) {
      // In turn, threads add to what they wrote themselves.
      const bool others = kind == ProductEnd::kAddF32 && p.beside;
      if (others && part > 0) {
        if (w == 0 && elected()) rings.parts.await(group, part);
        __syncwarp();
        named_barrier(1 + group, 128);
      }
      store_rows<kind>(target, sums, bias, row, token0 + t() * 2);
      if (others && tells) {
        named_barrier(1 + group, 128);
        untold = part;
      }
      return;
    }
    constexpr bool f32 = kind != ProductEnd::kStoreAct;
    constexpr int32_t piece = Layout::piece(kind), box = Layout::out_box(kind), lines = f32 ? 2 : 1;  // of 128 bytes a token
    // Of f32, row r of token n lies in line r / 32, in piece r / 4 % 8 ^ n % 8 of it.
    const uint32_t own = f32 ? w / 2 * (piece * 128) + t() * 256 + ((w % 2 * 4 + g() / 4) ^ t() * 2) * 16 + g() % 4 * 4 : column<128>(w);
    const auto place = [&](uint32_t to, int32_t n, int32_t i) {
      return to + (own ^ static_cast<uint32_t>(i / 2 * 32 + i % 2 * 16)) + i % 2 * 128 + n * 1024;
    };
#pragma unroll
    for (int32_t loan = 0; loan < Layout::loans(kind); ++loan, at.next()) {
      constexpr int32_t most = piece / 8, together = box / 8;
      const int32_t stage = at.stage, begin = loan * most, count = Layout::piece_tokens(kind, loan) / 8;
      const uint32_t to = rings.ring + stage * Layout::stage + group * (piece * 128 * lines);
      rings.await(at);
#pragma unroll
      for (int32_t n0 = 0; n0 < most; n0 += together) {
        if (n0 >= count) break;
        float y[together][4];
#pragma unroll
        for (int32_t n = 0; n < together; ++n) {
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            y[n][i] = scaled(sums[(begin + n0 + n) * 4 + i], p.x_scale, bias[i / 2]);
            if constexpr (kind == ProductEnd::kAddF32) y[n][i] += load_shared_float(place(to, n0 + n, i));
          }
        }
#pragma unroll
        for (int32_t n = 0; n < together; n += 2) {
          if constexpr (f32) {
#pragma unroll
            for (int32_t i = 0; i < 8; ++i) store_shared4(place(to, n0 + n + i / 4, i % 4), __float_as_uint(y[n + i / 4][i % 4]));
          } else {
            const float(&z)[4] = y[n + 1];
            store_columns(to + own + (n0 + n) * 1024, {ActOps<A>::pack(y[n][0], y[n][1]), ActOps<A>::pack(y[n][2], y[n][3]),
                                                       ActOps<A>::pack(z[0], z[1]), ActOps<A>::pack(z[2], z[3])});
          }
        }
      }
      shared_fence();
      named_barrier(1 + group, 128);
      if (w == 0 && elected()) {
        for (int32_t line = 0; line < lines; ++line) {
          for (int32_t n = 0; n < count * 8; n += box) {
            tensor_store(&rings.maps.out[index], first + group * 64 + line * 32, token0 + loan * piece + n, to + (line * piece + n) * 128);
          }
        }
        stores_commit();
      }
      __syncwarp();
      give_back(stage, w == 0);
    }
    if (tells) untold = part;
  }

  // Rows row and row + 8, of every 8 tokens from `token` on two. What is added to is read for up to 32 elements at a time.
  template <ProductEnd kind>
  __device__ __forceinline__ void store_rows(const DecodeTarget& target, const Sums& sums, const float (&bias)[2], int32_t row,
                                             int32_t token) const {
    const bool has[2] = {row < target.rows, row + 8 < target.rows};
    constexpr int32_t together = tokens < 64 ? tokens / 8 : 8;
#pragma unroll
    for (int32_t n0 = 0; n0 < tokens / 8; n0 += together) {
      float y[together][4];
#pragma unroll
      for (int32_t n = 0; n < together; ++n) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          y[n][i] = scaled(sums[(n0 + n) * 4 + i], p.x_scale, bias[i / 2]);
          const int32_t at = token + (n0 + n) * 8 + i % 2;
          if constexpr (kind == ProductEnd::kAddF32) {
            if (has[i / 2] && at < p.tokens) y[n][i] += static_cast<const float*>(target.out)[at * target.out_stride + row + i / 2 * 8];
          }
        }
      }
#pragma unroll
      for (int32_t n = 0; n < together; ++n) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t at = token + (n0 + n) * 8 + i % 2;
          if (!has[i / 2] || at >= p.tokens) continue;
          const int64_t place = at * target.out_stride + row + i / 2 * 8;
          if constexpr (kind == ProductEnd::kStoreAct) static_cast<A*>(target.out)[place] = A(y[n][i]);
          else static_cast<float*>(target.out)[place] = y[n][i];
        }
      }
    }
  }

  // A tile of a pair: each half of the warps hands the other its sums of half the tokens, and ends those that it keeps. A lent stage
  // holds what the gate's half makes of a piece, what the up's half makes, and behind them what every warp hands over. stores: whether there
  // are those tokens.
  template <bool gate>
  __device__ __forceinline__ void end_half(const Sums& sums, int32_t tile, int32_t token0, bool stores, Place& at) {
    constexpr ProductEnd kind = ProductEnd::kSwiGLU;
    constexpr int32_t half = tokens / 16, kept = gate ? 0 : half, given = gate ? half : 0;  // in eights of tokens
    constexpr int32_t piece = Layout::piece(kind), box = Layout::out_box(kind), width = half_panels * 32;
    constexpr int32_t most = piece / 8, together = box / 8;
    const int32_t within = rings.panel % half_panels, first = tile * (rows / 2), row = first + within * kPanelRows + g();
    const DecodeTarget& target = p.targets[0];
    float bias[2][2];
    biases(target, row, bias[0]);
    biases({nullptr, p.targets[1].bias, nullptr, 0, target.rows, 0, 0}, row, bias[1]);
    const float up_scale = p.x_scale * p.pair_share;
    for (float& b : bias[1]) b *= p.pair_share;
    const uint32_t own = column<width>(within);
#pragma unroll
    for (int32_t loan = 0; loan < Layout::loans(kind); ++loan, at.next()) {
      const int32_t stage = at.stage, begin = loan * most, count = Layout::piece_tokens(kind, loan) / 8;
      const uint32_t results = rings.ring + stage * Layout::stage, to = results + (gate ? 0 : piece * width);
      const uint32_t handed = results + 2 * piece * width + rings.lane * 16;
      const auto hand = [&](bool of_gate, int32_t n) { return handed + (((of_gate ? 0 : half_panels) + within) * most + n) * 512; };
      rings.await(at);
#pragma unroll
      for (int32_t n = 0; n < most; ++n) {
        if (n >= count) break;
        const int32_t from = (given + begin + n) * 4;
        store_shared16(hand(gate, n), make_uint4(__float_as_uint(sums[from]), __float_as_uint(sums[from + 1]),
                                                 __float_as_uint(sums[from + 2]), __float_as_uint(sums[from + 3])));
      }
      named_barrier(3, Layout::warps * 32);
#pragma unroll
      for (int32_t n0 = 0; n0 < most; n0 += together) {
        if (n0 >= count) break;
        uint4 taken[together];
#pragma unroll
        for (int32_t n = 0; n < together; ++n) taken[n] = load_shared16(hand(!gate, n0 + n));
        float y[together][4];
#pragma unroll
        for (int32_t n = 0; n < together; ++n) {
          const uint32_t bits[4] = {taken[n].x, taken[n].y, taken[n].z, taken[n].w};
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            const float mine = sums[(kept + begin + n0 + n) * 4 + i], other = __uint_as_float(bits[i]);
            const float y0 = scaled(gate ? mine : other, p.x_scale, bias[0][i / 2]);
            const float y1 = scaled(gate ? other : mine, up_scale, bias[1][i / 2]);
            y[n][i] = silu(y0) * y1;
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
            tensor_store(&rings.maps.out[0], first, token0 + kept * 8 + loan * piece + n, to + n * width);
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
