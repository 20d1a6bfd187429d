// latents: see latents.h for the operands.
//
// finish_latent  A warp has a head of Q, or the latent and its key, of one row. Lane l has the elements l, l + 32, ... of each part, and of
//                the rotated part the pairs l, l + 32, ...: (p, p + rope_dims/2) for NEOX and (2p, 2p+1) for NORM. Rotation: (x c - y s,
//                x s + y c), where products are rounded before the sum. The norm sums squares over a lane's elements in ascending order,
//                then over lanes.
// place_heads    A thread has four neighbouring elements, or one if shapes or addresses do not allow that.
// plan_heads     A thread has a pair, or a tile.
#include <algorithm>

#include "kernels/act.cuh"
#include "kernels/attention/latent.h"
#include "kernels/latents.h"
#include "millrace/engine.h"

namespace mr::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 256;

// Writes rotated pairs of `in` to `out`, and zeros from dim rope_dims to `end`.
template <class T>
__device__ __forceinline__ void rotate(const FinishLatentArgs& a, const float* table, const float* in, T* out, int32_t end, bool valid,
                                       int lane) {
  const int32_t half = a.rope_dims / 2;
  for (int32_t p = lane; p < half; p += 32) {
    const bool neox = a.rope_style == MR_ROPE_NEOX;
    const int32_t at = neox ? p : 2 * p, to = neox ? p + half : 2 * p + 1;
    const float x = valid ? in[at] : 0.0f, y = valid ? in[to] : 0.0f;
    const float cosine = valid ? table[p] : 0.0f, sine = valid ? table[half + p] : 0.0f;
    out[at] = ActOps<T>::from(ActOps<T>::bounded(x * cosine - y * sine));
    out[to] = ActOps<T>::from(ActOps<T>::bounded(x * sine + y * cosine));
  }
  for (int32_t d = a.rope_dims + lane; d < end; d += 32) out[d] = ActOps<T>::from(0.0f);
}

template <class T>
__device__ __forceinline__ void finish_query(const FinishLatentArgs& a, int64_t row, int32_t head, const float* table, bool valid,
                                             int lane) {
  const float* const in = a.queries + row * a.queries_stride + static_cast<int64_t>(head) * a.key_dim;
  const int32_t plain = a.key_dim - a.rope_dims;
  uint16_t* const to = static_cast<uint16_t*>(a.plain) + (row * a.heads + head) * a.plain_stride;
  for (int32_t d = lane; d < plain; d += 32) to[d] = act_bits(a.plain_act, valid ? in[d] : 0.0f);
  T* const q = static_cast<T*>(a.q) + row * a.q_stride + static_cast<int64_t>(head) * a.layout.padded_dim + a.latent;
  rotate(a, table, in + plain, q, a.layout.padded_dim - a.latent, valid, lane);
}

template <class T>
__device__ __forceinline__ void cache_latent(const FinishLatentArgs& a, int64_t row, const float* table, int lane) {
  const KvLayout& l = a.layout;
  const float* const in = a.cached + row * a.cached_stride;
  const int32_t position = a.rows.position[row];
  const int64_t block = a.rows.block_ids[a.rows.table[row] + position / l.block_size];
  T* const to = static_cast<T*>(a.keys) + block * l.block_elements() + static_cast<int64_t>(position % l.block_size) * l.padded_dim;
  float sum = 0;
  for (int32_t d = lane; d < a.latent; d += 32) sum = fmaf(in[d], in[d], sum);
  const float factor = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(a.latent) + a.norm_eps);
  for (int32_t d = lane; d < a.latent; d += 32) to[d] = ActOps<T>::from(ActOps<T>::bounded(in[d] * factor * a.norm[d]));
  rotate(a, table, in + a.latent, to + a.latent, l.padded_dim - a.latent, true, lane);
}

template <class T>
__global__ void __launch_bounds__(32 * kWarps) finish_latent(const __grid_constant__ FinishLatentArgs a) {
  const int64_t row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  grid_wait();
  grid_trigger();
  const bool valid = a.rows.slot[row] >= 0;
  const float* const table = a.rope_table + row * a.rope_dims;
  const int32_t step = static_cast<int32_t>(gridDim.y) * kWarps;
  for (int32_t i = static_cast<int32_t>(blockIdx.y) * kWarps + static_cast<int32_t>(threadIdx.x) / 32; i <= a.heads; i += step) {
    if (i < a.heads) finish_query<T>(a, row, i, table, valid, lane);
    else if (valid) cache_latent<T>(a, row, table, lane);
  }
}

