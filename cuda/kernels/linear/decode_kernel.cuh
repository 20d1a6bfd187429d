// decode_kernel: the decode class of products; see product.h for what it promises.
//
// The kernels of one and of eight tokens, which take more in tiles; wide_kernel.cuh is for many. A block takes one tile of
// `panels` panels of 16 rows after another, and each of its 8 warps one of the 8 segments of the columns. A warp streams its
// segment's units, and the tokens', through a ring in shared memory that it alone fills and reads, `units` of them a stage,
// and does not empty it between tiles. Weights come by cp.async past the first level cache. Segments are joined as a balanced
// tree of 8 through shared memory. Gate and up are the two panels of a tile.
#pragma once

#include "kernels/linear/decode_products.cuh"
#include "kernels/norm_row.cuh"

namespace mr::cuda {

template <int32_t T, class A, class S>
struct DecodeBlock : DecodeProducts<T, A, S> {
  using Rings = DecodeRings<T, A, S>;
  using Products = DecodeProducts<T, A, S>;
  using typename Products::Group;
  using typename Products::Sums;
  using typename Rings::Cursor;
  using typename Rings::Layout;
  using typename Rings::TokenFeed;
  using typename Rings::WeightFeed;
  using Products::multiply, Products::norms;
  using Rings::advance, Rings::aim, Rings::fill, Rings::first_token, Rings::target_of, Rings::tile_of;
  using Rings::f, Rings::joins, Rings::lane, Rings::normed, Rings::p, Rings::unit_begin, Rings::unit_end, Rings::warp;

  // Joins the segments of a tile and hands every element to its end. buffer: one of the two, alternating; in it a plane a
  // segment, in that a column a token.
  __device__ __forceinline__ void finish(const Sums& acc, int32_t item, float* buffer) const {
    constexpr int32_t stride = Layout::join_stride, plane = Layout::columns * stride;
    if (S::tokens > 1 || lane % 4 == 0) {
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
        float* at = buffer + warp * plane + (lane & 3) * 2 * stride + r * kPanelRows + (lane >> 2);
        at[0] = acc[r][0];
        at[8] = acc[r][2];
        if constexpr (S::tokens > 1) {
          at[stride] = acc[r][1];
          at[stride + 8] = acc[r][3];
        }
      }
    }
    __syncthreads();
    each_row(item, [&](int32_t at) {
      float v[kSegments];
#pragma unroll
      for (int32_t s = 0; s < kSegments; ++s) v[s] = buffer[s * plane + at];
      return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    });
  }

  // Calls sum(place in the join buffer) for the tile's rows and ends them: one a thread.
  template <class F>
  __device__ __forceinline__ void each_row(int32_t item, F&& sum) const {
    static_assert(S::rows * S::tokens <= S::threads);
    const int32_t tile = tile_of(item), token0 = first_token(item), thread = warp * 32 + lane;
    if (thread >= S::rows * S::tokens) return;
    if (p.pair) {
      const int32_t local = thread % kPanelRows, column = thread / kPanelRows, row = tile * kPanelRows + local;
      if (column >= min(p.tokens - token0, S::tokens) || row >= p.targets[0].rows) return;
      const int32_t at = column * Layout::join_stride + local;
      return end_pair(row, token0 + column, sum(at), sum(at + kPanelRows));
    }
    int32_t within;
    const DecodeTarget& target = target_of(tile, within);
    const int32_t local = thread % S::rows, column = thread / S::rows, row = within * S::rows + local;
    if (column >= min(p.tokens - token0, S::tokens) || row >= target.rows) return;
    const int64_t at = (token0 + column) * target.out_stride + row;
    // What is added to is asked for ahead of the sum.
    const float before = p.end == ProductEnd::kAddF32 ? static_cast<const float*>(target.out)[at] : 0;
    float y = sum(column * Layout::join_stride + local);
    if (target.bias != nullptr) y += target.bias[row];
    switch (p.end) {
      case ProductEnd::kStoreF32: static_cast<float*>(target.out)[at] = y; break;
      case ProductEnd::kAddF32: static_cast<float*>(target.out)[at] = before + y; break;
      case ProductEnd::kStoreAct: static_cast<A*>(target.out)[at] = A(y); break;
      case ProductEnd::kSwiGLU: break;
    }
  }

  __device__ __forceinline__ void end_pair(int32_t row, int32_t token, float gate, float up) const {
    if (p.targets[0].bias != nullptr) gate += p.targets[0].bias[row];
    if (p.targets[1].bias != nullptr) up += p.targets[1].bias[row];
    static_cast<A*>(p.targets[0].out)[token * p.targets[0].out_stride + row] = A(gate / (1.0f + expf(-gate)) * up);
  }

