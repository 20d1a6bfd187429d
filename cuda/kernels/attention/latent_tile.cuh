// attention/latent_tile: the products of attention over a latent: 16 rows a warp, tile by tile of 32 keys.
//
//   queries (rows x kDim) ---+                      +--- weights (rows x 32) ---+
//                            |  scores, 32 keys     |                           |  out (rows x kValue) += weights * values
//   [stage 0][stage 1] ... --+  of a tile     max, exp2     [the same stage] ---+
//        cp.async
//
// kSharers warps share 16 rows. Each scores its own kKeys / kSharers keys of a tile and weighs its own kValue / kSharers dims of all
// keys. Between the two they exchange the greatest score of a row, and the weights, through shared memory. A key and its value are one
// row in shared memory, read twice.
//
// Order  A score is summed over dims in kChains chains of every kChains-th 16 dims, and the chains are added as a balanced tree. Weights
//        are rounded to the type of the cache. A row's sum of weights is that of a lane's columns tile by tile, then over the four lanes
//        of a row, then over sharers in ascending order. Nothing of it depends on other rows, and a tile that a row does not see changes
//        none of its bits.
// Keys past the last that the block reads are zeros, so stale contents of the cache have no influence.
#pragma once

#include "kernels/attention/latent.h"
#include "kernels/attention/mma.cuh"

namespace mr::cuda::latent {

constexpr int kKeys = 32;                     // of a tile
constexpr int kWeightRow = kKeys * 2 + 16;    // bytes of a row of weights: eight rows are in different banks
static_assert(kAttentionChunk % kKeys == 0 && kFirstPiece % kKeys == 0 && kWholePiece % kFirstPiece == 0,
              "tiles of keys do not cross borders of chunks or pieces");

// kTiles groups of 16 rows, each of kSharers warps; kStages tiles of keys in shared memory.
template <class Type, int dim, int tiles, int sharers, int stages>
struct Shape {
  typedef Type T;
  static constexpr int kDim = dim, kValue = latent_value_dims(dim), kTiles = tiles, kSharers = sharers, kStages = stages;
  static constexpr int kRows = 16 * tiles, kThreads = 32 * tiles * sharers;
  static constexpr int kOwnKeys = kKeys / sharers, kOwnDims = kValue / sharers;  // of a warp
  static constexpr int kChains = kOwnKeys == 8 ? 4 : 2;
  static constexpr int kPieces = kDim / 8;  // of 16 bytes, a row
  static constexpr int kRow = kSharedRow<dim>, kStage = kKeys * kRow;
  // Offsets in shared memory: queries, stages, weights, and one float of each row and sharer.
  static constexpr int kStagesAt = kRows * kRow, kWeightsAt = kStagesAt + stages * kStage, kExchangeAt = kWeightsAt + kRows * kWeightRow;
  static constexpr int kBytes = kExchangeAt + sharers * kRows * 4;
  static_assert((kOwnKeys == 8 || kOwnKeys == 16) && kOwnDims % 16 == 0 && kDim % 32 == 0 && kKeys * kPieces % kThreads == 0);
};

// Decode rows of up to 16 heads, or more; and the packed rows of a prompt.
template <class T, int dim>
using FewHeads = Shape<T, dim, 1, 4, 2>;
template <class T, int dim>
using ManyHeads = Shape<T, dim, 2, 2, 3>;
template <class T, int dim>
using Prompt = Shape<T, dim, 4, 2, 2>;
constexpr int kOwnShared = 5120;  // of decode: static, and reserved by the system for each block

// Block is a thread's part of its block's tile.
template <class S>
struct Block {
  typedef typename S::T T;

  const AttentionArgs& c;
  const uint32_t memory;  // shared memory address
  float* const exchange;  // (kSharers, kRows)
  const float scale;      // of scores, as powers of 2
  const int lane, g, t, sharer, row0;  // row0: the warp's first row
  int32_t position[2] = {0, 0};        // of rows row0 + g and row0 + g + 8
  RowSoftmax softmax[2];
  float out[S::kOwnDims / 8][4];

