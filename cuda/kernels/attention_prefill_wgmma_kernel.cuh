// attention_prefill_wgmma_kernel: prefill attention by Hopper's matrix products, of caches of two-byte elements and heads of 64 or 128
// dims. What a piece, a merge and a place are is said in attention_prefill.cu.
//
// Unit      A block stays on its multiprocessor and takes one unit after another: up to 128 packed rows, and all pieces of their keys or
//           one. Two warpgroups have 64 rows each and never exchange numbers.
// Keys      come in tiles of 128 absolute positions. One warp asks for keys and one for values, two tiles ahead (four of 64 dims), of
//           the next unit too. A piece begins with a new softmax. A tile that a row does not see leaves its sums as they were.
// Pipeline  The scores of a tile are multiplied beside the weighted values of the tile before it. The warpgroups ask for
//           products in turns, so that one weighs while the other multiplies.
// Merge     A row's pieces are merged in ascending order, always two by merge(): here, by the thread that has the row, in its places of
//           shared memory; of a split tile by merge_pieces, from the workspace.
#pragma once

#include "kernels/attention_prefill_fetch.cuh"
#include "kernels/attention_prefill_weigh.cuh"
#include "kernels/launch.h"

namespace mr::cuda::prefill {

struct CacheMaps {
  CacheMap keys, values;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Barriers of the warpgroups that multiply: whose turn it is, and of each alone.
constexpr int32_t kTurnBarrier = 1, kGroupBarrier = 3;

template <class T, int32_t dim>
struct Consumer {
  using Layout = UnitLayout<dim>;
  using Place = RingPlace<Layout::stages>;
  static constexpr int32_t kSums = dim / 2;

  const Params& p;
  uint32_t memory;
  int32_t group, lane;
  Place keys, values;

  __device__ __forceinline__ void take_turn() const { named_barrier(kTurnBarrier + group, kConsumers); }
  __device__ __forceinline__ void give_turn() const { named_arrive(kTurnBarrier + 1 - group, kConsumers); }

  __device__ __forceinline__ void release(uint32_t empty) const {
    if (elected()) barrier_arrive(empty);
  }
  __device__ __forceinline__ uint32_t at(int32_t barriers, const Place& place) const {
    return memory + static_cast<uint32_t>(barriers + place.stage * 8);
  }

  __device__ __forceinline__ void multiply_keys(float (&scores)[64]) const {
    const uint64_t q = swizzled_rows(memory + static_cast<uint32_t>(Layout::queries + group * 64 * 128));
    const uint64_t k = swizzled_rows(memory + static_cast<uint32_t>(Layout::keys + keys.stage * Layout::side));
    wgmma_fence();
    score_products<T, false>(scores, q, k);
#pragma unroll
    for (int32_t i = 1; i < dim / 16; ++i) {
      constexpr int32_t kHalf = Layout::half / 16;
      const int32_t step = i / 4 * kHalf + i % 4 * 2;
      score_products<T, true>(scores, q + static_cast<uint64_t>(step), k + static_cast<uint64_t>(step));
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void multiply_values(float (&out)[kSums], const uint32_t (&weights)[8][4]) const {
    const uint64_t v = summed_rows(memory + static_cast<uint32_t>(Layout::values + values.stage * Layout::side), Layout::half);
    wgmma_fence();
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) value_products<T>(out, weights[i], v + static_cast<uint64_t>(i * 16 * 128 / 16));
    wgmma_commit();
  }

  // What a unit's rows have come to.
  struct State {
    RowPair rows;
    RowSoftmax softmax[2];
    float decay[2];
    Part total[2];
  };

  __device__ __forceinline__ void fresh(State& s) const { s.softmax[0] = s.softmax[1] = RowSoftmax{-INFINITY, 0.0f}; }

  __device__ __forceinline__ void weigh(State& s, float (&scores)[64], int32_t key) const {
    if (key + kTileKeys - 1 > s.rows.shortest) mask_scores(scores, key, lane % 4, s.rows);
    weigh_tile(scores, p.scale_log2, s.softmax, s.decay);
  }

  // The piece's end: its parts.
  __device__ __forceinline__ void end_piece(const State& s, int32_t piece, Part (&parts)[2], bool (&sees)[2]) const {
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
      parts[r] = Part{s.softmax[r].top, quad_sum(s.softmax[r].sum)};
      sees[r] = s.rows.position[r] >= prefill_piece_begin(piece);
    }
  }

  // Multiplies the scores of the tile at `next` beside the values of the tile before it, whose weights are there, and weighs them.
  // `border`: with `next` a new piece begins.
  template <bool border>
  __device__ __forceinline__ void step(State& s, float (&scores)[64], uint32_t (&weights)[8][4], float (&out)[kSums], int32_t next,
                                       int32_t piece, bool first) {
    decay_rows(out, s.decay);
    barrier_wait(at(Layout::keys_full, keys), keys.phase);
    take_turn();
    multiply_keys(scores);
    barrier_wait(at(Layout::values_full, values), values.phase);
    multiply_values(out, weights);
    give_turn();
    wgmma_wait<1>();
    settle(scores);
    release(at(Layout::keys_empty, keys));
    keys.next();
    [[maybe_unused]] Part parts[2];
    [[maybe_unused]] bool sees[2];
    if constexpr (border) {
      end_piece(s, piece, parts, sees);
      fresh(s);
    }
    weigh(s, scores, next);
    settle(scores);
    barrier_wait(at(Layout::values_full, values), values.phase);  // it is over: a branch, which compilers move no wait across
    wgmma_wait<0>();
    settle(out);
    settle(scores);  // packed behind the wait: products read the weights before
    release(at(Layout::values_empty, values));
    values.next();
    pack_tile<T>(scores, weights);
    if constexpr (border) {
      merge_piece<true>(out, parts, s.total, sees, first, totals());
#pragma unroll
      for (int32_t i = 0; i < kSums; ++i) out[i] = 0;
    }
  }