template <int kElements>
__global__ void __launch_bounds__(kThreads) place_heads(const __grid_constant__ PlaceHeadsArgs a) {
  grid_wait();
  grid_trigger();
  const int32_t groups = a.width / kElements;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, pair = i / groups;
  const int32_t d = static_cast<int32_t>(i - pair * groups) * kElements;
  if (pair >= static_cast<int64_t>(a.rows) * a.heads) return;
  const float* const in = a.in + pair * a.in_stride + d;
  const int64_t row = pair / a.heads;
  uint16_t* const out = static_cast<uint16_t*>(a.out) + row * a.out_stride + (pair - row * a.heads) * a.head_stride + d;
  if constexpr (kElements == 4) {
    const float4 x = *reinterpret_cast<const float4*>(in);
    *reinterpret_cast<uint2*>(out) = make_uint2(act_bits(a.act, x.x, x.y), act_bits(a.act, x.z, x.w));
  } else {
    *out = act_bits(a.act, *in);
  }
}

__global__ void __launch_bounds__(kThreads) plan_heads(const __grid_constant__ PlanHeadsArgs a) {
  grid_wait();
  grid_trigger();
  const int32_t i = static_cast<int32_t>(blockIdx.x) * kThreads + static_cast<int32_t>(threadIdx.x);
  const int32_t tiles = (a.rows + a.tile - 1) / a.tile;  // of a head
  if (i < a.rows * a.heads) a.plan.pairs[i] = i % a.rows * a.heads + i / a.rows;
  if (i < a.heads) {
    a.plan.first[i] = i * a.rows;
    a.plan.count[i] = a.rows;
  }
  if (i < tiles * a.heads) {
    const int32_t head = i / tiles, done = i % tiles * a.tile;
    a.plan.tiles[i] = {head, head * a.rows + done, min(a.rows - done, a.tile)};
  }
  if (i == 0) *a.plan.tile_count = tiles * a.heads;
}

}  // namespace

cudaError_t launch_finish_latent(const FinishLatentArgs& args, const Stream& on) {
  const KvLayout& l = args.layout;
  if (args.count < 0 || args.heads < 1 || args.latent < 1 || args.rope_dims < 0 || args.rope_dims % 2 != 0 ||
      args.rope_dims >= args.key_dim || l.kv_heads != 1 || l.kv != Kv::kAct || l.padded_dim != pad_latent(args.latent, args.rope_dims) ||
      (args.rope_style != MR_ROPE_NORM && args.rope_style != MR_ROPE_NEOX))
    return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  // Of many rows, each has one block, whose warps have several heads.
  const int32_t splits = args.count < 512 ? (args.heads + kWarps) / kWarps : 1;
  const dim3 grid(static_cast<unsigned>(args.count), static_cast<unsigned>(std::min(splits, 65535)));
  return with_act(l.act, [&](auto element) { return launch(on, grid, dim3(32 * kWarps), 0, finish_latent<decltype(element)>, args); });
}

cudaError_t launch_place_heads(const PlaceHeadsArgs& args, const Stream& on) {
  if (args.rows < 0 || args.heads < 1 || args.width < 1) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  const bool by_four = args.width % 4 == 0 && (args.in_stride | args.out_stride | args.head_stride) % 4 == 0 &&
                       address(args.in) % 16 == 0 && address(args.out) % 8 == 0;
  const int64_t threads = static_cast<int64_t>(args.rows) * args.heads * (args.width / (by_four ? 4 : 1));
  const dim3 grid(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
  return by_four ? launch(on, grid, dim3(kThreads), 0, place_heads<4>, args) : launch(on, grid, dim3(kThreads), 0, place_heads<1>, args);
}

cudaError_t launch_plan_heads(const PlanHeadsArgs& args, const Stream& on) {
  if (args.rows < 0 || args.heads < 1 || args.tile < 1 || static_cast<int64_t>(args.rows) * args.heads > INT32_MAX / 2)
    return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const int64_t pairs = static_cast<int64_t>(args.rows) * args.heads;
  PlanHeadsArgs equal = args;
  equal.tile = equal_tile(args.rows, args.tile);
  return launch(on, dim3(static_cast<unsigned>((pairs + kThreads - 1) / kThreads)), dim3(kThreads), 0, plan_heads, equal);
}

}  // namespace mr::cuda