  __device__ __forceinline__ Block(const AttentionArgs& common, uint8_t* bytes, float scale_log2)
      : c(common), memory(shared_address(bytes)), exchange(reinterpret_cast<float*>(bytes + S::kExchangeAt)), scale(scale_log2),
        lane(static_cast<int>(threadIdx.x) % 32), g(lane / 4), t(lane % 4), sharer(static_cast<int>(threadIdx.x) / 32 / S::kTiles),
        row0(static_cast<int>(threadIdx.x) / 32 % S::kTiles * 16) {
    clear();
  }

  // Row r of this thread's two rows in the tile.
  __device__ __forceinline__ int row(int r) const { return row0 + g + 8 * r; }
  // First dim of out[n].
  __device__ __forceinline__ int dim(int n) const { return sharer * S::kOwnDims + 8 * n + 2 * t; }

  __device__ __forceinline__ void clear() {
    softmax[0] = softmax[1] = RowSoftmax{-INFINITY, 0.0f};
#pragma unroll
    for (int n = 0; n < S::kOwnDims / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] = 0;
  }

  // Requests the queries. from(row) returns the elements from c.q to the query of a row of the tile; below 0 it becomes zeros.
  template <class From>
  __device__ __forceinline__ void fetch_queries(From from) const {
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < S::kRows * S::kPieces; i += S::kThreads) {
      const int r = i / S::kPieces, piece = i % S::kPieces;
      const int64_t at = from(r);
      copy_valid(memory + r * S::kRow + piece * 16, static_cast<const T*>(c.q) + (at < 0 ? 0 : at + piece * 8), at >= 0);
    }
  }

  // The two blocks of 16 positions of a tile. With blocks of 32 tokens both are the same.
  struct Ids {
    int32_t low, high;
  };
  __device__ __forceinline__ Ids ids_of(const int32_t* table, int32_t key, int32_t last) const {
    const int32_t shift = c.layout.block_size == 16 ? 4 : 5;
    Ids ids{0, 0};
    if (key <= last) ids.low = ids.high = table[key >> shift];
    if (shift == 4 && key + 16 <= last) ids.high = table[(key >> 4) + 1];
    return ids;
  }

  // Requests the tile that begins at `key`.
  __device__ __forceinline__ void fetch_keys(const Ids& ids, int32_t key, int32_t last, int stage) const {
    const uint32_t to = memory + S::kStagesAt + stage * S::kStage;
#pragma unroll 3
    for (int n = 0; n < kKeys * S::kPieces / S::kThreads; ++n) {
      const int i = n * S::kThreads + static_cast<int>(threadIdx.x), r = i / S::kPieces, piece = i % S::kPieces;
      const int64_t block = r < 16 ? ids.low : ids.high;
      const int32_t in_block = (key + r) & (c.layout.block_size - 1);
      const int64_t at = block * c.layout.block_elements() + in_block * S::kDim + piece * 8;
      copy_valid(to + r * S::kRow + piece * 16, static_cast<const T*>(c.keys) + at, key + r <= last);
    }
  }

