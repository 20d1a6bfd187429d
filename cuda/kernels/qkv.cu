// qkv: bias, QK-norm, rotation and cache write (see qkv.h for the operands).
//
// A warp has some heads of one row; heads of Q come first, then those of K and V. Lane l has the pairs 2l, 2l + 1, 64 +
// 2l, ... of a head: first the rotated pairs, (p, p + rope_dims/2) for NEOX and (2p, 2p+1) for NORM, then neighbours of
// the rest, up to the padded dim. Two pairs are loaded at once, and stored at once unless the cache has 8 bits, if
// shapes and addresses allow it. Rotation: (x c - y s, x s + y c), where products are rounded before the sum.
// The norm sums squares over pairs, then lanes. No shared memory. It reads each element of qkv once and writes 2 bytes
// for it, 1 for an 8-bit cache. How many heads a warp has depends on the number of rows and changes no bits. Slots,
// positions, block tables and the RoPE table are read before the dependency wait: the step's first kernels have written
// them, and the QKV GEMMs run in between.
#include <type_traits>

#include "kernels/act.cuh"
#include "kernels/f8.cuh"
#include "kernels/instructions.cuh"
#include "kernels/math.cuh"
#include "kernels/qkv.h"
#include "millrace/engine.h"

namespace mr::cuda {
namespace {

constexpr int kWarps = 8;

// RowPlace is the data shared by the heads of one row.
struct RowPlace {
  int64_t row, block;      // block: of the cache
  int32_t slot, in_block;  // in_block: the row's token in it
};

// Pairs is one lane's pairs of one head: 2 if padded_dim <= 128, 4 if it is 256, 8 if it is 512.
template <int count>
struct Pairs {
  float x[count], y[count];
};

__host__ __device__ __forceinline__ int32_t heads_in(const FinishQkvArgs& a) {
  return a.heads + (a.queries_only ? 0 : 2 * a.layout.kv_heads);
}

enum class Part { query, key, value };
__device__ __forceinline__ Part part_of(const FinishQkvArgs& a, int32_t head) {
  return head < a.heads ? Part::query : head < a.heads + a.layout.kv_heads ? Part::key : Part::value;
}

// Returns the largest size of 32 lanes, in the order of f8_size, where NaN is above all numbers.
__device__ __forceinline__ uint32_t warp_size_max(uint32_t x) {
  for (int lane = 16; lane > 0; lane /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}

// Returns a lane's pair k.
__device__ __forceinline__ int32_t pair_of(int lane, int k) { return 2 * lane + k % 2 + k / 2 * 64; }

// Returns the dims of pair p.
__device__ __forceinline__ int2 dims_of(const FinishQkvArgs& a, int32_t p) {
  const int32_t half = a.rope_dims / 2;
  return p < half && a.rope_style == MR_ROPE_NEOX ? make_int2(p, p + half) : make_int2(2 * p, 2 * p + 1);
}

// Returns whether pair p and its neighbour, both rotated or both not, are two runs of two dims; otherwise they are one
// run of four.
__device__ __forceinline__ bool apart(const FinishQkvArgs& a, int32_t p) { return p < a.rope_dims / 2 && a.rope_style == MR_ROPE_NEOX; }

template <bool by_two, int count>
__device__ __forceinline__ void load_head(const FinishQkvArgs& a, const RowPlace& place, int32_t head, int lane, Pairs<count>& v) {
  const int32_t dim = a.layout.head_dim;
  if (a.value_is_key && part_of(a, head) == Part::value) head -= a.layout.kv_heads;
  const int32_t gates = a.query_gates ? min(head, a.heads) : 0;  // before the head
  const float* const in = a.qkv + place.row * a.qkv_stride + static_cast<int64_t>(head + gates) * dim;
  if constexpr (by_two) {
#pragma unroll
    for (int k = 0; k < count; k += 2) {
      const int32_t p = pair_of(lane, k);
      float4 both{0, 0, 0, 0};  // x, y, x, y
      if (place.slot >= 0 && 2 * p < dim) {
        if (apart(a, p)) {
          const float2 x = *reinterpret_cast<const float2*>(in + p), y = *reinterpret_cast<const float2*>(in + p + a.rope_dims / 2);
          both = float4{x.x, y.x, x.y, y.y};
        } else {
          both = *reinterpret_cast<const float4*>(in + 2 * p);
        }
      }
      v.x[k] = both.x, v.y[k] = both.y;
      v.x[k + 1] = both.z, v.y[k + 1] = both.w;
    }
  } else {
#pragma unroll
    for (int k = 0; k < count; ++k) {
      const int2 d = dims_of(a, pair_of(lane, k));
      v.x[k] = place.slot >= 0 && d.x < dim ? in[d.x] : 0.0f;
      v.y[k] = place.slot >= 0 && d.y < dim ? in[d.y] : 0.0f;
    }
  }
}

template <bool by_two, int count>
__device__ __forceinline__ void store_head(const FinishQkvArgs& a, uint16_t* out, int lane, const Pairs<count>& v) {
  const Act act = a.layout.act;
  if constexpr (by_two) {
#pragma unroll
    for (int k = 0; k < count; k += 2) {
      const int32_t p = pair_of(lane, k);
      if (p >= a.layout.padded_dim / 2) continue;
      if (apart(a, p)) {
        *reinterpret_cast<uint32_t*>(out + p) = act_bits(act, v.x[k], v.x[k + 1]);
        *reinterpret_cast<uint32_t*>(out + p + a.rope_dims / 2) = act_bits(act, v.y[k], v.y[k + 1]);
      } else {
        *reinterpret_cast<uint2*>(out + 2 * p) = make_uint2(act_bits(act, v.x[k], v.y[k]), act_bits(act, v.x[k + 1], v.y[k + 1]));
      }
    }
  } else {
#pragma unroll
    for (int k = 0; k < count; ++k) {
      const int32_t p = pair_of(lane, k);
      if (p >= a.layout.padded_dim / 2) continue;
      const int2 d = dims_of(a, p);
      out[d.x] = act_bits(act, v.x[k]);
      out[d.y] = act_bits(act, v.y[k]);
    }
  }
}

// Writes a head as f8.cuh describes. Pairs beyond the head are zero, which changes neither the scale nor the other
// elements.
template <int count>
__device__ __forceinline__ void store_f8(const FinishQkvArgs& a, uint8_t* out, float* scale_out, int lane, const Pairs<count>& v) {
  uint32_t greatest = 0;
#pragma unroll
  for (int k = 0; k < count; ++k) greatest = max(greatest, max(f8_size(v.x[k]), f8_size(v.y[k])));
  const float scale = f8_scale(warp_size_max(greatest));
  if (lane == 0) *scale_out = scale;
#pragma unroll
  for (int k = 0; k < count; ++k) {
    const int32_t p = pair_of(lane, k);
    if (p >= a.layout.padded_dim / 2) continue;
    const int2 d = dims_of(a, p);
    out[d.x] = static_cast<uint8_t>(f8_from_f32(v.x[k], scale));
    out[d.y] = static_cast<uint8_t>(f8_from_f32(v.y[k], scale));
  }
}

__device__ __forceinline__ float temperature_of(const FinishQkvArgs& a, int32_t position) {
  return static_cast<float>(1 + static_cast<double>(a.temperature_scale) * log_f64(1 + position / a.temperature_length));
}

template <bool by_two, int count>
__device__ __forceinline__ void finish_head(const FinishQkvArgs& a, const RowPlace& place, const Pairs<count>& rope_table,
                                            int32_t head, int lane, Pairs<count>& v) {
  const int32_t dim = a.layout.head_dim, padded = a.layout.padded_dim;
  const Part part = part_of(a, head);
  if (part != Part::query && place.slot < 0) return;
  const int32_t own = head - (part == Part::query ? 0 : a.heads) - (part == Part::value ? a.layout.kv_heads : 0);
  const float* const bias = part == Part::query ? a.q_bias : part == Part::key || a.value_is_key ? a.k_bias : a.v_bias;
  const float* const norm = part == Part::query ? a.q_norm : part == Part::key ? a.k_norm : nullptr;
  if (bias != nullptr && place.slot >= 0)
#pragma unroll
    for (int k = 0; k < count; ++k) {
      const int2 d = dims_of(a, pair_of(lane, k));
      if (d.x < dim) v.x[k] += bias[static_cast<int64_t>(own) * dim + d.x];
      if (d.y < dim) v.y[k] += bias[static_cast<int64_t>(own) * dim + d.y];
    }
  if (norm != nullptr || (a.v_norm && part == Part::value)) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < count; ++k) sum = fmaf(v.y[k], v.y[k], fmaf(v.x[k], v.x[k], sum));
    const float factor = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + a.norm_eps);
#pragma unroll
    for (int k = 0; k < count; ++k) {
      const int2 d = dims_of(a, pair_of(lane, k));
      if (d.x < dim) v.x[k] = v.x[k] * factor * (norm == nullptr ? 1.0f : norm[d.x]);
      if (d.y < dim) v.y[k] = v.y[k] * factor * (norm == nullptr ? 1.0f : norm[d.y]);
    }
  }
  if (part != Part::value)
#pragma unroll
    for (int k = 0; k < count; ++k) {
      if (pair_of(lane, k) >= a.rope_dims / 2) continue;
      const float x = v.x[k], y = v.y[k];
      v.x[k] = x * rope_table.x[k] - y * rope_table.y[k];
      v.y[k] = x * rope_table.y[k] + y * rope_table.x[k];
    }
  if (part == Part::query && a.temperature_scale != 0 && place.slot >= 0) {
    const float temperature = temperature_of(a, a.rows.position[place.row]);
#pragma unroll
    for (int k = 0; k < count; ++k) v.x[k] *= temperature, v.y[k] *= temperature;
  }
  const KvLayout& l = a.layout;
  if (part == Part::query) {
    store_head<by_two>(a, static_cast<uint16_t*>(a.q_out) + place.row * a.q_stride + static_cast<int64_t>(own) * padded, lane, v);
  } else if (l.kv == Kv::kF8) {
    uint8_t* const cache = static_cast<uint8_t*>(part == Part::key ? a.keys : a.values);
    store_f8(a, cache + l.f8_at(place.block, own, place.in_block),
             reinterpret_cast<float*>(cache + l.f8_scale_at(place.block, own, place.in_block)), lane, v);
  } else {
    const int64_t at = place.block * l.block_elements() + own * l.head_elements() + static_cast<int64_t>(place.in_block) * padded;
    store_head<by_two>(a, static_cast<uint16_t*>(part == Part::key ? a.keys : a.values) + at, lane, v);
  }
}

