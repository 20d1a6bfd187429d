// delta_state: the columns of S that a thread of delta has, and the operations of a position.
#pragma once

#include <type_traits>

#include "kernels/instructions.cuh"
#include "kernels/states/delta_tiles.cuh"
#include "kernels/states/groups.cuh"

namespace mr::cuda {

// A computing thread: its lane of a group. swaps: as in State.
template <class S, bool swaps>
struct Thread {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % S::kLanes, group = static_cast<int32_t>(threadIdx.x) / S::kLanes;
  const bool swapped = swaps && S::kColumns > 1 && lane >= S::kLanes / 2;
  // The chunk of which the thread has column n.
  __device__ __forceinline__ int32_t chunk(int32_t n) const { return n < 2 && swapped ? 1 - n : n; }
};

// The other numbers of one position that a lane reads.
template <class S>
struct Position {
  float scalars[S::kSet], v[S::kColumns];
  __device__ __forceinline__ float decay(int32_t n) const { return scalars[S::kHeads == 1 ? 0 : n]; }
  __device__ __forceinline__ float beta(int32_t n) const { return scalars[S::kBeta + (S::kHeads == 1 ? 0 : n)]; }
  __device__ __forceinline__ float dot() const { return scalars[S::kDot]; }
  template <bool swaps>
  __device__ __forceinline__ void load(const float* row, const Thread<S, swaps>& t) {
    const float* const set = row + S::kScalar + (S::kScalars > S::kSet && t.swapped ? S::kSet : 0);
#pragma unroll
    for (int32_t n = 0; n < S::kSet; n += 4) {
      const float4 x = *reinterpret_cast<const float4*>(set + n);
      scalars[n] = x.x, scalars[n + 1] = x.y, scalars[n + 2] = x.z, scalars[n + 3] = x.w;
    }
#pragma unroll
    for (int32_t n = 0; n < S::kColumns; ++n) v[n] = row[S::kValue + t.chunk(n) * S::kGroups + t.group];
  }
};

// The results of a position whose sums are still of each lane.
template <class S>
struct Unsummed {
  float o[S::kColumns], decay, d, dot;  // decay and d of the column that the lane writes
  float* to;
  bool any = false;
};

// The columns of S of one lane. swaps: the upper half of a group's lanes has the first two columns in the other order, so that the lanes of
// either half add the sums of one of them.
template <class S, bool swaps>
struct State {
  using Lane = Thread<S, swaps>;
  float4 s[S::kColumns][kVectors];

  // Calls body(float4, place in a state) or, of other heads, body(float, place) for each key.
  template <class Body>
  __device__ __forceinline__ void each(const DeltaArgs& a, const Block& b, const Lane& t, Body body) {
#pragma unroll
    for (int32_t n = 0; n < S::kColumns; ++n) {
      const Chunk c = chunk_of<S>(a, b, t.chunk(n));
      const int64_t head = int64_t{a.inputs.conv - 1} * a.inputs.width + int64_t{c.head} * a.key_dim * a.value_dim;
#pragma unroll
      for (int32_t j = 0; j < kVectors; ++j) {
        if constexpr (S::whole) {
          body(s[n][j], head + int64_t{c.first} * S::kKeys + (j * S::kComputing + static_cast<int32_t>(threadIdx.x)) * 4);
        } else {
          const int32_t column = c.first + t.group, key = 4 * (j * S::kLanes + t.lane);
          const int64_t at = head + int64_t{column} * a.key_dim + key;
          if (column >= a.value_dim) continue;
          if (key < a.key_dim) body(s[n][j].x, at);
          if (key + 1 < a.key_dim) body(s[n][j].y, at + 1);
          if (key + 2 < a.key_dim) body(s[n][j].z, at + 2);
          if (key + 3 < a.key_dim) body(s[n][j].w, at + 3);
        }
      }
    }
  }

  // policy: of whole heads in decode. Prompts read a state once.
  __device__ __forceinline__ void load(const DeltaArgs& a, const Block& b, const Lane& t, int32_t from, uint64_t policy = 0) {
#pragma unroll
    for (int32_t n = 0; n < S::kColumns; ++n)
#pragma unroll
      for (int32_t j = 0; j < kVectors; ++j) s[n][j] = float4{};
    if (from < 0) return;
    const float* const state = a.inputs.states.base + from * a.inputs.states.stride;
    each(a, b, t, [&](auto& x, int64_t at) {
      if constexpr (S::whole && !swaps) x = load16(reinterpret_cast<const float4*>(state + at), policy);
      else x = __ldcg(reinterpret_cast<const std::remove_reference_t<decltype(x)>*>(state + at));
    });
  }

  __device__ __forceinline__ void store(const DeltaArgs& a, const Block& b, const Lane& t, int32_t to, uint64_t policy = 0) {
    float* const state = a.inputs.states.base + to * a.inputs.states.stride;
    each(a, b, t, [&](auto& x, int64_t at) {
      if constexpr (S::whole && !swaps) store16(reinterpret_cast<float4*>(state + at), x, policy);
      else if constexpr (S::whole) store_group(reinterpret_cast<float4*>(state + at), x);
      else state[at] = x;
    });
  }

  // Returns a lane's part of the product with column n.
  __device__ __forceinline__ float dot(const Keys& keys, int32_t n) const {
    float sum[2] = {0, 0};
#pragma unroll
    for (int32_t j = 0; j < kVectors; ++j) add_products(keys.of[j], s[n][j], sum);
    return sum[0] + sum[1];
  }

