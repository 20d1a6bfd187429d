// delta: the gated delta rule, position by position. A block has some columns of S of one value head of one chain, from the chain's first
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
// Heads of 64, 128 and 256 keys with whole tiles of 32 columns have kernels of their own, where S lies as lanes hold it: in order of head,
// tile, column of a group, j, thread, and four keys. All other heads have S by head, column and key, and a warp for each column.
//
// A launch with at most two rows a chain has a form that does not load the next position ahead. It takes a quarter fewer registers, so an
// SM has four blocks whose loads of S overlap, and not three.
//
// One prompt of 32 heads of 128 x 128 has 128 blocks. A chain moves 8 bytes an element of S, however many positions it has. Test bound:
// 2^-20 of the largest result of 40 positions.
#include <type_traits>

#include "kernels/instructions.cuh"
#include "kernels/math.cuh"
#include "kernels/states/inputs.cuh"
#include "kernels/states/states.h"

namespace mr::cuda {
namespace {

constexpr int32_t kStages = 3;
constexpr int32_t kVectors = 4;          // of four keys, of a lane
constexpr int32_t kLaneKeys = 4 * kVectors;
constexpr int32_t kWarp = 32;
constexpr int32_t kCopied = 4 * kWarp;  // numbers that one instruction of a warp copies

template <int32_t lanes, int32_t columns, int32_t groups, bool is_whole>
struct Shape {
  static constexpr int32_t kLanes = lanes, kColumns = columns;  // of a group
  static constexpr int32_t kGroups = groups;
  static constexpr bool whole = is_whole;  // heads have kKeys keys and whole tiles
  static constexpr int32_t kKeys = kLanes * kLaneKeys, kTileColumns = kGroups * kColumns;
  static constexpr int32_t kComputing = kGroups * kLanes, kThreads = kComputing + kWarp;
  static constexpr int32_t kTokens = 1024 / kKeys;             // of a tile
  static constexpr int32_t kWidth = 2 * kKeys + kTileColumns;  // of a position in it
  // Blocks that an SM must hold, and in the form for at most two rows a chain.
  static constexpr int32_t kBlocks = kThreads > 256 ? 1 : 3, kShortBlocks = kThreads > 256 ? 2 : 4;
  static_assert(kLanes <= kWarp && kComputing % kWarp == 0 && kTokens * kLanes % kWarp == 0, "");
};
template <int32_t keys>
using WholeHeads = Shape<keys / kLaneKeys, 2, keys == 256 ? 8 : 16, true>;
using AnyHeads = Shape<32, 1, 8, false>;
static_assert(AnyHeads::kKeys == kMostDeltaKeys, "");

// The positions of a tile.
template <class S>
struct alignas(16) Stage {
  // One position more than are written, because a lane reads one ahead of the last.
  float u[S::kTokens + 1][S::kWidth];  // query, key, values; zeros beyond the head
  float4 scalars[S::kTokens + 1];      // decay, beta, q.k
  float alpha[S::kTokens], beta[S::kTokens];

  __device__ __forceinline__ const float* q(int32_t token) const { return u[token]; }
  __device__ __forceinline__ const float* k(int32_t token) const { return u[token] + S::kKeys; }
  __device__ __forceinline__ const float* v(int32_t token) const { return u[token] + 2 * S::kKeys; }
};

// The columns of a block.
struct Columns {
  int32_t head, first;  // first: column of the head
  int64_t q, k, v;      // in a row of u
  int64_t state;        // of the head, in a state
};

template <class S>
__device__ __forceinline__ Columns columns_of(const DeltaArgs& a, int32_t head, int32_t tile) {
  const int32_t group = a.tiled_heads ? head % a.key_heads : head / (a.heads / a.key_heads), keys = a.key_heads * a.key_dim;
  const int32_t first = tile * S::kTileColumns;
  return {head, first, int64_t{group} * a.key_dim, int64_t{keys} + int64_t{group} * a.key_dim,
          2 * int64_t{keys} + int64_t{head} * a.value_dim + first,
          int64_t{a.inputs.conv - 1} * a.inputs.width + int64_t{head} * a.key_dim * a.value_dim};
}

// Tiles walks over the tiles of a chain. A tile does not pass the end of its segment; a segment without rows has one tile.
template <int32_t kTokens>
class Tiles {
 public:
  __device__ __forceinline__ Tiles(const StateRows& rows, const StateChain& chain)
      : at_(rows.segments + chain.first_segment), segments_(chain.segments), segment_(*at_) {}
  __device__ __forceinline__ bool any() const { return segments_ > 0; }
  __device__ __forceinline__ int32_t row() const { return segment_.first_row + offset_; }
  __device__ __forceinline__ int32_t count() const { return min(kTokens, segment_.count - offset_); }
  __device__ __forceinline__ bool ends_segment() const { return offset_ + kTokens >= segment_.count; }
  __device__ __forceinline__ int32_t to() const { return segment_.to; }
  __device__ __forceinline__ void next() {
    offset_ += kTokens;
    if (offset_ < segment_.count) return;
    offset_ = 0;
    if (--segments_ > 0) segment_ = *++at_;
  }

