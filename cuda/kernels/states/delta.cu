// delta: the gated delta rule, position by position. A block has some columns of S of one key head of one chain, from the chain's first
// position to its last, in registers. Decode rows and prompts have the same operations for each position.
//
//   u in HBM or L2                                          S in HBM
//      | cp.async, two tiles ahead                              | 16 bytes a lane, before the dependency wait
//   preparing warp --> [tile 0][tile 1][tile 2] --> computing warps: S in registers, out --> HBM
//     decay, beta and q.k of the next tile             one barrier a tile
//
// kLanes lanes share kColumns columns; lane l has the keys 4 (j kLanes + l) to + 3 of them, j = 0 .. 3. For each position, with g the decay
// and b the beta,
//   k.S and q.S   of the lane's even and odd keys apart, then both, then lanes at distance kLanes / 2, ..., 1
//   d = (v - g k.S) b,   o = g q.S + (q.k) d,   S = g S + k d
// Only k.S depends on the position before, so a position waits once for log2(kLanes) exchanges. q.S and g S are computed meanwhile. The
// order of all sums depends on key_dim alone.
//
// A chunk is kGroups neighbouring columns of a value head. A block has kColumns chunks of value heads that share a key head, and group g of
// its lanes has column g of each. Heads of 64, 128 and 256 keys with an even number of whole chunks have kernels of their own, where S lies
// in order of head, chunk, j, thread, and four keys, for every number of chunks in a block. All other heads have S by head, column and key,
// and a warp for each column.
//
// Decode, a launch with at most two rows a chain, has a form that does not load the next position ahead. It takes a quarter fewer
// registers, so an SM has four blocks whose loads of S overlap. Prompts exchange q.S of a position while the next one computes k.S.
//
// One prompt of 32 heads of 128 x 128 has 128 blocks of two chunks. One of 48 heads, three for each key head, has 128 blocks of three,
// because 192 blocks of two would give 60 of 132 SMs twice the work. A chain moves 8 bytes an element of S, however many positions it has.
// Test bound: 2^-20 of the largest result of 40 positions.
#include <type_traits>

#include "kernels/states/delta_tiles.cuh"
#include "kernels/states/inputs.cuh"
#include "kernels/states/states.h"

