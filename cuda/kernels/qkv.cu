// qkv: bias, QK-norm, rotation and cache write (see qkv.h for the operands).
//
// One warp a row and head; heads of Q first, then of K, then of V. Lane l owns the pairs l, l + 32, ... of a head: the
// rotated pairs first, (p, p + rope_dims/2) for NEOX and (2p, 2p+1) for NORM, then neighbours of the rest, up to the
// padded dim. Rotation:
// (x c - y s, x s + y c) with products rounded before the sum. The norm sums squares over pairs, then lanes. No shared
// memory. Moves each element of qkv once and writes 2 bytes for it.
#include "kernels/act.cuh"
#include "kernels/qkv.h"
#include "millrace/engine.h"

namespace mr::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMostPairs = 4;  // of a lane: padded_dim <= 256

template <class X, class T>
__global__ void __launch_bounds__(32 * kWarps) head_per_warp(FinishQkvArgs a) {
  const int32_t dim = a.layout.head_dim, padded = a.layout.padded_dim, kv_heads = a.layout.kv_heads, all_heads = a.heads + 2 * kv_heads;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int64_t row = task / all_heads;
  const int32_t head = static_cast<int32_t>(task % all_heads);
  grid_wait();
  grid_trigger();
  if (row >= a.count) return;
  const bool query = head < a.heads, value = head >= a.heads + kv_heads;
  const int32_t own = query ? head : value ? head - a.heads - kv_heads : head - a.heads;
  const int32_t slot = a.rows.slot[row];
  T* out;
  if (query) {
    out = static_cast<T*>(a.q_out) + row * a.q_stride + static_cast<int64_t>(own) * padded;
  } else {
    if (slot < 0) return;
    const int32_t position = a.rows.position[row], size = a.layout.block_size;
    const int64_t block = a.rows.block_ids[a.rows.table[row] + position / size];
    out = static_cast<T*>(value ? a.values : a.keys) + block * a.layout.block_elements() +
          own * a.layout.head_elements() + static_cast<int64_t>(position % size) * padded;
  }
  const X* const in = static_cast<const X*>(a.qkv) + row * a.qkv_stride + static_cast<int64_t>(head) * dim;
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
    if (slot >= 0 && first[k] < dim) x[k] = load_f32(in + first[k]) + (bias == nullptr ? 0.0f : bias[first[k]]);
    if (slot >= 0 && second[k] < dim) y[k] = load_f32(in + second[k]) + (bias == nullptr ? 0.0f : bias[second[k]]);
    sum = fmaf(y[k], y[k], fmaf(x[k], x[k], sum));
  }
  float factor = 1;
  if (norm != nullptr) factor = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + a.norm_eps);
  const float* const turns = a.turns + row * a.rope_dims;
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

}  // namespace

cudaError_t launch_finish_qkv(const FinishQkvArgs& args, const Stream& on) {
  const int32_t dim = args.layout.head_dim;
  if (args.count < 0 || dim < 1 || args.layout.padded_dim != pad_head_dim(dim) || args.rope_dims < 0 || args.rope_dims > dim ||
      args.rope_dims % 2 != 0 || args.heads < 1 || args.layout.kv_heads < 1 ||
      (args.rope_style != MR_ROPE_NORM && args.rope_style != MR_ROPE_NEOX))
    return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  const int64_t tasks = static_cast<int64_t>(args.count) * (args.heads + 2 * args.layout.kv_heads);
  const dim3 grid(static_cast<unsigned>((tasks + kWarps - 1) / kWarps)), block(32 * kWarps);
  return with_act(args.layout.act, [&](auto element) {
    typedef decltype(element) T;
    return launch(on, grid, block, 0, args.qkv_is_f32 ? head_per_warp<float, T> : head_per_warp<T, T>, args);
  });
}

}  // namespace mr::cuda