 private:
  const StateSegment* at_;
  int32_t segments_, offset_ = 0;
  StateSegment segment_;
};

// Requests a tile. Each lane commits one group of copies, an empty one if no tile is left.
template <class S>
__device__ __forceinline__ void request(const DeltaArgs& a, const Columns& c, const Tiles<S::kTokens>& tiles, Stage<S>& stage,
                                        int32_t lane) {
  if (tiles.any()) {
    const int32_t count = tiles.count();
    const int64_t row = tiles.row();
    if constexpr (S::whole) {
      // Positions beyond the segment become zeros, because with branches the loop of the preparing warp has 554 instructions
      // instead of 363.
      constexpr int32_t kOfToken = 2 * S::kKeys / kCopied, kOfValues = S::kTileColumns / 4;
      const auto bytes = [&](int32_t token) { return token < count ? 16u : 0u; };
      const float *from[kOfToken], *values = a.u + (row + lane / kOfValues) * a.u_stride + c.v + lane % kOfValues * 4;
#pragma unroll
      for (int32_t i = 0; i < kOfToken; ++i) {
        const int32_t e = i * kCopied + lane * 4;
        from[i] = a.u + row * a.u_stride + (e < S::kKeys ? c.q : c.k - S::kKeys) + e;
      }
#pragma unroll
      for (int32_t token = 0; token < S::kTokens; ++token)
#pragma unroll
        for (int32_t i = 0; i < kOfToken; ++i, from[i - 1] += a.u_stride)
          copy16_or_zero(shared_address(stage.u[token] + i * kCopied + lane * 4), from[i], bytes(token));
#pragma unroll
      for (int32_t i = 0; i < S::kTokens * kOfValues; i += kWarp, values += kWarp / kOfValues * a.u_stride) {
        const int32_t token = (i + lane) / kOfValues;
        if (token < S::kTokens)
          copy16_or_zero(shared_address(stage.v(token) + lane % kOfValues * 4), values, bytes(token));
      }
    } else {
      for (int32_t i = lane; i < count * S::kWidth; i += kWarp) {
        const int32_t token = i / S::kWidth, e = i % S::kWidth, part = min(e / S::kKeys, 2), at = e - part * S::kKeys;
        const int64_t first = part == 0 ? c.q : part == 1 ? c.k : c.v;
        const bool there = at < (part == 2 ? a.value_dim - c.first : a.key_dim);
        copy4_or_zero(shared_address(stage.u[token] + e), a.u + (row + token) * a.u_stride + first + (there ? at : 0), there ? 4 : 0);
      }
    }
    if (lane < count) {
      const int64_t at = (row + lane) * a.scalar_stride + c.head;
      copy4_or_zero(shared_address(stage.alpha + lane), a.alpha + at, 4);
      copy4_or_zero(shared_address(stage.beta + lane), a.beta + at, 4);
    }
  }
  copies_commit();
}

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(exp_f32(-fabsf(x))); }

// Adds the products of four keys to the sums of even and of odd keys.
__device__ __forceinline__ void add_products(float4 a, float4 b, float (&sum)[2]) {
  sum[0] = fmaf(a.x, b.x, sum[0]);
  sum[1] = fmaf(a.y, b.y, sum[1]);
  sum[0] = fmaf(a.z, b.z, sum[0]);
  sum[1] = fmaf(a.w, b.w, sum[1]);
}

template <class S>
__device__ __forceinline__ float4 keys_of(const float* row, int32_t j, int32_t lane) {
  return reinterpret_cast<const float4*>(row)[j * S::kLanes + lane];
}

// Computes the scalars of a tile whose copies have been committed before those of the tile after it. a and dt are of the head.
template <class S>
__device__ __forceinline__ void prepare(Stage<S>& stage, int32_t count, float a, float dt, int32_t lane) {
  copies_wait<1>();
  __syncwarp();
  if (lane < count) {
    stage.scalars[lane].x = exp_f32(a * softplus(stage.alpha[lane] + dt));
    stage.scalars[lane].y = 1.0f / (1.0f + exp_f32(-stage.beta[lane]));
  }
#pragma unroll
  for (int32_t first = 0; first < S::kTokens; first += kWarp / S::kLanes) {
    const int32_t token = first + lane / S::kLanes, l = lane % S::kLanes;
    float sum[2] = {0, 0};
#pragma unroll
    for (int32_t j = 0; j < kVectors; ++j) add_products(keys_of<S>(stage.q(token), j, l), keys_of<S>(stage.k(token), j, l), sum);
    float dot = sum[0] + sum[1];
#pragma unroll
    for (int32_t d = S::kLanes / 2; d > 0; d /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, d);
    if (l == 0) stage.scalars[token].z = dot;
  }
}

// A lane's part of one vector of keys.
struct Keys {
  float4 of[kVectors];
  template <class S>
  __device__ __forceinline__ void load(const float* row, int32_t lane) {
#pragma unroll
    for (int32_t j = 0; j < kVectors; ++j) of[j] = keys_of<S>(row, j, lane);
  }
};

// The other numbers of one position that a lane reads.
template <class S>
struct Position {
  float4 scalars;  // decay, beta, q.k
  float v[S::kColumns];
  __device__ __forceinline__ void load(const Stage<S>& stage, int32_t i) {
    scalars = stage.scalars[i];
#pragma unroll
    for (int32_t n = 0; n < S::kColumns; ++n) v[n] = stage.v(i)[threadIdx.x / S::kLanes * S::kColumns + n];
  }
};

// The columns of S of one lane.
template <class S>
struct State {
  float4 s[S::kColumns][kVectors];

