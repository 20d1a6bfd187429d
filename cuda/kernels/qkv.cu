// qkv: bias, QK-norm, rotation and cache write (see qkv.h for the operands).
//
// A warp takes some heads of one row; heads of Q come first, then of K, then of V. Lane l owns the pairs l, l + 32, ... of
// a head: the rotated pairs first, (p, p + rope_dims/2) for NEOX and (2p, 2p+1) for NORM, then neighbours of the rest, up
// to the padded dim. Rotation: (x c - y s, x s + y c) with products rounded before the sum. The norm sums squares over
// pairs, then lanes. No shared memory. Moves each element of qkv once and writes 2 bytes for it. How many heads a warp
// takes depends on the number of rows and changes no bits. Slots, positions and tables are read before the dependency
// wait: no kernel directly before this one writes them.
#include "kernels/act.cuh"
#include "kernels/qkv.h"
#include "millrace/engine.h"

namespace mr::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMostPairs = 4;  // of a lane: padded_dim <= 256

// What the heads of one row share.
struct RowPlace {
  int64_t row, at;  // at: element offset of the row's place for kv head 0 in keys and values
  int32_t slot;
};

template <class X, class T>
__device__ __forceinline__ void finish_head(const FinishQkvArgs& a, const RowPlace& place, int32_t head, int lane) {
  const int32_t dim = a.layout.head_dim, padded = a.layout.padded_dim, kv_heads = a.layout.kv_heads;
  const bool query = head < a.heads, value = head >= a.heads + kv_heads;
  const int32_t own = query ? head : value ? head - a.heads - kv_heads : head - a.heads;
  if (!query && place.slot < 0) return;
  T* const out = query ? static_cast<T*>(a.q_out) + place.row * a.q_stride + static_cast<int64_t>(own) * padded
                       : static_cast<T*>(value ? a.values : a.keys) + place.at + own * a.layout.head_elements();
  const X* const in = static_cast<const X*>(a.qkv) + place.row * a.qkv_stride + static_cast<int64_t>(head) * dim;
  const float* bias = query ? a.q_bias : value ? a.v_bias : a.k_bias;
  if (bias != nullptr) bias += static_cast<int64_t>(own) * dim;
  const float* const norm = query ? a.q_norm : value ? nullptr : a.k_norm;
  const int32_t half = a.rope_dims / 2;

  float x[kMostPairs], y[kMostPairs];
  int32_t first[kMostPairs], second[kMostPairs];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kMostPairs; ++k) {
    const int32_t p = lane + 32 * k;
    x[k] = y[k] = 0;
    if (p >= padded / 2) continue;
    const bool apart = p < half && a.rope_style == MR_ROPE_NEOX;
    first[k] = apart ? p : 2 * p;
    second[k] = apart ? p + half : 2 * p + 1;
    if (place.slot >= 0 && first[k] < dim) x[k] = load_f32(in + first[k]) + (bias == nullptr ? 0.0f : bias[first[k]]);
    if (place.slot >= 0 && second[k] < dim) y[k] = load_f32(in + second[k]) + (bias == nullptr ? 0.0f : bias[second[k]]);
    sum = fmaf(y[k], y[k], fmaf(x[k], x[k], sum));
  }
  float factor = 1;
  if (norm != nullptr) factor = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + a.norm_eps);
  const float* const turns = a.turns + place.row * a.rope_dims;
#pragma unroll
  for (int k = 0; k < kMostPairs; ++k) {
    const int32_t p = lane + 32 * k;
    if (p >= padded / 2) continue;
    if (norm != nullptr) {
      x[k] = first[k] < dim ? x[k] * factor * norm[first[k]] : 0.0f;
      y[k] = second[k] < dim ? y[k] * factor * norm[second[k]] : 0.0f;
    }
    if (!value && p < half) {
      const float c = turns[p], s = turns[half + p], u = x[k], v = y[k];
      x[k] = u * c - v * s;
      y[k] = u * s + v * c;
    }
    out[first[k]] = ActOps<T>::from(x[k]);
    out[second[k]] = ActOps<T>::from(y[k]);
  }
}

template <class X, class T>
__global__ void __launch_bounds__(32 * kWarps) heads_per_warp(const __grid_constant__ FinishQkvArgs a) {
  RowPlace place{blockIdx.x, 0, a.rows.slot[blockIdx.x]};
  if (place.slot >= 0) {
    const int32_t position = a.rows.position[place.row], size = a.layout.block_size;
    const int64_t block = a.rows.block_ids[a.rows.table[place.row] + position / size];
    place.at = block * a.layout.block_elements() + static_cast<int64_t>(position % size) * a.layout.padded_dim;
  }
  const int32_t all_heads = a.heads + 2 * a.layout.kv_heads;
  grid_wait();
  grid_trigger();
  for (int32_t head = blockIdx.y * kWarps + threadIdx.x / 32; head < all_heads; head += gridDim.y * kWarps)
    finish_head<X, T>(a, place, head, threadIdx.x % 32);
}

}  // namespace

cudaError_t launch_finish_qkv(const FinishQkvArgs& args, const Stream& on) {
  const int32_t dim = args.layout.head_dim;
  if (args.count < 0 || dim < 1 || args.layout.padded_dim != pad_head_dim(dim) || dim > 256 || args.rope_dims < 0 || args.rope_dims > dim ||
      args.rope_dims % 2 != 0 || args.heads < 1 || args.layout.kv_heads < 1 ||
      (args.rope_style != MR_ROPE_NORM && args.rope_style != MR_ROPE_NEOX))
    return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  const int32_t all_heads = args.heads + 2 * args.layout.kv_heads;
  const int32_t splits = args.count < 512 ? (all_heads + kWarps - 1) / kWarps : 1;
  const dim3 grid(static_cast<unsigned>(args.count), static_cast<unsigned>(splits)), block(32 * kWarps);
  return with_act(args.layout.act, [&](auto element) {
    typedef decltype(element) T;
    return launch(on, grid, block, 0, args.qkv_is_f32 ? heads_per_warp<float, T> : heads_per_warp<T, T>, args);
  });
}

}  // namespace mr::cuda
