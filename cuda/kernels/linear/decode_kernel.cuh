// decode_kernel: the decode class of products; see product.h for what it promises.
//
// The kernels of one and of eight tokens, which take more in tiles; kept_kernel.cuh is for a few whose inputs fit registers,
// wide_kernel.cuh for many. A block takes one tile of `panels` panels of 16 rows after another, and each of its 8 warps one of
// the 8 segments of the columns. A warp streams its segment's units, and the tokens', through a ring in shared memory that it
// alone fills and reads, `units` of them a stage, and does not empty it between tiles. Weights come by cp.async past the first
// level cache. Segments are joined as a balanced tree of 8 through shared memory. Gate and up are the two panels of a tile.
#pragma once

#include "kernels/linear/decode_products.cuh"
#include "kernels/linear/kept_kernel.cuh"
#include "kernels/norm_row.cuh"

namespace mr::cuda {

template <int32_t T, class A, class S>
struct DecodeBlock : DecodeProducts<T, A, S> {
  using Tile = DecodeTile<A, S>;
  using Rings = DecodeRings<T, A, S>;
  using Products = DecodeProducts<T, A, S>;
  using typename Products::Group;
  using typename Products::Sums;
  using typename Rings::Cursor;
  using typename Rings::Layout;
  using typename Rings::TokenFeed;
  using typename Rings::WeightFeed;
  using Products::multiply, Products::norms;
  using Rings::advance, Rings::aim, Rings::fill;
  using Rings::f, Rings::normed, Rings::unit_begin, Rings::unit_end;
  using Tile::finish, Tile::joins, Tile::lane, Tile::p, Tile::put, Tile::warp;

  // Writes the normed row and zeros behind it. Includes the dependency wait; weights are asked for before it.
  __device__ __forceinline__ void norm_row() const {
    static_assert(norm_warps(kMostNormed) <= kSegments, "a row is normed by the warps of one block");
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
    if (this->ends_heads()) this->aim_heads(first_item, true);
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
      float* const sums = joins + buffer * S::join;
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) put(acc[r], r, sums);
      finish(item, sums);
      if (this->ends_heads()) this->aim_heads(item + p.item_stride, false);
      buffer ^= 1;
    }
  }
};

template <int32_t T, class A, class S>
__global__ void __launch_bounds__(S::threads, S::blocks_per_sm) decode_product(const __grid_constant__ DecodeParams p) {
  using Layout = DecodeLayout<T, A, S, kDecodeRoom>;
  extern __shared__ __align__(128) uint8_t ring[];
  DecodeBlock<T, A, S> block{{{{p}}}};
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
            return decode_bytes(capability, [](auto room) { return DecodeLayout<T, A, S, decltype(room)::value>::bytes; });
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
  constexpr bool number = Format<T>::is_float, folds = kFolds<T, A>;
  constexpr int32_t blocks = T == kF32 ? 1 : 2, most = number ? 1 : 4;
  switch (form) {
    case DecodeForm::kSingle1: return fitting<T, A, 1, 1, number ? 2 : 4, blocks>();
    case DecodeForm::kPair1: return fitting<T, A, 2, 1, Format<T>::superblock ? 2 : most, blocks>();
    case DecodeForm::kSingle8: return fitting<T, A, 1, 8, most, blocks>();
    case DecodeForm::kPair8: return fitting<T, A, 2, 8, most, blocks>();
    case DecodeForm::kDouble8:
      if constexpr (folds) return fitting<T, A, 2, 8, 2, 1>();
      break;
    case DecodeForm::kKeptSingle8:
      if constexpr (folds) return kept_kernel<T, 1>();
      break;
    case DecodeForm::kKeptPair8:
      if constexpr (folds) return kept_kernel<T, 2>();
      break;
  }
  return {};
}

}  // namespace mr::cuda
