// attention/prefill_wgmma_kernel: prefill attention by wgmma, for heads of 64, 128 or 256 dims. Heads of 80 and 96 dims use the
// kernel of 128: TMA fills the dims that they lack with zeros. Pieces and merges are those of attention/prefill_mma_kernel.cuh.
//
// Unit      A block is persistent and processes one unit after another: up to 128 packed rows, and all pieces of their
//           keys or one. Two consumer warpgroups have 64 rows each and never exchange values.
// Keys      are loaded in tiles of 128 absolute positions, 64 of 256 dims. One producer warp loads keys and one values, two tiles ahead
//           (four for 64 dims), also of the next unit. A piece starts a new softmax. A tile that a row does not see
//           leaves its sums as they are. Keys and values of 8 bits were widened by an earlier kernel (prefill_widen.cuh), or are
//           widened by all four producer warps (prefill_fetch_f8.cuh).
// Pipeline  The scores of a tile are multiplied together with the weighted values of the tile before it. The warpgroups
//           issue products alternately (ping-pong, as in FlashAttention-3), so that one computes exponentials while the
//           other's products run:
//               warpgroup 0   [ QK n+1, PV n ][ softmax n+1 ][ QK n+2, PV n+1 ] ...
//               warpgroup 1   [ softmax n    ][ QK n+1, PV n ][ softmax n+1   ] ...
// Merge     A row's pieces are merged in ascending order, always two by merge(): here by the thread that has the row,
//           in its own shared memory, or of 256 dims in the workspace; for a split tile by merge_pieces, from the workspace.
#pragma once

#include "kernels/attention/prefill_fetch.cuh"
#include "kernels/attention/prefill_fetch_f8.cuh"
#include "kernels/attention/prefill_weigh.cuh"
#include "kernels/launch.h"

namespace mr::cuda::prefill {

struct CacheMaps {
  CacheMap keys, values;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Named barriers of the consumer warpgroups: two for their alternation, and one of each group alone.
constexpr int32_t kOrderBarrier = 1, kGroupBarrier = 3;

template <class T, int32_t dim>
struct Consumer {
  using Layout = UnitLayout<dim>;
  using StageCursor = PipelineState<Layout::stages>;
  static constexpr int32_t kSums = dim / 2, kTileKeys = Layout::tile_keys, kScores = kTileKeys / 2, kSteps = kTileKeys / 16;

  const Params& p;
  uint32_t memory;
  int32_t group, lane;
  StageCursor keys, values;

  __device__ __forceinline__ void await_order() const { named_barrier(kOrderBarrier + group, kConsumers); }
  __device__ __forceinline__ void pass_order() const { named_arrive(kOrderBarrier + 1 - group, kConsumers); }

  __device__ __forceinline__ void release(uint32_t empty) const {
    if (elected()) barrier_arrive(empty);
  }
  __device__ __forceinline__ uint32_t at(int32_t barriers, const StageCursor& place) const {
    return memory + static_cast<uint32_t>(barriers + place.stage * 8);
  }