  // Writes the normed row and zeros behind it. Includes the dependency wait; weights are asked for before it.
  __device__ __forceinline__ void norm_row() const {
    const int32_t thread = warp * 32 + lane, warps = norm_warps(p.cols), threads = warps * 32, groups = p.cols / 4;
    float* const scratch = joins;
    float4 weight[kNormKept], x[kNormKept];
#pragma unroll
    for (int32_t k = 0; k < kNormKept; ++k) {
      const int32_t i = thread + k * threads;
      if (warp < warps && i < groups) weight[k] = reinterpret_cast<const float4*>(p.norm.weight)[i];
    }
    grid_wait();
    grid_trigger();
    float sum = 0;
#pragma unroll
    for (int32_t k = 0; k < kNormKept; ++k) {
      const int32_t i = thread + k * threads;
      if (warp >= warps || i >= groups) continue;
      x[k] = __ldcg(reinterpret_cast<const float4*>(p.norm.x) + i);
      sum = norm_square(x[k], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) scratch[warp] = sum;
    __syncthreads();
    sum = scratch[0];
    for (int32_t w = 1; w < warps; ++w) sum += scratch[w];
    const float factor = norm_factor(sum, p.cols, p.norm.eps);
    uint2* const row = reinterpret_cast<uint2*>(normed);
#pragma unroll
    for (int32_t k = 0; k < kNormKept; ++k) {
      const int32_t i = thread + k * threads;
      if (warp < warps && i < groups) row[i] = norm_pack<A>(x[k], factor, weight[k]);
    }
    const int32_t padded = min((p.cols + 255) / 256 * 256, kMostNormed) / 4;
    if (groups + thread < padded) row[groups + thread] = make_uint2(0, 0);
    __syncthreads();
  }

  __device__ __forceinline__ void run() {
    // Segments are whole groups.
    unit_begin = p.groups * warp / kSegments * f.units;
    unit_end = p.groups * (warp + 1) / kSegments * f.units;
    const int32_t first_item = static_cast<int32_t>(blockIdx.x);
    Cursor next{unit_begin < unit_end ? first_item : p.items, unit_begin};
    WeightFeed weights;
    TokenFeed tokens;
    aim(weights, next);

    // Weights first, while the kernel before may still be writing the tokens.
    Cursor ahead = next;
#pragma unroll 1
    for (int32_t s = 0; s < Layout::stages - 1 && ahead.item < p.items; ++s) {
      fill(weights, ahead, s);
      advance(ahead, weights);
    }
    if (norms()) {
      norm_row();
    } else {
      grid_wait();
      grid_trigger();
    }
    aim(tokens, next);
#pragma unroll 1
    for (int32_t s = 0; s < Layout::stages - 1; ++s) {
      if (next.item < p.items) {
        if (!norms()) fill(tokens, next, s);
        advance(next, tokens);
      }
      copies_commit();
    }

    int32_t stage = 0, free_stage = Layout::stages - 1, buffer = 0;
#pragma unroll 1
    for (int32_t item = first_item; item < p.items; item += p.item_stride) {
      Sums acc = {};
      Group group;
#pragma unroll 1
      for (int32_t unit = unit_begin; unit < unit_end; unit += S::units) {
        copies_wait<Layout::stages - 2>();
        __syncwarp();
        if (next.item < p.items) {
          fill(weights, next, free_stage);
          if (!norms()) fill(tokens, next, free_stage);
          advance(next, weights, tokens);
        }
        copies_commit();
        multiply(acc, group, stage, unit);
        free_stage = stage;
        stage = stage + 1 == Layout::stages ? 0 : stage + 1;
      }
      finish(acc, item, joins + buffer * (Layout::join / 4));
      buffer ^= 1;
    }
  }
};

template <int32_t T, class A, class S>
__global__ void __launch_bounds__(S::threads, S::blocks_per_sm) decode_product(const __grid_constant__ DecodeParams p) {
  using Layout = DecodeLayout<T, A, S, kDecodeRoom>;
  extern __shared__ __align__(128) uint8_t ring[];
  DecodeBlock<T, A, S> block{{{p}}};
  block.shared = shared_address(ring);
  block.joins = reinterpret_cast<float*>(ring + Layout::joins_at);
  block.normed = ring + Layout::tokens_at;
  block.warp = static_cast<int32_t>(threadIdx.x) / 32;
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  block.policy = p.token_tiles > 1 ? evict_normal_policy() : evict_first_policy();
  block.run();
}

template <int32_t T, class A, class S>
DecodeKernel decode_kernel_of() {
  return {reinterpret_cast<const void*>(&decode_product<T, A, S>),
          [](int32_t capability) {
            switch (decode_room(capability)) {
              case 228: return DecodeLayout<T, A, S, 228>::bytes;
              case 164: return DecodeLayout<T, A, S, 164>::bytes;
              default: return DecodeLayout<T, A, S, 100>::bytes;
            }
          },
          S::threads, S::panels, S::tokens};
}

// The shape with the most units a stage, up to `units`, whose rings have two stages where two blocks share 228 KiB. Of one
// token the rings must fit everywhere; F32 wants more than some devices have.
template <int32_t T, class A, int32_t panels, int32_t tokens, int32_t units, int32_t blocks>
DecodeKernel fitting() {
  using S = DecodeShape<panels, tokens, units, blocks>;
  constexpr bool everywhere = tokens > 1 || T == kF32 || DecodeLayout<T, A, S, 100>::alone >= 2;
  if constexpr (DecodeLayout<T, A, S, 228>::many >= 2 && everywhere) {
    return decode_kernel_of<T, A, S>();
  } else {
    static_assert(units > 1, "the rings do not fit");
    return fitting<T, A, panels, tokens, units / 2, blocks>();
  }
}

template <int32_t T, class A>
DecodeKernel decode_kernel_for(DecodeForm form) {
  constexpr bool number = Format<T>::is_float;
  constexpr int32_t blocks = T == kF32 ? 1 : 2, most = number ? 1 : 4;
  switch (form) {
    case DecodeForm::kSingle1: return fitting<T, A, 1, 1, number ? 2 : 4, blocks>();
    case DecodeForm::kPair1: return fitting<T, A, 2, 1, Format<T>::superblock ? 2 : most, blocks>();
    case DecodeForm::kSingle8: return fitting<T, A, 1, 8, most, blocks>();
    case DecodeForm::kPair8: return fitting<T, A, 2, 8, most, blocks>();
  }
  return {};
}

}  // namespace mr::cuda