namespace mr::cuda {
namespace {

constexpr int32_t kStages = 3;

// A lane's part of one vector of keys.
struct Keys {
  float4 of[kVectors];
  template <class S>
  __device__ __forceinline__ void load(const float* row, int32_t lane) {
#pragma unroll
    for (int32_t j = 0; j < kVectors; ++j) of[j] = keys_of<S>(row, j, lane);
  }
};

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

template <class S>
__device__ __forceinline__ void prepare_tiles(const DeltaArgs& a, const Block& b, const StateChain& chain, Stage<S>* stages) {
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t head = chunk_of<S>(a, b, lane % S::kHeads).head;
  const float decay = a.a[head], dt = a.dt[head];
  const Requests<S> request(a, b, lane);
  Tiles<S::kTokens> ready(a.inputs.rows, chain), requested = ready;
  int32_t stage = 0, free = 2;
  grid_wait();
  grid_trigger();
#pragma unroll
  for (int32_t i = 0; i < 2; ++i) {
    request.tile(requested, stages[i]);
    if (requested.any()) requested.next();
  }
  prepare(stages[0], ready.count(), decay, dt, lane);
  __syncthreads();
  do {
    request.tile(requested, stages[free]);
    if (requested.any()) requested.next();
    free = free + 1 < kStages ? free + 1 : 0;
    stage = stage + 1 < kStages ? stage + 1 : 0;
    ready.next();
    if (ready.any()) prepare(stages[stage], ready.count(), decay, dt, lane);
    __syncthreads();
  } while (ready.any());
}

// Whether the S of all chains exceed the part of L2 that a launch may fill. They then leave L2 before the rows and the inputs of the
// convolution, which several kernels of the layer read. Fewer stay, as weights do: L2 writes them while later kernels run.
__device__ __forceinline__ bool is_streamed(const DeltaArgs& a) {
  return int64_t{a.inputs.rows.chain_count} * a.heads * a.key_dim * a.value_dim * 4 > 32 << 20;
}

// Computes decode rows, one or two of most chains.
template <class S>
__device__ __forceinline__ void compute_few(const DeltaArgs& a, const Block& b, const StateChain& chain, const Stage<S>* stages) {
  // Lane n of a group writes its column n.
  const Thread<S, false> t;
  const Chunk written = chunk_of<S>(a, b, min(t.lane, S::kColumns - 1));
  const int32_t column = written.first + t.group;
  const bool writes = t.lane < S::kColumns && (S::whole || column < a.value_dim);
  float* const out = a.out + int64_t{written.head} * a.value_dim + column;
  State<S, false> state;
  const uint64_t policy = is_streamed(a) ? evict_first_policy() : evict_normal_policy();
  state.load(a, b, t, a.inputs.rows.segments[chain.first_segment].from, policy);
  Tiles<S::kTokens> tiles(a.inputs.rows, chain);
  int32_t stage = 0;
  grid_wait();
  grid_trigger();
  __syncthreads();
  do {
    const int32_t count = tiles.count();
    const float* row = stages[stage].u[0];
    float* to = out + int64_t{tiles.row()} * a.out_stride;
#pragma unroll 1
    for (int32_t i = 0; i < count; ++i, row += S::kWidth, to += a.out_stride) {
      Keys k, q;
      Position<S> p;
      k.template load<S>(row + S::kKey, t.lane);
      q.template load<S>(row, t.lane);
      p.load(row, t);
      const float o = state.compute(p, k, q, t);
      if (writes) *to = o;
    }
    if (tiles.ends_segment()) state.store(a, b, t, tiles.to(), policy);
    tiles.next();
    stage = stage + 1 < kStages ? stage + 1 : 0;
    __syncthreads();
  } while (tiles.any());
}

// Computes prompts. The last position of a tile loads the first one of the next tile, so the barrier comes before it.
template <class S>
__device__ __forceinline__ void compute_many(const DeltaArgs& a, const Block& b, const StateChain& chain, const Stage<S>* stages) {
  const Thread<S, true> t;
  State<S, true> state;
  const Chunk written = chunk_of<S>(a, b, State<S, true>::writes_third(t) ? 2 : t.chunk(0));
  const int32_t column = written.first + t.group;
  float* const out = a.out + int64_t{written.head} * a.value_dim + column;
  state.load(a, b, t, a.inputs.rows.segments[chain.first_segment].from);
  Tiles<S::kTokens> tiles(a.inputs.rows, chain);
  int32_t stage = 0;
  grid_wait();
  grid_trigger();
  __syncthreads();
  const float* row = stages[0].u[0];  // of the position that is loaded next
  Keys k, other_k, q;
  Position<S> p, other;
  Unsummed<S> results;
  const auto load = [&] {
    k.template load<S>(row + S::kKey, t.lane);
    q.template load<S>(row, t.lane);
    p.load(row, t);
    row += S::kWidth;
  };
  // Continues with the next tile, when all of this one has been loaded.
  const auto cross = [&] {
    stage = stage + 1 < kStages ? stage + 1 : 0;
    row = stages[stage].u[0];
    __syncthreads();
  };
  load();
  do {
    const int32_t count = tiles.count();
    float* to = S::whole || column < a.value_dim ? out + int64_t{tiles.row()} * a.out_stride : nullptr;
    const int64_t stride = S::whole || column < a.value_dim ? a.out_stride : 0;
    const auto first = [&] {
      state.compute_ahead(p, k, q, row, other, other_k, results, to, t);
      to += stride;
      row += S::kWidth;
    };
    const auto second = [&] {
      state.compute_ahead(other, other_k, q, row, p, k, results, to, t);
      to += stride;
      row += S::kWidth;
    };
    int32_t left = count;
#pragma unroll 1
    for (; left > 2; left -= 2) {
      first();
      second();
    }
    if (left == 2) {
      first();
      cross();
      second();
    } else if (left == 1) {
      cross();
      first();
      p = other, k = other_k;
    } else {
      cross();
      load();
    }
    if (tiles.ends_segment()) state.store(a, b, t, tiles.to());
    tiles.next();
  } while (tiles.any());
  State<S, true>::write_last(results, t);
}

// Blocks (i, chain): those of the heads, and then the inputs of the convolution, which have no place in the recurrence.
template <class S, bool is_short>
__global__ void __launch_bounds__(S::kThreads, is_short ? S::kShortBlocks : S::kBlocks)
    delta_of_chains(const __grid_constant__ DeltaArgs a, int32_t chunks) {
  const StateChain chain = a.inputs.rows.chains[blockIdx.y];
  const int32_t item = blockIdx.x, blocks = a.heads * chunks / S::kColumns;
  if (chain.segments <= 0) {
    grid_wait();
    return;
  }
  if (item >= blocks) {
    grid_wait();
    grid_trigger();
    store_inputs<false, S::whole>(a.inputs, chain, ((item - blocks) * S::kThreads + static_cast<int32_t>(threadIdx.x)) * 4);
    return;
  }
  Stage<S>* const stages = reinterpret_cast<Stage<S>*>(dynamic_memory());
  if (threadIdx.x >= S::kComputing) prepare_tiles(a, Block{item, chunks}, chain, stages);
  else if constexpr (is_short) compute_few<S>(a, Block{item, chunks}, chain, stages);
  else compute_many<S>(a, Block{item, chunks}, chain, stages);
}

template <class S>
int32_t chunks_of(const DeltaArgs& a) {  // a value head
  return (a.value_dim + S::kGroups - 1) / S::kGroups;
}

bool has_few_rows(const DeltaArgs& a) { return a.inputs.rows.rows <= 2 * a.inputs.rows.chain_count; }

template <class S, bool is_short>
cudaError_t start(const DeltaArgs& a, const Stream& on) {
  constexpr size_t kShared = kStages * sizeof(Stage<S>);
  static_assert(kShared <= 48 << 10, "more must be asked for");
  const int32_t stores = ((a.inputs.width + 3) / 4 + S::kThreads - 1) / S::kThreads, chunks = chunks_of<S>(a);
  const dim3 grid(static_cast<unsigned>(a.heads * chunks / S::kColumns + stores), static_cast<unsigned>(a.inputs.rows.chain_count));
  // Prompts wait for the whole kernel before them. As dependents, convolution, delta and norm of 4 096 positions took twice the sum of
  // their times, probably because early blocks share the few SMs that are free first (README.md).
  const Stream spread{on.stream, on.dependent && is_short};
  return launch(spread, grid, dim3(S::kThreads), kShared, delta_of_chains<S, is_short>, a, chunks);
}

template <class S>
cudaError_t start(const DeltaArgs& a, const Stream& on) {
  return has_few_rows(a) ? start<S, true>(a, on) : start<S, false>(a, on);
}

// Columns of a group that the fullest SM has, if each takes its share of the blocks.
template <class S>
int64_t columns_of_fullest(const DeltaArgs& a) {
  const int64_t blocks = int64_t{a.heads} * chunks_of<S>(a) / S::kColumns * a.inputs.rows.chain_count;
  return (blocks + a.sm_count - 1) / a.sm_count * S::kColumns;
}

cudaError_t start_128(const DeltaArgs& a, const Stream& on) {
  using Two = WholeHeads<128, 2>;
  using Three = WholeHeads<128, 3>;
  const bool three = a.heads / a.key_heads * chunks_of<Three>(a) % 3 == 0 && columns_of_fullest<Three>(a) <= columns_of_fullest<Two>(a);
  return three && !has_few_rows(a) ? start<Three, false>(a, on) : start<Two>(a, on);
}

}  // namespace

cudaError_t launch_delta(const DeltaArgs& args, const Stream& on) {
  const StoreInputsArgs& in = args.inputs;
  if (in.rows.chain_count < 0 || in.rows.chain_count > 65535 || in.conv < 2 || in.conv > 64 || in.gates || args.key_heads < 1 ||
      args.heads < 1 || args.heads % args.key_heads != 0 || args.key_dim < 1 || args.key_dim > kMostDeltaKeys || args.value_dim < 1 ||
      in.width != 2 * args.key_heads * args.key_dim + args.heads * args.value_dim || args.sm_count < 1)
    return cudaErrorInvalidValue;
  // The order of S depends on the shape of the layer alone, so that every kernel of the shape can read it.
  const bool whole = args.value_dim % 32 == 0 && (args.key_dim == 64 || args.key_dim == 128 || args.key_dim == 256);
  if (whole && (!aligned(args.u, 16) || args.u_stride % 4 != 0 || !whole_inputs(in))) return cudaErrorInvalidValue;
  if (in.rows.chain_count == 0) return cudaSuccess;
  if (!whole) return start<AnyHeads>(args, on);
  if (args.key_dim == 64) return start<WholeHeads<64, 2>>(args, on);
  return args.key_dim == 128 ? start_128(args, on) : start<WholeHeads<256, 2>>(args, on);
}

}  // namespace mr::cuda
