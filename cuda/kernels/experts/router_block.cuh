// router_block: a block of the router: logits[r, e] = sum_k x[r, k] norm[k] router[e, k] * factor(r) + bias[e], in f32.
//
// A block has a panel of 16 experts and some rows; its warps share 16 slices of the columns, cut at whole units.
// Lane 4g + t has experts g and g + 8 and four of every 16 columns, as weights lie (weight.h). The order of a logit's sum
// is the lane's columns, then four lanes, then the slices in ascending order: it depends on the width alone. The squares
// for the norm are summed in the same order, and the factor multiplies the sum, so that x is read once.
// Test bound: 2^-17 of the sum of absolute terms.
#pragma once

#include "kernels/act.cuh"
#include "kernels/experts/route.h"
#include "kernels/gemm/packed_access.cuh"
#include "kernels/instructions.cuh"
#include "kernels/norm_row.cuh"

namespace mr::cuda {

constexpr int32_t kColumnSlices = 16;
constexpr int32_t kLine = 128;    // bytes of a cache line

// Four weights of an expert, of columns 2t, 2t + 1, 2t + 8 and 2t + 9 of a step.
struct Four {
  float of[4];
};

template <int32_t T>
__device__ __forceinline__ float widened(uint32_t bits) {
  if constexpr (T == kF16) return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
  else return __uint_as_float(bits << 16);
}

// The lane's four columns of a step in a row of `dim` numbers. whole: units do not pass the row's end, and rows begin at 16 bytes.
template <bool whole>
__device__ __forceinline__ Four load_columns(const float* row, int32_t first, int32_t dim) {
  if constexpr (whole) {
    const float2 low = *reinterpret_cast<const float2*>(row + first), high = *reinterpret_cast<const float2*>(row + first + 8);
    return {{low.x, low.y, high.x, high.y}};
  } else {
    Four v;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t column = first + i / 2 * 8 + i % 2;
      v.of[i] = column < dim ? row[column] : 0.0f;
    }
    return v;
  }
}

// RouterUnit is a lane's share of a unit of the panel, as it lies. All of it is requested before any of it is used.
template <int32_t T>
struct RouterUnit {
  static constexpr int32_t kSteps = kUnitCols / 16, kLoads = T == kF32 ? 2 : 1, kStepBytes = kLoads * 512;

  struct Step {
    uint4 words[kLoads];

    // Loads a step from shared memory.
    __device__ __forceinline__ static Step load(uint32_t from) {
      Step step;
#pragma unroll
      for (int32_t i = 0; i < kLoads; ++i) step.words[i] = load_shared16(from + i * 512);
      return step;
    }
    // The weights of expert g + 8r.
    __device__ __forceinline__ Four of(int32_t r) const {
      if constexpr (T == kF32) {
        const uint4 v = words[r];
        return {{__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)}};
      } else {
        const uint4 v = words[0];
        const uint32_t low = r == 0 ? v.x : v.y, high = r == 0 ? v.z : v.w;
        return {{widened<T>(low & 0xffffu), widened<T>(low >> 16), widened<T>(high & 0xffffu), widened<T>(high >> 16)}};
      }
    }
  };
  Step steps[kSteps];

  __device__ __forceinline__ void request(const uint8_t* panel, int32_t unit, int32_t lane) {
    const uint8_t* const from = panel + static_cast<int64_t>(unit) * Format<T>::group_bytes + lane * 16;
#pragma unroll
    for (int32_t step = 0; step < kSteps; ++step)
#pragma unroll
      for (int32_t i = 0; i < kLoads; ++i) steps[step].words[i] = *reinterpret_cast<const uint4*>(from + step * kStepBytes + i * 512);
    all_requested();
  }

  // Keeps the loads before this point before it, so that none waits until it is used.
  __device__ __forceinline__ static void all_requested() { asm volatile("" ::: "memory"); }
};

// RouterSums has the sums of a lane: experts g and g + 8, and the squares.
struct RouterSums {
  float dot[2], square;

  // add adds four columns.
  __device__ __forceinline__ void add(const Four& x, const Four& norm, const Four& low, const Four& high) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const float v = x.of[i], normed = v * norm.of[i];
      square = fmaf(v, v, square);
      dot[0] = fmaf(normed, low.of[i], dot[0]);
      dot[1] = fmaf(normed, high.of[i], dot[1]);
    }
  }
};