  // Calls body(float4, place in the state's columns of the block) or, of other heads, body(float, place) for each key.
  template <class Body>
  __device__ __forceinline__ void each(const DeltaArgs& a, const Columns& c, Body body) {
    const int32_t thread = threadIdx.x, lane = thread % S::kLanes;
#pragma unroll
    for (int32_t i = 0; i < S::kColumns; ++i)
#pragma unroll
      for (int32_t j = 0; j < kVectors; ++j) {
        if constexpr (S::whole) {
          body(s[i][j], int64_t{c.first} * S::kKeys + (int64_t{i * kVectors + j} * S::kComputing + thread) * 4);
        } else {
          const int32_t column = c.first + thread / S::kLanes, key = 4 * (j * S::kLanes + lane);
          const int64_t at = int64_t{column} * a.key_dim + key;
          if (column >= a.value_dim) continue;
          if (key < a.key_dim) body(s[i][j].x, at);
          if (key + 1 < a.key_dim) body(s[i][j].y, at + 1);
          if (key + 2 < a.key_dim) body(s[i][j].z, at + 2);
          if (key + 3 < a.key_dim) body(s[i][j].w, at + 3);
        }
      }
  }

  __device__ __forceinline__ void load(const DeltaArgs& a, const Columns& c, int32_t from) {
#pragma unroll
    for (int32_t i = 0; i < S::kColumns; ++i)
#pragma unroll
      for (int32_t j = 0; j < kVectors; ++j) s[i][j] = float4{};
    if (from < 0) return;
    const float* const state = a.inputs.states.base + from * a.inputs.states.stride + c.state;
    each(a, c, [&](auto& x, int64_t at) { x = __ldcg(reinterpret_cast<const std::remove_reference_t<decltype(x)>*>(state + at)); });
  }

  __device__ __forceinline__ void store(const DeltaArgs& a, const Columns& c, int32_t to) {
    float* const state = a.inputs.states.base + to * a.inputs.states.stride + c.state;
    each(a, c, [&](auto& x, int64_t at) { *reinterpret_cast<std::remove_reference_t<decltype(x)>*>(state + at) = x; });
  }

  // Returns a lane's part of the product with column n.
  __device__ __forceinline__ float dot(const Keys& keys, int32_t n) const {
    float sum[2] = {0, 0};
#pragma unroll
    for (int32_t j = 0; j < kVectors; ++j) add_products(keys.of[j], s[n][j], sum);
    return sum[0] + sum[1];
  }

  // Adds the parts of a group's lanes.
  static __device__ __forceinline__ void reduce(float (&sums)[S::kColumns]) {
#pragma unroll
    for (int32_t d = S::kLanes / 2; d > 0; d /= 2)
#pragma unroll
      for (int32_t n = 0; n < S::kColumns; ++n) sums[n] += __shfl_xor_sync(0xffffffffu, sums[n], d);
  }

