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
// registers, so an SM has four blocks whose loads of S overlap. In it a chain of one row of whole heads needs no tiles, no preparing warp
// and no barrier. Prompts exchange q.S of a position while the next one computes k.S.
//
// One prompt of 32 heads of 128 x 128 has 128 blocks of two chunks. One of 48 heads, three for each key head, has 128 blocks of three,
// because 192 blocks of two would give 60 of 132 SMs twice the work. A chain moves 8 bytes an element of S, however many positions it has.
// Test bound: 2^-20 of the largest result of 40 positions.
#include "kernels/states/delta_state.cuh"
#include "kernels/states/delta_tiles.cuh"
#include "kernels/states/inputs.cuh"
#include "kernels/states/states.h"

namespace mr::cuda {
namespace {

constexpr int32_t kStages = 3;

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

// Computes a chain of one row, without tiles: each warp loads the inputs of its columns and computes decay, beta and q.k, while S is in
// flight. chunk: the first of the block, which others follow. alpha and beta are read before the wait (states.h says when that is allowed).
template <class S>
__device__ __forceinline__ void compute_one(const DeltaArgs& a, const Chunk& chunk, int32_t key_head, const StateSegment& segment,
                                            uint64_t policy) {
  static_assert(S::whole && S::kHeads == 1, "whole heads of one key head");
  const Thread<S, false> t;
  const int64_t row = segment.first_row, column = int64_t{chunk.head} * a.value_dim + chunk.first + t.group;
  const int64_t scalar = row * a.scalar_stride + chunk.head;
  const float alpha = __ldcg(a.alpha + scalar), beta = __ldcg(a.beta + scalar), rate = a.a[chunk.head], dt = a.dt[chunk.head];
  const int64_t at = int64_t{a.inputs.conv - 1} * a.inputs.width + (column - t.group) * S::kKeys + int64_t{threadIdx.x} * 4;
  const StateMemory& memory = a.inputs.states;
  State<S, false> state{};
  if (segment.from >= 0) {
    const float4* const from = reinterpret_cast<const float4*>(memory.base + segment.from * memory.stride + at);
#pragma unroll
    for (int32_t i = 0; i < S::kColumns * kVectors; ++i) state.s[i / kVectors][i % kVectors] = load16(from + i * S::kComputing, policy);
  }
  const float* const u = a.u + row * a.u_stride;
  const float* const query = u + int64_t{key_head} * S::kKeys;
  const float* const key = query + int64_t{a.key_heads} * S::kKeys;
  const float* const value = u + 2 * int64_t{a.key_heads} * S::kKeys + column;
  Keys k, q;
  Position<S> p;
  grid_wait();
  grid_trigger();
  k.template load<S>(key, t.lane);
  q.template load<S>(query, t.lane);
#pragma unroll
  for (int32_t n = 0; n < S::kColumns; ++n) p.v[n] = value[n * S::kGroups];
  p.scalars[0] = decay_of(alpha, rate, dt);
  p.scalars[S::kBeta] = sigmoid(beta);
  p.scalars[S::kDot] = product_of_keys<S>(q, k);
  const float o = state.compute(p, k, q, t);
  __syncwarp();  // a group has read its values, and the results may lie over them
  if (t.lane < S::kColumns) a.out[row * a.out_stride + column + t.lane * S::kGroups] = o;
  float4* const to = reinterpret_cast<float4*>(memory.base + segment.to * memory.stride + at);
#pragma unroll
  for (int32_t i = 0; i < S::kColumns * kVectors; ++i) store16(to + i * S::kComputing, state.s[i / kVectors][i % kVectors], policy);
}

// Computes decode rows, one or two of most chains.
template <class S>
__device__ __forceinline__ void compute_few(const DeltaArgs& a, const Block& b, const StateChain& chain, const Stage<S>* stages,
                                            uint64_t policy) {
  // Lane n of a group writes its column n.
  const Thread<S, false> t;
  const Chunk written = chunk_of<S>(a, b, min(t.lane, S::kColumns - 1));
  const int32_t column = written.first + t.group;
  const bool writes = t.lane < S::kColumns && (S::whole || column < a.value_dim);
  float* const out = a.out + int64_t{written.head} * a.value_dim + column;
  State<S, false> state;
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
    delta_of_chains(const __grid_constant__ DeltaArgs a, int32_t chunks, bool streamed) {
  const StateChain chain = a.inputs.rows.chains[blockIdx.y];
  const int32_t item = blockIdx.x, blocks = a.heads * chunks / S::kColumns;
  const Block block{item, chunks};
  Chunk chunk{};  // and the key head, for compute_one
  int32_t key_head = 0;
  if constexpr (is_short && S::whole) {
    chunk = chunk_of<S>(a, block, 0);
    key_head = key_head_of<S>(a, block);
    // Keeps the divisions here, while the chain is loaded. nvcc 12.4 moves them to the time after the segment.
    asm volatile("" : "+r"(chunk.head), "+r"(chunk.first), "+r"(key_head));
  }
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
  const uint64_t policy = streamed ? evict_first_policy() : evict_normal_policy();
  if constexpr (is_short && S::whole) {
    const StateSegment segment = a.inputs.rows.segments[chain.first_segment];
    if (chain.segments == 1 && segment.count == 1) {
      if (threadIdx.x < S::kComputing) compute_one<S>(a, chunk, key_head, segment, policy);
      return;
    }
  }
  Stage<S>* const stages = reinterpret_cast<Stage<S>*>(dynamic_memory());
  if (threadIdx.x >= S::kComputing) prepare_tiles(a, block, chain, stages);
  else if constexpr (is_short) compute_few<S>(a, block, chain, stages, policy);
  else compute_many<S>(a, block, chain, stages);
}

template <class S>
int32_t chunks_of(const DeltaArgs& a) {  // a value head
  return (a.value_dim + S::kGroups - 1) / S::kGroups;
}

bool has_few_rows(const DeltaArgs& a) { return a.inputs.rows.rows <= 2 * a.inputs.rows.chain_count; }

// is_streamed returns whether the S of all chains need more of L2 than a launch may fill. They then have the policy evict-first, so that
// rows and the inputs of the convolution, which several kernels of the layer read, stay in L2. Smaller launches have the normal policy:
// L2 writes S to memory while later kernels run.
bool is_streamed(const DeltaArgs& a) {
  return int64_t{a.inputs.rows.chain_count} * a.heads * a.key_dim * a.value_dim * 4 > 32 << 20;
}

template <class S, bool is_short>
cudaError_t start(const DeltaArgs& a, const Stream& on) {
  constexpr size_t kShared = kStages * sizeof(Stage<S>);
  static_assert(kShared <= 48 << 10, "more must be asked for");
  const int32_t stores = ((a.inputs.width + 3) / 4 + S::kThreads - 1) / S::kThreads, chunks = chunks_of<S>(a);
  const dim3 grid(static_cast<unsigned>(a.heads * chunks / S::kColumns + stores), static_cast<unsigned>(a.inputs.rows.chain_count));
  // Prompts wait for the whole kernel before them. As dependents, convolution, delta and norm of 4 096 positions took twice the sum of
  // their times, probably because early blocks share the few SMs that are free first (README.md).
  const Stream spread{on.stream, on.dependent && is_short};
  return launch(spread, grid, dim3(S::kThreads), kShared, delta_of_chains<S, is_short>, a, chunks, is_streamed(a));
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