// Requests the norms' weights from device memory: a step has streamed gigabytes through L2 since a layer read them last.
__device__ __forceinline__ void prefetch_norms(const FinishQkvArgs& a, int lane) {
  constexpr int kLine = 32;  // floats of a cache line; half of the lanes have those of 512 dims
  const float* const weights = lane < 16 ? a.q_norm : a.k_norm;
  const int32_t d = lane % 16 * kLine;
  if (weights != nullptr && d < a.layout.head_dim) prefetch_l2(weights + d);
}

template <bool by_two, int count>
__global__ void __launch_bounds__(32 * kWarps) heads_per_warp(const __grid_constant__ FinishQkvArgs a) {
  const int lane = threadIdx.x % 32;
  grid_trigger();  // this kernel is short (launch.h)
  RowPlace place{blockIdx.x, 0, a.rows.slot[blockIdx.x], 0};
  if (place.slot >= 0) {
    const int32_t position = a.rows.position[place.row], size = a.layout.block_size;
    place.block = a.rows.block_ids[a.rows.table[place.row] + position / size];
    place.in_block = position % size;
  }
  const int32_t all_heads = heads_in(a), stride = gridDim.y * kWarps, half = a.rope_dims / 2;
  Pairs<count> rope_table;  // cosines and sines
#pragma unroll
  for (int k = 0; k < count; ++k) {
    const int32_t p = pair_of(lane, k);
    rope_table.x[k] = p < half ? __ldcg(a.rope_table + place.row * a.rope_dims + p) : 0.0f;
    rope_table.y[k] = p < half ? __ldcg(a.rope_table + place.row * a.rope_dims + half + p) : 0.0f;
  }
  prefetch_norms(a, lane);
  grid_wait();
  // Three heads are read before the first is written, so that their loads overlap.
  for (int32_t head = blockIdx.y * kWarps + threadIdx.x / 32; head < all_heads; head += 3 * stride) {
    Pairs<count> values[3];
#pragma unroll
    for (int i = 0; i < 3; ++i)
      if (head + i * stride < all_heads) load_head<by_two>(a, place, head + i * stride, lane, values[i]);
#pragma unroll
    for (int i = 0; i < 3; ++i)
      if (head + i * stride < all_heads) finish_head<by_two>(a, place, rope_table, head + i * stride, lane, values[i]);
  }
}

}  // namespace