  // Adds the parts of a group's lanes.
  static __device__ __forceinline__ void reduce(float (&sums)[S::kColumns], int32_t d) {
#pragma unroll
    for (int32_t n = 0; n < S::kColumns; ++n) sums[n] += __shfl_xor_sync(0xffffffffu, sums[n], d);
  }
  static __device__ __forceinline__ void reduce(float (&sums)[S::kColumns]) {
#pragma unroll
    for (int32_t d = S::kLanes / 2; d > 0; d /= 2) reduce(sums, d);
  }

  __device__ __forceinline__ void decay(const Position<S>& p, int32_t n) {
#pragma unroll
    for (int32_t j = 0; j < kVectors; ++j) s[n][j] = product(s[n][j], p.decay(n));
  }

  // Returns d of column n, of which `remembered` is k.S, and adds k d to the column.
  __device__ __forceinline__ float update(const Position<S>& p, const Keys& k, float remembered, int32_t n) {
    const float d = fmaf(-p.decay(n), remembered, p.v[n]) * p.beta(n);
#pragma unroll
    for (int32_t j = 0; j < kVectors; ++j) s[n][j] = multiply_add(k.of[j], float4{d, d, d, d}, s[n][j]);
    return d;
  }

  // Computes a position. Returns the result of column `lane` of the group.
  __device__ __forceinline__ float compute(const Position<S>& p, const Keys& k, const Keys& q, const Lane& t) {
    float remembered[S::kColumns], o[S::kColumns];
#pragma unroll
    for (int32_t n = 0; n < S::kColumns; ++n) remembered[n] = dot(k, n);
    reduce(remembered);
#pragma unroll
    for (int32_t n = 0; n < S::kColumns; ++n) o[n] = dot(q, n), decay(p, n);
    reduce(o);
    float mine = 0;
#pragma unroll
    for (int32_t n = 0; n < S::kColumns; ++n) {
      const float result = fmaf(p.dot(), update(p, k, remembered[n], n), p.decay(n) * o[n]);
      mine = t.lane == n ? result : mine;
    }
    return mine;
  }

  // The column that a lane of a swapping state writes.
  static __device__ __forceinline__ bool writes_third(const Lane& t) { return S::kColumns == 3 && (t.lane & S::kLanes / 4) != 0; }

  // Adds the parts of the column that a lane writes, in the order of reduce.
  static __device__ __forceinline__ float sum_of_written(const float (&o)[S::kColumns], const Lane& t) {
    constexpr int32_t kHalf = S::kLanes / 2;
    float sum = o[0] + __shfl_xor_sync(0xffffffffu, o[S::kColumns == 1 ? 0 : 1], kHalf);
    if constexpr (S::kColumns == 3) {
      const float third = o[2] + __shfl_xor_sync(0xffffffffu, o[2], kHalf);
      const bool is_third = writes_third(t);
      sum = (is_third ? third : sum) + __shfl_xor_sync(0xffffffffu, is_third ? sum : third, kHalf / 2);
    }
#pragma unroll
    for (int32_t d = kHalf / (S::kColumns == 3 ? 4 : 2); d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    return sum;
  }

  // Computes a position and writes the results of the one before it, whose exchanges run while k.S is computed. It also loads the position
  // at `after`: its query over the query, the rest into next_k and next. q.S and g S stand between the exchanges of k.S, because nvcc 12.4
  // keeps this order: with both after the exchanges, its code for a position of 32 columns waits 110 cycles more.
  __device__ __forceinline__ void compute_ahead(const Position<S>& p, const Keys& k, Keys& q, const float* after, Position<S>& next,
                                                Keys& next_k, Unsummed<S>& results, float* to, const Lane& t) {
    constexpr int32_t kSteps = S::kLanes == 4 ? 2 : S::kLanes == 8 ? 3 : S::kLanes == 16 ? 4 : 5, kWork = 2 * S::kColumns;
    const float before = sum_of_written(results.o, t);
    float remembered[S::kColumns];
#pragma unroll
    for (int32_t n = 0; n < S::kColumns; ++n) remembered[n] = dot(k, n);
    if (results.any) *results.to = fmaf(results.dot, results.d, results.decay * before);
    next_k.template load<S>(after + S::kKey, t.lane);
    int32_t done = 0;
#pragma unroll
    for (int32_t i = 0; i < kSteps; ++i) {
      float other[S::kColumns];
#pragma unroll
      for (int32_t n = 0; n < S::kColumns; ++n) {
        const int32_t theirs = i == 0 && S::kColumns > 1 && n < 2 ? 1 - n : n;  // in the other half of the lanes
        other[n] = __shfl_xor_sync(0xffffffffu, remembered[theirs], S::kLanes >> (i + 1));
      }
#pragma unroll
      for (; done < kWork * (i + 1) / kSteps; ++done) {
        if (done < S::kColumns) results.o[done] = dot(q, done);
        else decay(p, done - S::kColumns);
      }
#pragma unroll
      for (int32_t n = 0; n < S::kColumns; ++n) remembered[n] += other[n];
    }
    q.template load<S>(after, t.lane);
    next.load(after, t);
    results.dot = p.dot();
    results.to = to;
    results.any = S::whole || to != nullptr;
#pragma unroll
    for (int32_t n = 0; n < S::kColumns; ++n) {
      const float d = update(p, k, remembered[n], n);
      if (n == 0 || (n == 2 && writes_third(t))) results.d = d, results.decay = p.decay(n);
    }
  }

  static __device__ __forceinline__ void write_last(const Unsummed<S>& results, const Lane& t) {
    const float sum = sum_of_written(results.o, t);
    if (results.any) *results.to = fmaf(results.dot, results.d, results.decay * sum);
  }
};

}  // namespace mr::cuda