// RouterSlice is a warp's slice of a single row, whose time is that of its loads. Before the dependency wait the warp requests its first
// unit into registers, the second and the norm of kAhead units into shared memory, and the other units into L2; after it x of up to
// kAhead units at once.
template <int32_t T>
struct RouterSlice {
  using Unit = RouterUnit<T>;
  static constexpr int32_t kUnitBytes = Format<T>::group_bytes, kAhead = 3;
  static constexpr int32_t kInputs = kUnitCols * 4, norm_at = kUnitBytes + kAhead * kInputs, bytes = norm_at + kAhead * kInputs;

  const RouterArgs& a;
  const uint8_t* panel;
  int32_t begin, end, lane;  // units
  uint32_t shared;           // address of `bytes` bytes of this warp

  // copy_columns copies numbers of a row, of up to kAhead units from unit `first` on.
  __device__ __forceinline__ void copy_columns(uint32_t to, const float* row, int32_t first) const {
    const int32_t count = min(kAhead, end - first) * kInputs;
    const auto* const from = reinterpret_cast<const uint8_t*>(row + first * kUnitCols);
#pragma unroll
    for (int32_t c = 0; c < kAhead * kInputs; c += 512)
      if (c + lane * 16 < count) copy16_through(to + c + lane * 16, from + c + lane * 16);
  }
  // columns returns the lane's columns of a step.
  __device__ __forceinline__ Four columns(uint32_t from, int32_t step) const {
    from += (step * 16 + lane % 4 * 2) * 4;
    const float2 low = load_shared_floats(from), high = load_shared_floats(from + 32);
    return {{low.x, low.y, high.x, high.y}};
  }

  // add adds unit i of the units in shared memory. weights(step) returns the words of a step.
  template <class Weights>
  __device__ __forceinline__ void add(RouterSums& sums, int32_t i, Weights&& weights) const {
#pragma unroll
    for (int32_t step = 0; step < Unit::kSteps; ++step) {
      const typename Unit::Step words = weights(step);
      sums.add(columns(shared + kUnitBytes + i * kInputs, step), columns(shared + norm_at + i * kInputs, step), words.of(0), words.of(1));
    }
  }

  __device__ __forceinline__ void run(int64_t row, RouterSums& sums) const {
    Unit w;
    if (begin < end) w.request(panel, begin, lane);
    if (begin + 1 < end) {
      const uint8_t* const second = panel + static_cast<int64_t>(begin + 1) * kUnitBytes + lane * 16;
#pragma unroll
      for (int32_t c = 0; c < kUnitBytes; c += 512) copy16_through(shared + c + lane * 16, second + c);
    }
    if (a.norm != nullptr) {
      copy_columns(shared + norm_at, a.norm, begin);
    } else {
      for (int32_t c = lane * 4; c < kAhead * kInputs; c += 128) store_shared4(shared + norm_at + c, __float_as_uint(1.0f));
    }
    for (int32_t at = (begin + 2) * kUnitBytes + lane * kLine; at < end * kUnitBytes; at += 32 * kLine) prefetch_l2(panel + at);
    grid_wait();
    grid_trigger();
    const float* const x = a.x + row * a.x_stride;
#pragma unroll 1
    for (int32_t first = begin; first < end; first += kAhead) {
      copy_columns(shared + kUnitBytes, x, first);
      if (first != begin && a.norm != nullptr) copy_columns(shared + norm_at, a.norm, first);
      copies_commit();
      copies_wait<0>();
      __syncwarp();
#pragma unroll 1
      for (int32_t i = 0; i < min(kAhead, end - first); ++i) {
        const int32_t unit = first + i;
        if (unit == begin + 1) {
          add(sums, i, [&](int32_t step) { return Unit::Step::load(shared + step * Unit::kStepBytes + lane * 16); });
        } else {
          add(sums, i, [&](int32_t step) { return w.steps[step]; });
          const int32_t next = unit == begin ? begin + 2 : unit + 1;
          if (next < end) w.request(panel, next, lane);
        }
      }
      __syncwarp();
    }
  }
};

// Bytes of shared memory of router_block if it has a single row and whole units.
template <int32_t T>
constexpr size_t kRouterRowBytes = kColumnSlices * RouterSlice<T>::bytes;