  __device__ __forceinline__ uint32_t totals() const {
    return memory + static_cast<uint32_t>(Layout::totals + static_cast<int32_t>(threadIdx.x) * 16);
  }

  __device__ __forceinline__ void run() {
    float scores[64], out[kSums];
    uint32_t weights[8][4];
    const int32_t row0 = group * 64 + static_cast<int32_t>(threadIdx.x) / 32 % 4 * 16;  // of the warp
    Turns turns(p);
    if (group == 1) named_arrive(kTurnBarrier, kConsumers);
    if (turns.there()) fetch_queries<T, dim>(p, Unit(p, turns.unit()), memory + Layout::queries, group);
    while (turns.there()) {
      const Unit unit(p, turns.unit());
      ++turns.round;
      State s;
      fresh(s);
      s.rows.shortest = unit.item.position + (row0 * p.tile_share >> 16);
#pragma unroll
      for (int32_t r = 0; r < 2; ++r) {
        s.rows.position[r] = unit.item.position + ((row0 + lane / 4 + 8 * r) * p.tile_share >> 16);
        s.total[r] = Part{0, 0};
      }
#pragma unroll
      for (int32_t i = 0; i < kSums; ++i) out[i] = 0;
      const int32_t last = unit.last_key();
      int32_t piece = unit.first_piece(), key = unit.first_key();
      copies_wait<0>();
      shared_fence();
      named_barrier(kGroupBarrier + group, 128);  // the warpgroup's queries are there
      barrier_wait(at(Layout::keys_full, keys), keys.phase);
      take_turn();
      multiply_keys(scores);
      give_turn();
      wgmma_wait<0>();
      settle(scores);
      release(at(Layout::keys_empty, keys));
      keys.next();
      weigh(s, scores, key);
      pack_tile<T>(scores, weights);
#pragma unroll 1
      for (;;) {  // pieces
        const int32_t end = min(prefill_piece_begin(piece + 1), last + 1);
#pragma unroll 1
        for (; key + kTileKeys < end; key += kTileKeys) step<false>(s, scores, weights, out, key + kTileKeys, piece, false);
        if (key + kTileKeys > last) break;
        key += kTileKeys;
        step<true>(s, scores, weights, out, key, piece, piece == unit.first_piece());
        ++piece;
      }
      decay_rows(out, s.decay);
      barrier_wait(at(Layout::values_full, values), values.phase);
      multiply_values(out, weights);
      named_barrier(kGroupBarrier + group, 128);  // every warp has read the queries
      if (turns.there()) fetch_queries<T, dim>(p, Unit(p, turns.unit()), memory + Layout::queries, group);
      wgmma_wait<0>();
      settle(out);
      release(at(Layout::values_empty, values));
      values.next();
      Part parts[2];
      bool sees[2];
      end_piece(s, piece, parts, sees);
      merge_piece<false>(out, parts, s.total, sees, piece == unit.first_piece(), totals());
      if (!unit.alone()) sees[0] = sees[1] = true;  // some piece
      bring_rows<dim>(p, unit, row0 + lane / 4, lane % 4, out, s.total, sees);
    }
    if (group == 0) named_barrier(kTurnBarrier, kConsumers);  // the turn that is given last
  }
};

#endif

template <class T, int32_t dim>
__global__ void __launch_bounds__(kBlockThreads, 1)
    prefill_attention_wgmma(const __grid_constant__ Params p, const __grid_constant__ CacheMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = UnitLayout<dim>;
  constexpr int32_t kRegisters = 240, kSpareRegisters = 24;
  static_assert(kRegistersFit<kRegisters, kSpareRegisters>);
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0);
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const uint32_t memory = kept_address(attention_memory());
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < Layout::stages * 8; i += 8) {
      barrier_init(memory + static_cast<uint32_t>(Layout::keys_full + i), 1);
      barrier_init(memory + static_cast<uint32_t>(Layout::values_full + i), 1);
      barrier_init(memory + static_cast<uint32_t>(Layout::keys_empty + i), kConsumers / 32);
      barrier_init(memory + static_cast<uint32_t>(Layout::values_empty + i), kConsumers / 32);
    }
    barrier_init(memory + Layout::values_came, 1);
    barrier_init_fence();
  }
  __syncthreads();
  grid_wait();
  grid_trigger();
  if (warp >= kConsumers / 32) {
    registers_down<kSpareRegisters>();
    if (warp == kConsumers / 32) fetch_tiles<dim, false>(p, maps.keys, memory, lane);
    if (warp == kConsumers / 32 + 1) fetch_tiles<dim, true>(p, maps.values, memory, lane);
  } else {
    registers_up<kRegisters>();
    Consumer<T, dim>{p, memory, warp / 4, lane, {}, {}}.run();
  }
#endif
}

}  // namespace mr::cuda::prefill
