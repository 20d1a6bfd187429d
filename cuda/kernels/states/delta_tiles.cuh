// delta_tiles: how delta's blocks are cut from heads, and the tiles of positions that its preparing warp copies and completes.
#pragma once

#include "kernels/instructions.cuh"
#include "kernels/math.cuh"
#include "kernels/states/states.h"

namespace mr::cuda {

constexpr int32_t kVectors = 4;          // of four keys, of a lane
constexpr int32_t kLaneKeys = 4 * kVectors;
constexpr int32_t kWarp = 32;
constexpr int32_t kCopied = 4 * kWarp;  // numbers that one instruction of a warp copies

template <int32_t lanes, int32_t columns, int32_t groups, bool is_whole>
struct Shape {
  static constexpr int32_t kLanes = lanes, kColumns = columns;  // of a group; a block has as many chunks
  static constexpr int32_t kGroups = groups;
  static constexpr bool whole = is_whole;  // heads have kKeys keys and an even number of whole chunks
  static constexpr int32_t kHeads = columns == 3 ? 3 : 1;  // that chunks of a block may be of
  static constexpr int32_t kKeys = kLanes * kLaneKeys, kBlockColumns = kGroups * kColumns;
  static constexpr int32_t kComputing = kGroups * kLanes, kThreads = kComputing + kWarp;
  static constexpr int32_t kTokens = 1024 / kKeys;  // of a tile
  // A position of a tile: query, key, values, with zeros beyond the head, and scalars: decays, betas, q.k.
  static constexpr int32_t kKey = kKeys, kValue = 2 * kKeys, kScalar = kValue + kBlockColumns;
  // With three heads a second set follows, for lanes whose first two columns are swapped.
  static constexpr int32_t kSet = kHeads == 1 ? 4 : 8, kScalars = kHeads == 1 ? kSet : 2 * kSet;
  static constexpr int32_t kBeta = kHeads == 1 ? 1 : 4, kDot = kHeads == 1 ? 2 : 3;
  static constexpr int32_t kWidth = kScalar + kScalars;
  // Blocks that an SM must hold, and in the form for at most two rows a chain.
  static constexpr int32_t kBlocks = kThreads > 256 ? 1 : 2, kShortBlocks = kThreads > 256 ? 2 : 4;
  static_assert(kLanes <= kWarp && kComputing % kWarp == 0 && kTokens * kLanes % kWarp == 0 && kTokens * kHeads <= kWarp, "");
};
template <int32_t keys, int32_t columns>
using WholeHeads = Shape<keys / kLaneKeys, columns, keys == 256 ? 8 : 16, true>;
using AnyHeads = Shape<32, 1, 8, false>;
static_assert(AnyHeads::kKeys == kMostDeltaKeys, "");

// The positions of a tile.
template <class S>
struct alignas(16) Stage {
  float u[S::kTokens][S::kWidth];
  float alpha[S::kTokens * S::kHeads], beta[S::kTokens * S::kHeads];
};

// A block of the grid: kColumns chunks of one key head, in order of value heads and columns.
struct Block {
  int32_t item;    // blocks of all key heads
  int32_t chunks;  // of a value head
};

// kGroups neighbouring columns of a value head.
struct Chunk {
  int32_t head, first;
};

template <class S>
__device__ __forceinline__ int32_t key_head_of(const DeltaArgs& a, const Block& b) {
  return b.item * S::kColumns / (a.heads / a.key_heads * b.chunks);
}

// Returns chunk n of a block.
template <class S>
__device__ __forceinline__ Chunk chunk_of(const DeltaArgs& a, const Block& b, int32_t n) {
  const int32_t values = a.heads / a.key_heads, key_head = key_head_of<S>(a, b);
  const int32_t among = b.item * S::kColumns - key_head * values * b.chunks + (S::kHeads == 1 ? 0 : n);  // the key head's
  const int32_t value = among / b.chunks, first = (among - value * b.chunks + (S::kHeads == 1 ? n : 0)) * S::kGroups;
  return {a.tiled_heads ? key_head + value * a.key_heads : key_head * values + value, first};
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

// Requests copies tiles of a chain to shared memory.
template <class S>
class Requests {
 public:
  __device__ __forceinline__ Requests(const DeltaArgs& a, const Block& b, int32_t lane) : a_(a), lane_(lane) {
    const int32_t keys = a.key_heads * a.key_dim;
    query_ = int64_t{key_head_of<S>(a, b)} * a.key_dim;
    key_ = query_ + keys;
    scalar_ = lane / S::kHeads * a.scalar_stride + chunk_of<S>(a, b, lane % S::kHeads).head;
    const auto value_at = [&](const Chunk& c) { return 2 * int64_t{keys} + int64_t{c.head} * a.value_dim + c.first; };
#pragma unroll
    for (int32_t i = 0; i < kValueCopies; ++i) {
      const int32_t part = (i * kWarp + lane) % kParts;
      value_[i] = value_at(chunk_of<S>(a, b, S::whole ? part * 4 / S::kGroups : 0));
      if constexpr (S::whole) value_[i] += token_of(i) * a.u_stride + part * 4 % S::kGroups;
      else left_ = a.value_dim - chunk_of<S>(a, b, 0).first;
    }
  }

  // Each lane commits one group of copies, an empty one if no tile is left.
  __device__ __forceinline__ void tile(const Tiles<S::kTokens>& tiles, Stage<S>& stage) const {
    if (tiles.any()) {
      const int32_t count = tiles.count();
      const int64_t row = tiles.row();
      const float* const u = a_.u + row * a_.u_stride;
      if constexpr (S::whole) whole_heads(u, count, stage);
      else any_heads(u, count, stage);
      if (lane_ < count * S::kHeads) {
        const int64_t at = row * a_.scalar_stride + scalar_;
        copy4_or_zero(shared_address(stage.alpha + lane_), a_.alpha + at, 4);
        copy4_or_zero(shared_address(stage.beta + lane_), a_.beta + at, 4);
      }
    }
    copies_commit();
  }

 private:
  static constexpr int32_t kParts = S::kBlockColumns / 4;  // of a token's values, 16 bytes each
  static constexpr int32_t kValueCopies = S::whole ? (S::kTokens * kParts + kWarp - 1) / kWarp : 1;
  __device__ __forceinline__ int32_t token_of(int32_t i) const { return (i * kWarp + lane_) / kParts; }

  // Positions beyond the segment become zeros, because with branches the loop of the preparing warp has 554 instructions instead of 363.
  __device__ __forceinline__ void whole_heads(const float* u, int32_t count, Stage<S>& stage) const {
    constexpr int32_t kOfToken = 2 * S::kKeys / kCopied;
    const auto bytes = [&](int32_t token) { return token < count ? 16u : 0u; };
    const float* from[kOfToken];
#pragma unroll
    for (int32_t i = 0; i < kOfToken; ++i) {
      const int32_t e = i * kCopied + lane_ * 4;
      from[i] = u + (e < S::kKeys ? query_ : key_ - S::kKeys) + e;
    }
#pragma unroll
    for (int32_t token = 0; token < S::kTokens; ++token)
#pragma unroll
      for (int32_t i = 0; i < kOfToken; ++i, from[i - 1] += a_.u_stride)
        copy16_or_zero(shared_address(stage.u[token] + i * kCopied + lane_ * 4), from[i], bytes(token));
#pragma unroll
    for (int32_t i = 0; i < kValueCopies; ++i) {
      const int32_t token = token_of(i), part = (i * kWarp + lane_) % kParts;
      if (token < S::kTokens) copy16_or_zero(shared_address(stage.u[token] + S::kValue + part * 4), u + value_[i], bytes(token));
    }
  }

  __device__ __forceinline__ void any_heads(const float* u, int32_t count, Stage<S>& stage) const {
    for (int32_t i = lane_; i < count * S::kScalar; i += kWarp) {
      const int32_t token = i / S::kScalar, e = i % S::kScalar, part = min(e / S::kKeys, 2), at = e - part * S::kKeys;
      const int64_t first = part == 0 ? query_ : part == 1 ? key_ : value_[0];
      const bool there = at < (part == 2 ? left_ : a_.key_dim);
      copy4_or_zero(shared_address(stage.u[token] + e), u + token * a_.u_stride + first + (there ? at : 0), there ? 4 : 0);
    }
  }

  const DeltaArgs& a_;
  const int32_t lane_;
  int32_t left_ = 0;             // columns of the head from the chunk on
  int64_t query_, key_;          // in a row of u
  int64_t value_[kValueCopies];  // from the first row of a tile
  int64_t scalar_;
};

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(exp_f32(-fabsf(x))); }
__device__ __forceinline__ float decay_of(float alpha, float a, float dt) { return exp_f32(a * softplus(alpha + dt)); }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

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

// A lane's part of one vector of keys.
struct Keys {
  float4 of[kVectors];
  template <class S>
  __device__ __forceinline__ void load(const float* row, int32_t lane) {
#pragma unroll
    for (int32_t j = 0; j < kVectors; ++j) of[j] = keys_of<S>(row, j, lane);
  }
};

// Returns the product of two vectors of keys to each lane of the group that has them.
template <class S>
__device__ __forceinline__ float product_of_keys(const Keys& q, const Keys& k) {
  float sum[2] = {0, 0};
#pragma unroll
  for (int32_t j = 0; j < kVectors; ++j) add_products(q.of[j], k.of[j], sum);
  float dot = sum[0] + sum[1];
#pragma unroll
  for (int32_t d = S::kLanes / 2; d > 0; d /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, d);
  return dot;
}

// Computes the scalars of a tile whose copies have been committed before those of the tile after it. a and dt are of the head of the
// lane's chunk.
template <class S>
__device__ __forceinline__ void prepare(Stage<S>& stage, int32_t count, float a, float dt, int32_t lane) {
  copies_wait<1>();
  __syncwarp();
  if (lane < count * S::kHeads) {
    float* const scalars = stage.u[lane / S::kHeads] + S::kScalar;
    const int32_t n = lane % S::kHeads;
    const float decay = decay_of(stage.alpha[lane], a, dt), beta = sigmoid(stage.beta[lane]);
    scalars[n] = decay;
    scalars[S::kBeta + n] = beta;
    if constexpr (S::kScalars > S::kSet) {
      const int32_t swapped = S::kSet + (n < 2 ? 1 - n : n);
      scalars[swapped] = decay;
      scalars[S::kBeta + swapped] = beta;
    }
  }
#pragma unroll
  for (int32_t first = 0; first < S::kTokens; first += kWarp / S::kLanes) {
    const int32_t token = first + lane / S::kLanes, l = lane % S::kLanes;
    Keys q, k;
    q.load<S>(stage.u[token], l);
    k.load<S>(stage.u[token] + S::kKey, l);
    const float dot = product_of_keys<S>(q, k);
    if (l < S::kScalars / S::kSet) stage.u[token][S::kScalar + l * S::kSet + S::kDot] = dot;
  }
}

}  // namespace mr::cuda