  // The scores of this warp's keys.
  __device__ __forceinline__ void score(float (&scores)[S::kOwnKeys / 8][4], uint32_t keys) const {
    constexpr int kFragments = S::kOwnKeys / 8;
    float sums[S::kChains][kFragments][4] = {};
    const uint32_t q_row = memory + (row0 + lane % 16) * S::kRow + lane / 16 * 16;
    if constexpr (kFragments == 1) {
      const uint32_t k_row = keys + (sharer * 8 + lane % 8) * S::kRow + lane / 8 * 16;
#pragma unroll
      for (int k = 0; k < S::kDim / 16; k += 2) {
        uint32_t b[4], q[4];
        load_matrices(b, k_row + k * 32);
        load_matrices(q, q_row + k * 32);
        mma16816<T>(sums[k % 4][0], q, b[0], b[1]);
        load_matrices(q, q_row + k * 32 + 32);
        mma16816<T>(sums[k % 4 + 1][0], q, b[2], b[3]);
      }
    } else {
      const uint32_t k_row = keys + (sharer * 16 + lane / 16 * 8 + lane % 8) * S::kRow + lane / 8 % 2 * 16;
#pragma unroll
      for (int k = 0; k < S::kDim / 16; ++k) {
        uint32_t b[4], q[4];
        load_matrices(b, k_row + k * 32);
        load_matrices(q, q_row + k * 32);
        mma16816<T>(sums[k % 2][0], q, b[0], b[1]);
        mma16816<T>(sums[k % 2][1], q, b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kFragments; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (S::kChains == 4) scores[n][i] = (sums[0][n][i] + sums[1][n][i]) + (sums[2][n][i] + sums[3][n][i]);
        else scores[n][i] = sums[0][n][i] + sums[1][n][i];
      }
  }

  // Turns the scores of a row's keys into weights, relative to the row's greatest score of all sharers, and `out` to the same base.
  // Writes the weights to shared memory. All threads must call it.
  __device__ __forceinline__ void weigh(float (&scores)[S::kOwnKeys / 8][4]) {
    constexpr int kFragments = S::kOwnKeys / 8;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float greatest = scores[0][2 * r];
#pragma unroll
      for (int n = 0; n < kFragments; ++n) greatest = fmaxf(greatest, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      greatest = quad_max(greatest);
      if (t == 0) exchange[sharer * S::kRows + row(r)] = greatest;
    }
    __syncthreads();  // the sharers' greatest scores are written
    const uint32_t to = memory + S::kWeightsAt + (sharer * S::kOwnKeys + 2 * t) * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float greatest = exchange[row(r)];
#pragma unroll
      for (int s = 1; s < S::kSharers; ++s) greatest = fmaxf(greatest, exchange[s * S::kRows + row(r)]);
      const float top = fmaxf(softmax[r].top, greatest * scale), base = base_of(top), decay = exp2_approx(softmax[r].top - base);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
        const float low = exp2_approx(fmaf(scores[n][2 * r], scale, -base)), high = exp2_approx(fmaf(scores[n][2 * r + 1], scale, -base));
        sum += low;
        sum += high;
        store_shared4(to + row(r) * kWeightRow + n * 16, ActOps<T>::pack(low, high));
      }
      softmax[r].sum = fmaf(softmax[r].sum, decay, sum);
      softmax[r].top = top;
#pragma unroll
      for (int n = 0; n < S::kOwnDims / 8; ++n) {
        out[n][2 * r] *= decay;
        out[n][2 * r + 1] *= decay;
      }
    }
    __syncthreads();  // all weights of the tile are written
  }

