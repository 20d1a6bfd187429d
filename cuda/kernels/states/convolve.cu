// convolve: a warp computes a unit of columns of some rows. A unit is one head of queries or of keys, which is divided by its length, or
// 128 columns of the rest (512 in the kernel for every width). Lane l has the columns 4 l to 4 l + 3 of each 128.
//
// A column's sum runs over the taps, oldest first; squares of a head are summed by lane and then over lanes. So bits depend on the width of
// a head alone, and not on the kernel. Rows do not wait for one another: a row reads the inputs before it from `in` or from a state.
//
//   convolve_few    one row a warp. Stored inputs and taps come from device memory and are requested before the wait.
//   convolve_many   four neighbouring rows a warp, 32 a block, whose inputs are loaded once: 7 loads for 4 rows of 4 taps.
//   convolve_any    every number of taps, every width and alignment.
//
// The first two are compiled for the published layers: 4 taps and heads of at most 128 (delta nets), 3 taps (short convolutions). DELTA
// moves 8 bytes an element, CONV 14 of a column. Test bound: 2^-18 of the sum of absolute terms, by the length for queries and keys.
#include "kernels/math.cuh"
#include "kernels/states/inputs.cuh"
#include "kernels/states/states.h"

namespace mr::cuda {
namespace {

constexpr int32_t kPass = 128;  // columns of a warp at once
constexpr int32_t kFewWarps = 4, kManyWarps = 8, kManyRows = 4, kFewRows = 256;
constexpr int32_t kMostGroups = kMostDeltaKeys / kPass;  // of four columns, of a lane

// The columns of a warp.
struct Unit {
  int32_t first, count;
  bool is_head;
  float scale;  // of a head
};

template <int32_t kGroups, bool gates>
__host__ __device__ __forceinline__ int32_t units_of(const ConvolveArgs& a) {
  const int32_t heads = gates ? 0 : 2 * a.key_heads;
  return heads + (a.width - heads * a.key_dim + kGroups * kPass - 1) / (kGroups * kPass);
}

template <int32_t kGroups, bool gates>
__device__ __forceinline__ Unit unit_at(const ConvolveArgs& a, int32_t i) {
  const int32_t heads = gates ? 0 : 2 * a.key_heads;
  if (i < heads) return {i * a.key_dim, a.key_dim, true, i < a.key_heads ? a.scale : 1.0f};
  const int32_t first = heads * a.key_dim + (i - heads) * kGroups * kPass;
  return {first, min(kGroups * kPass, a.width - first), false, 1};
}

// Writes a unit of a row, of which u has the sums.
template <bool gates, bool whole, int32_t kGroups>
__device__ __forceinline__ void finish_row(const ConvolveArgs& a, const Unit& unit, int64_t row, bool padding, float4 (&u)[kGroups]) {
  const int32_t lane = threadIdx.x % 32;
  if constexpr (gates) {
    uint16_t* const out = static_cast<uint16_t*>(a.gated_out) + row * a.gated_stride;
    const float* const c = a.in + row * a.in_stride + a.width;
#pragma unroll
    for (int32_t g = 0; g < kGroups; ++g) {
      const int32_t at = g * kPass + lane * 4, n = unit.count - at, column = unit.first + at;
      const float4 gate = load_columns<whole>(c + column, padding ? 0 : n);
      store_columns<whole>(a.act, out + column, n, product(product(u[g], gate), a.out_scale));
    }
  } else {
    float sum = 0;
#pragma unroll
    for (int32_t g = 0; g < kGroups; ++g) {
      u[g] = {silu_f32(u[g].x), silu_f32(u[g].y), silu_f32(u[g].z), silu_f32(u[g].w)};
      sum = fmaf(u[g].w, u[g].w, fmaf(u[g].z, u[g].z, fmaf(u[g].y, u[g].y, fmaf(u[g].x, u[g].x, sum))));
    }
    if (unit.is_head) {
      const float by = unit.scale / sqrtf(warp_sum(sum) + 1e-6f);
#pragma unroll
      for (int32_t g = 0; g < kGroups; ++g) u[g] = product(u[g], by);
    }
    float* const out = a.out + row * a.width + unit.first;
#pragma unroll
    for (int32_t g = 0; g < kGroups; ++g) {
      const int32_t at = g * kPass + lane * 4;
      store_columns<whole>(out + at, unit.count - at, u[g]);
    }
  }
}

// The taps of a lane's columns.
template <int32_t kConv>
__device__ __forceinline__ void load_taps(const ConvolveArgs& a, int32_t column, int32_t n, float4 (&taps)[kConv]) {
#pragma unroll
  for (int32_t i = 0; i < kConv; ++i) taps[i] = load_columns<true>(a.taps + int64_t{i} * a.width + column, n);
}

template <int32_t kConv>
__device__ __forceinline__ float4 sum_of_taps(const float4 (&taps)[kConv], const float4* inputs) {
  float4 sum{};
#pragma unroll
  for (int32_t i = 0; i < kConv; ++i) sum = multiply_add(taps[i], inputs[i], sum);
  return sum;
}

template <bool gates, int32_t kConv>
__global__ void __launch_bounds__(kFewWarps * 32) convolve_few(const __grid_constant__ ConvolveArgs a) {
  const int32_t i = blockIdx.x * kFewWarps + threadIdx.x / 32;
  const int64_t row = blockIdx.y;
  if (i >= units_of<1, gates>(a)) {
    grid_wait();
    return;
  }
  const Unit unit = unit_at<1, gates>(a, i);
  const int32_t column = unit.first + threadIdx.x % 32 * 4, n = unit.first + unit.count - column;
  const bool padding = a.rows.chain_of[row] < 0;
  InputRow from[kConv];
  float4 taps[kConv], inputs[kConv];
#pragma unroll
  for (int32_t k = 0; k < kConv; ++k) {
    from[k] = padding ? InputRow{nullptr, false} : input_before(a, row, kConv - 1 - k);
    inputs[k] = float4{};
    if (from[k].stored && n > 0) inputs[k] = __ldcg(reinterpret_cast<const float4*>(from[k].row + column));
  }
  load_taps(a, column, n, taps);
  grid_wait();
  grid_trigger();
#pragma unroll
  for (int32_t k = 0; k < kConv; ++k)
    if (from[k].row != nullptr && !from[k].stored) inputs[k] = input_columns<gates, true>(a, from[k].row, column, n);
  float4 u[1] = {sum_of_taps(taps, inputs)};
  finish_row<gates, true>(a, unit, row, padding, u);
}

template <bool gates, int32_t kConv>
__global__ void __launch_bounds__(kManyWarps * 32) convolve_many(const __grid_constant__ ConvolveArgs a) {
  const Unit unit = unit_at<1, gates>(a, blockIdx.x);
  const int32_t column = unit.first + threadIdx.x % 32 * 4, n = unit.first + unit.count - column;
  const int32_t first = (blockIdx.y * kManyWarps + threadIdx.x / 32) * kManyRows, rows = min(kManyRows, a.rows.rows - first);
  float4 taps[kConv];
  load_taps(a, column, n, taps);
  bool together = false;  // all inputs are in rows of one segment
  if (rows == kManyRows && a.rows.chain_of[first] >= 0) {
    const StateSegment s = a.rows.segments[a.rows.segment_of[first]];
    together = first - s.first_row >= kConv - 1 && first + kManyRows <= s.first_row + s.count;
  }
  grid_wait();
  grid_trigger();
  if (together) {
    float4 inputs[kManyRows + kConv - 1];
#pragma unroll
    for (int32_t k = 0; k < kManyRows + kConv - 1; ++k)
      inputs[k] = input_columns<gates, true>(a, a.in + (int64_t{first} + k - (kConv - 1)) * a.in_stride, column, n);
#pragma unroll
    for (int32_t r = 0; r < kManyRows; ++r) {
      float4 u[1] = {sum_of_taps(taps, inputs + r)};
      finish_row<gates, true>(a, unit, first + r, false, u);
    }
    return;
  }
  for (int64_t row = first; row < first + rows; ++row) {
    const bool padding = a.rows.chain_of[row] < 0;
    float4 inputs[kConv] = {};
#pragma unroll
    for (int32_t k = 0; k < kConv; ++k) {
      if (padding) continue;
      const InputRow from = input_before(a, row, kConv - 1 - k);
      if (from.stored) inputs[k] = load_columns<true>(from.row + column, n);
      else if (from.row != nullptr) inputs[k] = input_columns<gates, true>(a, from.row, column, n);
    }
    float4 u[1] = {sum_of_taps(taps, inputs)};
    finish_row<gates, true>(a, unit, row, padding, u);
  }
}

template <bool gates>
__global__ void __launch_bounds__(kFewWarps * 32) convolve_any(const __grid_constant__ ConvolveArgs a) {
  constexpr int32_t kGroups = gates ? 1 : kMostGroups;
  const int32_t i = blockIdx.y * kFewWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row = blockIdx.x;
  grid_wait();
  grid_trigger();
  if (i >= units_of<kGroups, gates>(a)) return;
  const Unit unit = unit_at<kGroups, gates>(a, i);
  const bool padding = a.rows.chain_of[row] < 0;
  float4 u[kGroups] = {};
  for (int32_t k = 0; k < a.conv && !padding; ++k) {
    const InputRow from = input_before(a, row, a.conv - 1 - k);
#pragma unroll
    for (int32_t g = 0; g < kGroups; ++g) {
      const int32_t at = g * kPass + lane * 4, n = unit.count - at, column = unit.first + at;
      float4 x{};
      if (from.stored) x = load_columns<false>(from.row + column, n);
      else if (from.row != nullptr) x = input_columns<gates, false>(a, from.row, column, n);
      u[g] = multiply_add(load_columns<false>(a.taps + int64_t{k} * a.width + column, n), x, u[g]);
    }
  }
  finish_row<gates, false>(a, unit, row, padding, u);
}

template <bool gates, int32_t kConv>
cudaError_t start(const ConvolveArgs& a, const Stream& on) {
  const unsigned rows = static_cast<unsigned>(a.rows.rows);
  const bool out_whole = gates ? aligned(a.gated_out, 8) && a.gated_stride % 4 == 0
                               : aligned(a.out, 16) && a.key_dim % 4 == 0 && a.key_dim <= kPass;
  if (a.conv == kConv && whole_inputs(a) && aligned(a.taps, 16) && out_whole) {
    const unsigned units = static_cast<unsigned>(units_of<1, gates>(a));
    if (a.rows.rows <= kFewRows)
      return launch(on, dim3((units + kFewWarps - 1) / kFewWarps, rows), dim3(kFewWarps * 32), 0, convolve_few<gates, kConv>, a);
    constexpr unsigned kBlockRows = kManyWarps * kManyRows;
    return launch(on, dim3(units, (rows + kBlockRows - 1) / kBlockRows), dim3(kManyWarps * 32), 0, convolve_many<gates, kConv>, a);
  }
  const unsigned units = static_cast<unsigned>(units_of<gates ? 1 : kMostGroups, gates>(a));
  return launch(on, dim3(rows, (units + kFewWarps - 1) / kFewWarps), dim3(kFewWarps * 32), 0, convolve_any<gates>, a);
}

constexpr int32_t kStoreThreads = 128;
template <bool gates, bool whole>
__global__ void __launch_bounds__(kStoreThreads) store_columns_of_chains(const __grid_constant__ StoreInputsArgs a) {
  const StateChain chain = a.rows.chains[blockIdx.y];
  grid_wait();
  grid_trigger();
  store_inputs<gates, whole>(a, chain, (blockIdx.x * kStoreThreads + threadIdx.x) * 4);
}

}  // namespace

cudaError_t launch_convolve(const ConvolveArgs& args, const Stream& on) {
  if (args.rows.rows < 0 || args.conv < 2 || args.conv > 64 || args.width < 1) return cudaErrorInvalidValue;
  if (!args.gates && (args.key_heads < 1 || args.key_dim < 1 || args.key_dim > kMostDeltaKeys ||
                      args.width < 2 * args.key_heads * args.key_dim))
    return cudaErrorInvalidValue;
  if (args.rows.rows == 0) return cudaSuccess;
  return args.gates ? start<true, 3>(args, on) : start<false, 4>(args, on);
}

cudaError_t launch_store_inputs(const StoreInputsArgs& args, const Stream& on) {
  if (args.rows.chain_count < 0 || args.rows.chain_count > 65535 || args.conv < 2 || args.conv > 64 || args.width < 1)
    return cudaErrorInvalidValue;
  if (args.rows.chain_count == 0) return cudaSuccess;
  const unsigned groups = static_cast<unsigned>(args.width + 3) / 4;
  const dim3 grid((groups + kStoreThreads - 1) / kStoreThreads, static_cast<unsigned>(args.rows.chain_count));
  const auto run = [&](auto kernel) { return launch(on, grid, dim3(kStoreThreads), 0, kernel, args); };
  if (args.gates) return run(whole_inputs(args) ? store_columns_of_chains<true, true> : store_columns_of_chains<true, false>);
  return run(whole_inputs(args) ? store_columns_of_chains<false, true> : store_columns_of_chains<false, false>);
}

}  // namespace mr::cuda