  __device__ __forceinline__ void multiply_keys(float (&scores)[kScores]) const {
    const uint64_t q = swizzled_rows(memory + static_cast<uint32_t>(Layout::queries + group * 64 * 128));
    const uint64_t k = swizzled_rows(memory + static_cast<uint32_t>(Layout::keys + keys.stage * Layout::side));
    wgmma_fence();
    score_products<T, false>(scores, q, k);
#pragma unroll
    for (int32_t i = 1; i < dim / 16; ++i) {
      const int32_t within = i % 4 * 2, half = i / 4;
      score_products<T, true>(scores, q + static_cast<uint64_t>(half * (Layout::query_half / 16) + within),
                              k + static_cast<uint64_t>(half * (Layout::half / 16) + within));
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void end_keys() {
    release(at(Layout::keys_empty, keys));
    keys.next();
  }

  __device__ __forceinline__ void multiply_values(float (&out)[kSums], const uint32_t (&weights)[kSteps][4]) const {
    const uint64_t v = summed_rows(memory + static_cast<uint32_t>(Layout::values + values.stage * Layout::side), Layout::half);
    wgmma_fence();
#pragma unroll
    for (int32_t i = 0; i < kSteps; ++i) value_products<T>(out, weights[i], v + static_cast<uint64_t>(i * 16 * 128 / 16));
    wgmma_commit();
  }

  // State is the running result of a unit's rows.
  struct State {
    RowPair rows;
    RowSoftmax softmax[2];
    float decay[2];
    Part total[2];
  };

  __device__ __forceinline__ void fresh(State& s) const { s.softmax[0] = s.softmax[1] = RowSoftmax{-INFINITY, 0.0f}; }

  __device__ __forceinline__ void weigh(State& s, float (&scores)[kScores], int32_t key) const {
    if (p.cap_scale != 0) {
#pragma unroll
      for (float& score : scores) score = capped(score, p.cap_scale);
    }
    const int32_t window = p.args.common.window;
    if (key + kTileKeys - 1 > s.rows.shortest || key < first_seen(s.rows.shortest + 15, window))
      mask_scores(scores, key, lane % 4, s.rows, window);
    weigh_tile(scores, p.scale_log2, s.softmax, s.decay);
  }

  // Ends a piece and returns its parts.
  __device__ __forceinline__ void end_piece(const State& s, int32_t piece, Part (&parts)[2], bool (&sees)[2]) const {
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
      parts[r] = Part{s.softmax[r].top, quad_sum(s.softmax[r].sum)};
      sees[r] = s.rows.position[r] >= prefill_piece_begin(piece);
    }
  }

  // Multiplies the scores of the tile at `next` together with the values of the tile before it, whose weights are
  // ready, and computes the softmax. border: `next` begins a new piece.
  template <bool border>
  __device__ __forceinline__ void step(State& s, float (&scores)[kScores], uint32_t (&weights)[kSteps][4], float (&out)[kSums],
                                       int32_t next, int32_t piece, const Unit& unit) {
    decay_rows(out, s.decay);
    barrier_wait(at(Layout::keys_full, keys), keys.phase);
    await_order();
    multiply_keys(scores);
    barrier_wait(at(Layout::values_full, values), values.phase);
    multiply_values(out, weights);
    pass_order();
    wgmma_wait<1>();
    settle(scores);
    end_keys();
    [[maybe_unused]] Part parts[2];
    [[maybe_unused]] bool sees[2];
    if constexpr (border) {
      end_piece(s, piece, parts, sees);
      fresh(s);
    }
    weigh(s, scores, next);
    settle(scores);
    barrier_wait(at(Layout::values_full, values), values.phase);  // already complete: the branch stops the compiler from moving the wait
    wgmma_wait<0>();
    wgmma_keep(weights);
    settle(out);
    settle(scores);  // pack after the wait, because products read the old weights
    release(at(Layout::values_empty, values));
    values.next();
    pack_tile<T>(scores, weights);
    if constexpr (border) {
      merge_piece<true, dim>(out, parts, s.total, sees, piece == unit.first_piece(), totals(unit));
#pragma unroll
      for (int32_t i = 0; i < kSums; ++i) out[i] = 0;
    }
  }

  // Returns the first of the warp's rows.
  __device__ __forceinline__ int32_t first_row() const { return group * 64 + static_cast<int32_t>(threadIdx.x) / 32 % 4 * 16; }
  __device__ __forceinline__ Totals<dim> totals(const Unit& unit) const {
    return Totals<dim>(p, unit, memory, first_row() + lane / 4, lane % 4);
  }

  __device__ __forceinline__ void run() {
    float scores[kScores], out[kSums];
    uint32_t weights[kSteps][4];
    const int32_t row0 = first_row();
    UnitSchedule schedule(p);
    if (group == 1) named_arrive(kOrderBarrier, kConsumers);
    if (schedule.there()) {
      const Unit unit(p, schedule.unit());  // units and block ids are the step's input, written long before
      grid_wait();
      grid_trigger();
      fetch_queries<T, dim>(p, unit, memory + Layout::queries, group);
    }
    while (schedule.there()) {
      const Unit unit(p, schedule.unit());
      ++schedule.round;
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
      int32_t piece = unit.first_piece(), key = unit.first_key(kTileKeys);
      copies_wait<0>();
      shared_fence();
      named_barrier(kGroupBarrier + group, 128);  // the warpgroup's queries have arrived
      barrier_wait(at(Layout::keys_full, keys), keys.phase);
      await_order();
      multiply_keys(scores);
      pass_order();
      wgmma_wait<0>();
      settle(scores);
      end_keys();
      weigh(s, scores, key);
      pack_tile<T>(scores, weights);
#pragma unroll 1
      for (;;) {  // pieces
        const int32_t end = min(prefill_piece_begin(piece + 1), last + 1);
#pragma unroll 1
        for (; key + kTileKeys < end; key += kTileKeys) step<false>(s, scores, weights, out, key + kTileKeys, piece, unit);
        if (key + kTileKeys > last) break;
        key += kTileKeys;
        step<true>(s, scores, weights, out, key, piece, unit);
        ++piece;
      }
      decay_rows(out, s.decay);
      barrier_wait(at(Layout::values_full, values), values.phase);
      multiply_values(out, weights);
      named_barrier(kGroupBarrier + group, 128);  // every warp has read the queries
      if (schedule.there()) fetch_queries<T, dim>(p, Unit(p, schedule.unit()), memory + Layout::queries, group);
      wgmma_wait<0>();
      wgmma_keep(weights);
      settle(out);
      release(at(Layout::values_empty, values));
      values.next();
      Part parts[2];
      bool sees[2];
      end_piece(s, piece, parts, sees);
      merge_piece<false, dim>(out, parts, s.total, sees, piece == unit.first_piece(), totals(unit));
      if (!unit.alone()) sees[0] = sees[1] = true;  // some piece
      store_result_rows<dim>(p, unit, row0 + lane / 4, lane % 4, out, s.total, sees);
    }
    if (group == 0) named_barrier(kOrderBarrier, kConsumers);  // consumes the last pass_order
  }
};

#endif

// f8: keys and values have 8 bits, and producers widen them.
template <class T, int32_t dim, bool f8>
__global__ void __launch_bounds__(kBlockThreads, 1)
    prefill_attention_wgmma(const __grid_constant__ Params p, const __grid_constant__ CacheMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = UnitLayout<dim>;
  constexpr int32_t kRegisters = f8 ? 216 : 240, kSpareRegisters = f8 ? 72 : 24;
  static_assert(kRegistersFit<kRegisters, kSpareRegisters>);
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0);
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const uint32_t memory = kept_address(attention_memory());
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < Layout::stages * 8; i += 8) {
      barrier_init(memory + static_cast<uint32_t>(Layout::keys_full + i), f8 ? 4 : 1);
      barrier_init(memory + static_cast<uint32_t>(Layout::values_full + i), f8 ? 4 : 1);
      barrier_init(memory + static_cast<uint32_t>(Layout::keys_came + i), 1);
      barrier_init(memory + static_cast<uint32_t>(Layout::values_came + i), 1);
      barrier_init(memory + static_cast<uint32_t>(Layout::keys_empty + i), kConsumers / 32);
      barrier_init(memory + static_cast<uint32_t>(Layout::values_empty + i), kConsumers / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (warp >= kConsumers / 32) {
    registers_down<kSpareRegisters>();
    if constexpr (f8) {
      grid_wait();
      grid_trigger();
      F8Producer<T, dim>{p, memory, static_cast<int32_t>(threadIdx.x) - kConsumers, lane, {}, {}}.run();
    } else {
      if (warp == kConsumers / 32) fetch_tiles<dim, false>(p, maps.keys, memory, lane);
      if (warp == kConsumers / 32 + 1) fetch_tiles<dim, true>(p, maps.values, memory, lane);
    }
  } else {
    registers_up<kRegisters>();
    Consumer<T, dim>{p, memory, warp / 4, lane, {}, {}}.run();
  }
#endif
}

}  // namespace mr::cuda::prefill