  // Computes a position of key k and query q. ahead: it loads position `after` of the tile: q becomes its key and k its query, because a
  // lane has registers for two vectors. q.S, loads and the decay of S run while k.S is reduced. Returns the result of column `lane` of the
  // group.
  template <bool ahead>
  __device__ __forceinline__ float compute(const Position<S>& p, Keys& k, Keys& q, const Stage<S>& stage, int32_t after,
                                           Position<S>& next) {
    const int32_t lane = threadIdx.x % S::kLanes;
    const float decay = p.scalars.x, beta = p.scalars.y, qk = p.scalars.z;
    float remembered[S::kColumns], o[S::kColumns];
#pragma unroll
    for (int32_t n = 0; n < S::kColumns; ++n) remembered[n] = dot(k, n);
    reduce(remembered);
#pragma unroll
    for (int32_t n = 0; n < S::kColumns; ++n) {
      o[n] = dot(q, n);
#pragma unroll
      for (int32_t j = 0; j < kVectors; ++j) s[n][j] = product(s[n][j], decay);
    }
    if constexpr (ahead) {
      q.template load<S>(stage.k(after), lane);
      next.load(stage, after);
    }
    reduce(o);
    float mine = 0;
#pragma unroll
    for (int32_t n = 0; n < S::kColumns; ++n) {
      const float d = fmaf(-decay, remembered[n], p.v[n]) * beta;
#pragma unroll
      for (int32_t j = 0; j < kVectors; ++j) s[n][j] = multiply_add(k.of[j], float4{d, d, d, d}, s[n][j]);
      const float result = fmaf(qk, d, decay * o[n]);
      mine = lane == n ? result : mine;
    }
    if constexpr (ahead) k.template load<S>(stage.q(after), lane);
    return mine;
  }
};

template <class S>
__device__ __forceinline__ void prepare_tiles(const DeltaArgs& a, const Columns& c, const StateChain& chain, Stage<S>* stages) {
  const int32_t lane = threadIdx.x % kWarp;
  const float decay = a.a[c.head], dt = a.dt[c.head];
  Tiles<S::kTokens> ready(a.inputs.rows, chain), requested = ready;
  int32_t stage = 0, free = 2;
  grid_wait();
  grid_trigger();
#pragma unroll
  for (int32_t i = 0; i < 2; ++i) {
    request(a, c, requested, stages[i], lane);
    if (requested.any()) requested.next();
  }
  prepare(stages[0], ready.count(), decay, dt, lane);
  __syncthreads();
  do {
    request(a, c, requested, stages[free], lane);
    if (requested.any()) requested.next();
    free = free + 1 < kStages ? free + 1 : 0;
    stage = stage + 1 < kStages ? stage + 1 : 0;
    ready.next();
    if (ready.any()) prepare(stages[stage], ready.count(), decay, dt, lane);
    __syncthreads();
  } while (ready.any());
}

template <class S, bool is_short>
__device__ __forceinline__ void compute_tiles(const DeltaArgs& a, const Columns& c, const StateChain& chain, const Stage<S>* stages) {
  // Lane n of a group writes its column n.
  const int32_t lane = threadIdx.x % S::kLanes, column = c.first + threadIdx.x / S::kLanes * S::kColumns + lane;
  const bool writes = lane < S::kColumns && (S::whole || column < a.value_dim);
  float* const out = a.out + int64_t{c.head} * a.value_dim + column;
  State<S> state;
  state.load(a, c, a.inputs.rows.segments[chain.first_segment].from);
  Tiles<S::kTokens> tiles(a.inputs.rows, chain);
  int32_t stage = 0;
  grid_wait();
  grid_trigger();
  __syncthreads();
  do {
    const Stage<S>& tile = stages[stage];
    const int32_t count = tiles.count(), last = count - 1;
    float* to = out + int64_t{tiles.row()} * a.out_stride;
    Keys k, q;
    Position<S> p, next;
    if constexpr (is_short) {
#pragma unroll 1
      for (int32_t i = 0; i < count; ++i) {
        k.template load<S>(tile.k(i), lane);
        q.template load<S>(tile.q(i), lane);
        p.load(tile, i);
        const float o = state.template compute<false>(p, k, q, tile, i, next);
        if (writes) *to = o;
        to += a.out_stride;
      }
    } else {
      k.template load<S>(tile.k(0), lane);
      q.template load<S>(tile.q(0), lane);
      p.load(tile, 0);
      int32_t i = 0;
#pragma unroll 1
      for (; i < last; i += 2) {
        const float first = state.template compute<true>(p, k, q, tile, i + 1, next);
        if (writes) *to = first;
        to += a.out_stride;
        const float second = state.template compute<true>(next, q, k, tile, i + 2, p);
        if (writes) *to = second;
        to += a.out_stride;
      }
      if (i < count) {
        const float o = state.template compute<true>(p, k, q, tile, i + 1, next);
        if (writes) *to = o;
      }
    }
    if (tiles.ends_segment()) state.store(a, c, tiles.to());
    tiles.next();
    stage = stage + 1 < kStages ? stage + 1 : 0;
    __syncthreads();
  } while (tiles.any());
}

// Blocks (i, chain): the heads' tiles, and then the inputs of the convolution, which have no place in the recurrence.
template <class S, bool is_short>
__global__ void __launch_bounds__(S::kThreads, is_short ? S::kShortBlocks : S::kBlocks)
    delta_of_chains(const __grid_constant__ DeltaArgs a, int32_t tiles) {
  const StateChain chain = a.inputs.rows.chains[blockIdx.y];
  const int32_t item = blockIdx.x, columns = a.heads * tiles;
  if (chain.segments <= 0) {
    grid_wait();
    return;
  }
  if (item >= columns) {
    grid_wait();
    grid_trigger();
    store_inputs<false, S::whole>(a.inputs, chain, ((item - columns) * S::kThreads + static_cast<int32_t>(threadIdx.x)) * 4);
    return;
  }
  Stage<S>* const stages = reinterpret_cast<Stage<S>*>(dynamic_memory());
  const Columns c = columns_of<S>(a, item / tiles, item % tiles);
  if (threadIdx.x >= S::kComputing) prepare_tiles(a, c, chain, stages);
  else compute_tiles<S, is_short>(a, c, chain, stages);
}

template <class S>
cudaError_t start(const DeltaArgs& a, const Stream& on) {
  constexpr size_t kShared = kStages * sizeof(Stage<S>);
  static_assert(kShared <= 48 << 10, "more must be asked for");
  const int32_t tiles = (a.value_dim + S::kTileColumns - 1) / S::kTileColumns;
  const int32_t stores = ((a.inputs.width + 3) / 4 + S::kThreads - 1) / S::kThreads;
  const dim3 grid(static_cast<unsigned>(a.heads * tiles + stores), static_cast<unsigned>(a.inputs.rows.chain_count));
  const bool is_short = a.inputs.rows.rows <= 2 * a.inputs.rows.chain_count;
  // A dependent launch gives its blocks to the SMs that the kernel before it leaves first, three to an SM, and the others stay idle: 128
  // blocks of 4 096 positions take 1 732 us and not 760. Prompts therefore wait for the whole kernel before them.
  const Stream spread{on.stream, on.dependent && is_short};
  return launch(spread, grid, dim3(S::kThreads), kShared, is_short ? delta_of_chains<S, true> : delta_of_chains<S, false>, a, tiles);
}

}  // namespace