  // Adds the weighted values of a tile, of this warp's dims.
  __device__ __forceinline__ void add_values(uint32_t values) {
    const uint32_t w_row = memory + S::kWeightsAt + (row0 + lane % 16) * kWeightRow + lane / 16 * 16;
    const uint32_t v_row = values + lane % 16 * S::kRow + lane / 16 * 16 + sharer * S::kOwnDims * 2;
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t w[4];
      load_matrices(w, w_row + k * 32);
#pragma unroll
      for (int d = 0; d < S::kOwnDims / 16; ++d) {
        uint32_t v[4];
        load_matrices_transposed(v, v_row + k * 16 * S::kRow + d * 32);
        mma16816<T>(out[2 * d], w, v[0], v[1]);
        mma16816<T>(out[2 * d + 1], w, v[2], v[3]);
      }
    }
  }

  // Returns the parts of this thread's rows. All threads must call it, and a barrier must follow before the next tile is weighed.
  __device__ __forceinline__ void parts(Part (&parts)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(softmax[r].sum);
      if (t == 0) exchange[sharer * S::kRows + row(r)] = sum;
    }
    __syncthreads();  // the sharers' sums are written
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      parts[r] = Part{softmax[r].top, exchange[row(r)]};
#pragma unroll
      for (int s = 1; s < S::kSharers; ++s) parts[r].sum += exchange[s * S::kRows + row(r)];
    }
  }

  // Writes a result: out * share of row r, to a head's layout.head_dim elements.
  __device__ __forceinline__ void write(uint16_t* to, int r, float share) const {
#pragma unroll
    for (int n = 0; n < S::kOwnDims / 8; ++n)
      if (dim(n) < c.layout.head_dim)
        *reinterpret_cast<uint32_t*>(to + dim(n)) = act_bits(c.out_act, out[n][2 * r] * share, out[n][2 * r + 1] * share);
  }

  // Walks over the keys [first, last]. `first` begins a tile. ends(key) returns whether a tile ends a range of keys with a softmax of its
  // own, which the last tile always does; end(key) receives it, for the range that the tile at `key` ends. Queries that have been
  // requested travel with the first tile. All threads must call it, after a barrier that follows all uses of shared memory before.
  // `shortest`: no row is at a lower position.
  template <class Ends, class End>
  __device__ __forceinline__ void walk(const int32_t* table, int32_t first, int32_t last, int32_t shortest, Ends ends, End end) {
    int stage = 0, free_stage = 0;
    int32_t next = first;  // the tile to request
    Ids ids = ids_of(table, next, last);
    const auto request = [&] {
      if (next <= last) fetch_keys(ids, next, last, free_stage);
      copies_commit();
      next += kKeys;
      free_stage = free_stage + 1 == S::kStages ? 0 : free_stage + 1;
      ids = ids_of(table, next, last);
    };
#pragma unroll 1
    for (int s = 0; s < S::kStages - 1; ++s) request();
#pragma unroll 1
    for (int32_t key = first; key <= last; key += kKeys) {
      copies_wait<S::kStages - 2>();
      __syncthreads();  // the tile has arrived, and every warp is done with the one before
      request();
      const uint32_t keys = memory + S::kStagesAt + stage * S::kStage;
      float scores[S::kOwnKeys / 8][4];
      score(scores, keys);
      if (key + kKeys - 1 > shortest) {
#pragma unroll
        for (int n = 0; n < S::kOwnKeys / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (key + sharer * S::kOwnKeys + 8 * n + 2 * t + i % 2 > position[i / 2]) scores[n][i] = -INFINITY;
      }
      weigh(scores);
      add_values(keys);
      if (key + kKeys > last || ends(key)) {
        end(key);
        clear();
      }
      stage = stage + 1 == S::kStages ? 0 : stage + 1;
    }
    copies_wait<0>();
  }
};

// Merges the sums of row r of a thread with those of the keys before. These lie at `before`, pairs of dims, 8 apart.
template <class S>
__device__ __forceinline__ void merge_before(float (&out)[S::kOwnDims / 8][4], const float2* before, int r, float2 shares) {
  constexpr int kPairs = S::kOwnDims / 8, kTogether = kPairs < 8 ? kPairs : 8;  // loaded before the first of them is merged
#pragma unroll
  for (int first = 0; first < kPairs; first += kTogether) {
    float2 x[kTogether];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) x[n] = __ldcg(before + 4 * (first + n));
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      float(&sums)[4] = out[first + n];
      sums[2 * r] = merge_values(x[n].x, sums[2 * r], shares);
      sums[2 * r + 1] = merge_values(x[n].y, sums[2 * r + 1], shares);
    }
    asm volatile("" ::: "memory");  // keeps later loads here, because registers hold the sums
  }
}

}  // namespace mr::cuda::latent
