// qkv: bias, QK-norm, rotation and cache write (see qkv.h for the operands).
//
// A warp has some heads of one row; heads of Q come first, then those of K and V. Lane l has the pairs 2l, 2l + 1, 64 +
// 2l, ... of a head: first the rotated pairs, (p, p + rope_dims/2) for NEOX and (2p, 2p+1) for NORM, then neighbours of
// the rest, up to the padded dim. Two pairs are loaded as two runs of two dims, and stored so unless the cache has 8 bits,
// if shapes and addresses allow it. Rotation: (x c - y s, x s + y c), where products are rounded before the sum.
// The norm sums squares over pairs, then lanes. No shared memory. It reads each element of qkv once and writes 2 bytes
// for it, 1 for an 8-bit cache. How many heads a warp has depends on the number of rows and changes no bits: all blocks
// are to be on the device at once, as instructions for a row cost as much as those for a head. A warp requests its next
// head before it finishes one. Norms, slots, positions, block tables and the RoPE table are read before the dependency
// wait: the step's first kernels have written them, and the QKV GEMMs run in between.
#include <algorithm>
#include <type_traits>

#include "kernels/act.cuh"
#include "kernels/f8.cuh"
#include "kernels/math.cuh"
#include "kernels/qkv.h"
#include "millrace/engine.h"

namespace mr::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int32_t kEnoughBlocks = 512;  // about as many as an H200 runs at once

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