cudaError_t launch_delta(const DeltaArgs& args, const Stream& on) {
  const StoreInputsArgs& in = args.inputs;
  if (in.rows.chain_count < 0 || in.rows.chain_count > 65535 || in.conv < 2 || in.conv > 64 || in.gates || args.key_heads < 1 ||
      args.heads < 1 || args.heads % args.key_heads != 0 || args.key_dim < 1 || args.key_dim > kMostDeltaKeys || args.value_dim < 1 ||
      in.width != 2 * args.key_heads * args.key_dim + args.heads * args.value_dim)
    return cudaErrorInvalidValue;
  // Which kernel runs depends on the shape of the layer alone, because each has its own order of S.
  const bool whole = args.value_dim % 32 == 0 && (args.key_dim == 64 || args.key_dim == 128 || args.key_dim == 256);
  if (whole && (!aligned(args.u, 16) || args.u_stride % 4 != 0 || !whole_inputs(in))) return cudaErrorInvalidValue;
  if (in.rows.chain_count == 0) return cudaSuccess;
  if (!whole) return start<AnyHeads>(args, on);
  if (args.key_dim == 64) return start<WholeHeads<64>>(args, on);
  return args.key_dim == 128 ? start<WholeHeads<128>>(args, on) : start<WholeHeads<256>>(args, on);
}

}  // namespace mr::cuda