cudaError_t launch_finish_qkv(const FinishQkvArgs& args, const Stream& on) {
  const int32_t dim = args.layout.head_dim;
  if (args.count < 0 || pad_head_dim(dim) == 0 || args.layout.padded_dim != pad_head_dim(dim) || args.rope_dims < 0 ||
      args.rope_dims > dim || args.rope_dims % 2 != 0 || args.heads < 1 || args.layout.kv_heads < 1 ||
      (args.rope_style != MR_ROPE_NORM && args.rope_style != MR_ROPE_NEOX))
    return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  const int32_t all_heads = heads_in(args);
  const int32_t splits = args.count < 512 ? (all_heads + kWarps - 1) / kWarps : 1;
  const dim3 grid(static_cast<unsigned>(args.count), static_cast<unsigned>(splits)), block(32 * kWarps);
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  const bool written = (address(args.q_out) | address(args.keys) | address(args.values)) % 8 == 0 && args.q_stride % 4 == 0;
  const bool aligned = address(args.qkv) % 16 == 0 && written;
  const bool by_two = aligned && (dim | args.rope_dims | args.qkv_stride) % 4 == 0;
  const auto run = [&](auto count) {
    constexpr int n = decltype(count)::value;
    return launch(on, grid, block, 0, by_two ? heads_per_warp<true, n> : heads_per_warp<false, n>, args);
  };
  if (args.layout.padded_dim <= 128) return run(std::integral_constant<int, 2>{});
  if (args.layout.padded_dim == 256) return run(std::integral_constant<int, 4>{});
  return run(std::integral_constant<int, 8>{});
}

}  // namespace mr::cuda