// Constants is the data shared by the heads of one row that is known before the dependency wait.
template <int count>
struct Constants {
  Pairs<count> rope_table;      // cosines and sines
  Pairs<count> q_norm, k_norm;  // before their exchange
  float temperature;
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

// Returns whether pair p and its neighbour are two runs of two dims, those of x and those of y. Otherwise a run is a pair.
__device__ __forceinline__ bool apart(const FinishQkvArgs& a, int32_t p) { return p < a.rope_dims / 2 && a.rope_style == MR_ROPE_NEOX; }

// Returns where the runs of pair p and its neighbour begin, p even.
__device__ __forceinline__ int2 runs_of(const FinishQkvArgs& a, int32_t p) {
  return apart(a, p) ? dims_of(a, p) : make_int2(2 * p, 2 * p + 2);
}

// Returns the dims of pair p by which one sees whether its numbers are in a head.
template <bool by_two>
__device__ __forceinline__ int2 ends_of(const FinishQkvArgs& a, int32_t p) {
  return by_two ? make_int2(2 * p, 2 * p) : dims_of(a, p);  // two pairs in two runs are both in the head or both beyond it
}

// Exchanges the inner numbers of two pairs whose runs are pairs: from numbers as they lie in memory to pairs, and back.
template <bool by_two, int count>
__device__ __forceinline__ void exchange(const FinishQkvArgs& a, int lane, Pairs<count>& v) {
  if constexpr (by_two) {
#pragma unroll
    for (int k = 0; k < count; k += 2) {
      const bool runs_are_pairs = !apart(a, pair_of(lane, k));
      const float x = v.x[k + 1], y = v.y[k];
      v.x[k + 1] = runs_are_pairs ? y : x;
      v.y[k] = runs_are_pairs ? x : y;
    }
  }
}

// Loads a lane's pairs of head_dim numbers, before their exchange. Pairs beyond them are zero.
template <bool by_two, int count>
__device__ __forceinline__ void load_pairs(const FinishQkvArgs& a, const float* in, int lane, Pairs<count>& v) {
  const int32_t dim = a.layout.head_dim;
  if constexpr (by_two) {
#pragma unroll
    for (int k = 0; k < count; k += 2) {
      const int2 at = runs_of(a, pair_of(lane, k));
      const bool inside = 2 * pair_of(lane, k) < dim;
      const float2 x = inside ? *reinterpret_cast<const float2*>(in + at.x) : float2{0, 0};
      const float2 y = inside ? *reinterpret_cast<const float2*>(in + at.y) : float2{0, 0};
      v.x[k] = x.x, v.x[k + 1] = x.y, v.y[k] = y.x, v.y[k + 1] = y.y;
    }
  } else {
#pragma unroll
    for (int k = 0; k < count; ++k) {
      const int2 d = dims_of(a, pair_of(lane, k));
      v.x[k] = d.x < dim ? in[d.x] : 0.0f;
      v.y[k] = d.y < dim ? in[d.y] : 0.0f;
    }
  }
}

template <bool by_two, int count>
__device__ __forceinline__ void load_head(const FinishQkvArgs& a, const RowPlace& place, int32_t head, int lane, Pairs<count>& v) {
  v = {};
  if (place.slot < 0) return;
  if (a.value_is_key && part_of(a, head) == Part::value) head -= a.layout.kv_heads;
  const int32_t gates = a.query_gates ? min(head, a.heads) : 0;  // before the head
  load_pairs<by_two>(a, a.qkv + place.row * a.qkv_stride + static_cast<int64_t>(head + gates) * a.layout.head_dim, lane, v);
}

template <bool by_two, int count>
__device__ __forceinline__ void store_head(const FinishQkvArgs& a, uint16_t* out, int lane, Pairs<count>& v) {
  const Act act = a.layout.act;
  exchange<by_two>(a, lane, v);
#pragma unroll
  for (int k = 0; k < count; k += by_two ? 2 : 1) {
    const int32_t p = pair_of(lane, k);
    if (p >= a.layout.padded_dim / 2) continue;
    if constexpr (by_two) {
      const int2 at = runs_of(a, p);
      *reinterpret_cast<uint32_t*>(out + at.x) = act_bits(act, v.x[k], v.x[k + 1]);
      *reinterpret_cast<uint32_t*>(out + at.y) = act_bits(act, v.y[k], v.y[k + 1]);
    } else {
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
__device__ __forceinline__ void finish_head(const FinishQkvArgs& a, const RowPlace& place, const Constants<count>& row, int32_t head,
                                            int lane, Pairs<count>& v) {
  const int32_t dim = a.layout.head_dim, padded = a.layout.padded_dim;
  const Part part = part_of(a, head);
  if (part != Part::query && place.slot < 0) return;
  const int32_t own = head - (part == Part::query ? 0 : a.heads) - (part == Part::value ? a.layout.kv_heads : 0);
  const float* const bias = part == Part::query ? a.q_bias : part == Part::key || a.value_is_key ? a.k_bias : a.v_bias;
  exchange<by_two>(a, lane, v);
  if (bias != nullptr && place.slot >= 0) {
    Pairs<count> biases;
    load_pairs<by_two>(a, bias + static_cast<int64_t>(own) * dim, lane, biases);
    exchange<by_two>(a, lane, biases);
#pragma unroll
    for (int k = 0; k < count; ++k) {
      const int2 d = ends_of<by_two>(a, pair_of(lane, k));
      if (d.x < dim) v.x[k] += biases.x[k];
      if (d.y < dim) v.y[k] += biases.y[k];
    }
  }
  const bool weighted = part == Part::query ? a.q_norm != nullptr : part == Part::key && a.k_norm != nullptr;
  if (weighted || (a.v_norm && part == Part::value)) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < count; ++k) sum = fmaf(v.y[k], v.y[k], fmaf(v.x[k], v.x[k], sum));
    const float factor = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + a.norm_eps);
    Pairs<count> weights = part == Part::query ? row.q_norm : row.k_norm;
    exchange<by_two>(a, lane, weights);
#pragma unroll
    for (int k = 0; k < count; ++k) {
      const int2 d = ends_of<by_two>(a, pair_of(lane, k));
      if (d.x < dim) v.x[k] = v.x[k] * factor * (weighted ? weights.x[k] : 1.0f);
      if (d.y < dim) v.y[k] = v.y[k] * factor * (weighted ? weights.y[k] : 1.0f);
    }
  }
  if (part != Part::value)
#pragma unroll
    for (int k = 0; k < count; ++k) {
      if (pair_of(lane, k) >= a.rope_dims / 2) continue;
      const float x = v.x[k], y = v.y[k];
      v.x[k] = x * row.rope_table.x[k] - y * row.rope_table.y[k];
      v.y[k] = x * row.rope_table.y[k] + y * row.rope_table.x[k];
    }
  if (part == Part::query && a.temperature_scale != 0)
#pragma unroll
    for (int k = 0; k < count; ++k) v.x[k] *= row.temperature, v.y[k] *= row.temperature;
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

template <bool by_two, int count>
__global__ void __launch_bounds__(32 * kWarps) heads_per_warp(const __grid_constant__ FinishQkvArgs a) {
  const int lane = threadIdx.x % 32;
  grid_trigger();  // this kernel is short (launch.h)
  RowPlace place{blockIdx.x, 0, a.rows.slot[blockIdx.x], 0};
  const int32_t position = a.rows.position[place.row], table = a.rows.table[place.row], size = a.layout.block_size;
  if (place.slot >= 0) {
    place.block = a.rows.block_ids[table + position / size];
    place.in_block = position % size;
  }
  Constants<count> row{};
  if (a.q_norm != nullptr) load_pairs<by_two>(a, a.q_norm, lane, row.q_norm);
  if (a.k_norm != nullptr) load_pairs<by_two>(a, a.k_norm, lane, row.k_norm);
  row.temperature = a.temperature_scale == 0 || place.slot < 0 ? 1.0f : temperature_of(a, position);
  const int32_t all_heads = heads_in(a), stride = gridDim.y * kWarps, half = a.rope_dims / 2;
#pragma unroll
  for (int k = 0; k < count; ++k) {
    const int32_t p = pair_of(lane, k);
    row.rope_table.x[k] = p < half ? __ldcg(a.rope_table + place.row * a.rope_dims + p) : 0.0f;
    row.rope_table.y[k] = p < half ? __ldcg(a.rope_table + place.row * a.rope_dims + half + p) : 0.0f;
  }
  grid_wait();
  int32_t head = blockIdx.y * kWarps + threadIdx.x / 32;
  if (head >= all_heads) return;
  Pairs<count> next;
  load_head<by_two>(a, place, head, lane, next);
#pragma unroll 1
  for (; head < all_heads; head += stride) {
    Pairs<count> v = next;
    if (head + stride < all_heads) load_head<by_two>(a, place, head + stride, lane, next);
    finish_head<by_two>(a, place, row, head, lane, v);
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
  const int32_t splits = std::min((all_heads + kWarps - 1) / kWarps, (kEnoughBlocks + args.count - 1) / args.count);
  const dim3 grid(static_cast<unsigned>(args.count), static_cast<unsigned>(splits)), block(32 * kWarps);
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  const uintptr_t biases = address(args.q_bias) | address(args.k_bias) | address(args.v_bias);
  const uintptr_t constants = biases | address(args.q_norm) | address(args.k_norm);
  const bool aligned = (constants | address(args.qkv) | address(args.q_out) | address(args.keys) | address(args.values)) % 8 == 0;
  const bool by_two = aligned && (dim | args.rope_dims | args.qkv_stride | args.q_stride) % 4 == 0;
  const auto run = [&](auto count) {
    constexpr int n = decltype(count)::value;
    return launch(on, grid, block, 0, by_two ? heads_per_warp<true, n> : heads_per_warp<false, n>, args);
  };
  if (args.layout.padded_dim <= 128) return run(std::integral_constant<int, 2>{});
  if (args.layout.padded_dim == 256) return run(std::integral_constant<int, 4>{});
  return run(std::integral_constant<int, 8>{});
}

}  // namespace mr::cuda