// Block (x, y) computes panel x for rows [kRows * y, kRows * (y + 1)). memory: kRouterRowBytes<T> bytes at 16 if kRows is 1 and `whole`.
template <int32_t T, int32_t kRows, int32_t kWarps, bool whole>
__device__ __forceinline__ void router_block(const RouterArgs& a, uint8_t* memory) {
  using Unit = RouterUnit<T>;
  __shared__ float sums[kColumnSlices][kRows][kPanelRows], squares[kColumnSlices][kRows];
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
  const int32_t dim = static_cast<int32_t>(a.router.cols), experts = static_cast<int32_t>(a.router.rows);
  const int32_t units = (dim + kUnitCols - 1) / kUnitCols, first_row = static_cast<int32_t>(blockIdx.y) * kRows;
  const uint8_t* const panel = a.router.data + static_cast<int64_t>(blockIdx.x) * units * Format<T>::group_bytes;
  const auto begin_of = [&](int32_t slice) { return units * slice / kColumnSlices; };
  // A thread below kRows * kPanelRows stores the logit of this expert.
  const int32_t expert = static_cast<int32_t>(blockIdx.x * kPanelRows + threadIdx.x % kPanelRows);
  const float bias = a.bias != nullptr && threadIdx.x < kRows * kPanelRows && expert < experts ? a.bias[expert] : 0;
  Unit w;
  const int32_t requested = begin_of(warp) < begin_of(warp + 1) ? begin_of(warp) : -1;
  if constexpr (kRows > 1 || !whole) {  // weights are constants: a warp requests its first unit before the wait
    if (requested >= 0) w.request(panel, requested, lane);
    grid_wait();
    grid_trigger();
  }

#pragma unroll 1
  for (int32_t slice = warp; slice < kColumnSlices; slice += kWarps) {
    const int32_t begin = begin_of(slice), end = begin_of(slice + 1);
    RouterSums rows_sums[kRows] = {};
    if constexpr (kRows == 1 && whole) {
      static_assert(kWarps == kColumnSlices, "a warp has one slice");
      RouterSlice<T>{a, panel, begin, end, lane, shared_address(memory) + warp * RouterSlice<T>::bytes}.run(first_row, rows_sums[0]);
    } else {
#pragma unroll 1
      for (int32_t unit = begin; unit < end; ++unit) {
        const int32_t column = unit * kUnitCols + t * 2;
        if (unit != requested) w.request(panel, unit, lane);
        Four norm[Unit::kSteps];
#pragma unroll
        for (int32_t step = 0; step < Unit::kSteps; ++step) {
          norm[step] = {{1, 1, 1, 1}};
          if (a.norm != nullptr) norm[step] = load_columns<whole>(a.norm, column + step * 16, dim);
        }
#pragma unroll
        for (int32_t r = 0; r < kRows; ++r) {
          const float* const row = a.x + min(first_row + r, a.rows - 1) * a.x_stride;
          Four x[Unit::kSteps];
#pragma unroll
          for (int32_t step = 0; step < Unit::kSteps; ++step) x[step] = load_columns<whole>(row, column + step * 16, dim);
          Unit::all_requested();
#pragma unroll
          for (int32_t step = 0; step < Unit::kSteps; ++step)
            rows_sums[r].add(x[step], norm[step], w.steps[step].of(0), w.steps[step].of(1));
        }
      }
    }
#pragma unroll
    for (int32_t r = 0; r < kRows; ++r) {
      RouterSums& lane_sums = rows_sums[r];
      for (const int32_t partner : {2, 1}) {
        lane_sums.dot[0] += __shfl_xor_sync(0xffffffffu, lane_sums.dot[0], partner);
        lane_sums.dot[1] += __shfl_xor_sync(0xffffffffu, lane_sums.dot[1], partner);
        lane_sums.square += __shfl_xor_sync(0xffffffffu, lane_sums.square, partner);
      }
      if (t == 0) {
        sums[slice][r][lane / 4] = lane_sums.dot[0];
        sums[slice][r][lane / 4 + 8] = lane_sums.dot[1];
      }
      if (lane == 0) squares[slice][r] = lane_sums.square;
    }
  }
  __syncthreads();
  const int32_t r = threadIdx.x / kPanelRows, local = threadIdx.x % kPanelRows, row = first_row + r;
  if (r >= kRows || row >= a.rows || expert >= experts) return;
  float sum = sums[0][r][local], of_squares = squares[0][r];
  for (int32_t s = 1; s < kColumnSlices; ++s) {
    sum += sums[s][r][local];
    of_squares += squares[s][r];
  }
  const float factor = a.norm == nullptr ? a.scale : norm_factor(of_squares, dim, a.eps) * a.scale;
  a.logits[static_cast<int64_t>(row) * experts + expert] = sum * factor + bias;
}

}  // namespace mr::cuda
