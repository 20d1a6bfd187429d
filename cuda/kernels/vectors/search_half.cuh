// search_half: the fast pass over f16 rows, which are operands as they are: bulk copies load them into shared memory
// while others are multiplied. Every step is kept as short as its shape allows, because with few codewords a tile of
// rows takes only 6 us.
#pragma once

#include "kernels/vectors/search_choose.cuh"
#include "kernels/vectors/search_pass.h"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A warpgroup's part of the pass; kEach scores are compared as a group.
template <int32_t kEach>
struct HalfPass {
  static constexpr uint64_t kStep = kRowBlock >> 4, kBlock = kCodewordBlock >> 4;  // in descriptor units

  const SearchParams& p;
  const SearchShared& s;
  int32_t group, warp, lane;
  int32_t each;  // stages of a tile of codewords, if the pipeline holds them all
  SearchPlace at{}, rows_at{};

  __device__ __forceinline__ HalfPass(const SearchParams& params, const SearchShared& shared, int32_t number, int32_t thread)
      : p(params), s(shared), group(number / 4), warp(number % 4), lane(thread),
        each((params.form.blocks + kStageBlocks - 1) / kStageBlocks) {}

  // Waits for the rows of a tile.
  __device__ __forceinline__ uint32_t take_rows() const {
    barrier_wait(s.rows_full(group, rows_at.stage), rows_at.phase);
    return s.row_buffer(p.form, group, rows_at.stage);
  }
  // Releases their buffer: this warp has multiplied and measured them.
  __device__ __forceinline__ void give_rows() {
    __syncwarp();
    if (lane == 0) barrier_arrive(s.rows_empty(group, rows_at.stage));
    rows_at.next(p.form.row_buffers);
  }

  // Computes |x|^2 of the rows lane / 4 and 8 further of this warp, as the diagonal of the products of its rows with
  // themselves: a lane's part of the first operand is its two elements of the second. The relative error is below
  // 2^-11, which Reach::length allows for: 18 units of 2^-23 a step, and at most 83 steps fit shared memory.
  __device__ __forceinline__ void measure(uint32_t rows, float (&squares)[2]) const {
    float low[4] = {}, high[4] = {};
#pragma unroll 2
    for (int32_t step = 0; step < p.form.steps; ++step) {
      uint32_t a[4];
      load_rows_fragment(a, rows + static_cast<uint32_t>(step * kRowBlock), warp * 16, lane);
      mma16816<__half>(low, a, a[0], a[2]);
      mma16816<__half>(high, a, a[1], a[3]);
    }
    const bool odd = (lane / 4 & 1) != 0;
    const int32_t holder = lane / 4 * 4 + lane / 8;
    squares[0] = __shfl_sync(0xffffffffu, odd ? low[1] : low[0], holder);
    squares[1] = __shfl_sync(0xffffffffu, odd ? high[3] : high[2], holder);
  }

  template <int32_t many>
  __device__ __forceinline__ static void multiply(float (&sums)[kSearchSums], uint64_t rows, uint64_t codewords) {
#pragma unroll
    for (int32_t i = 0; i < many; ++i) wgmma_blocks<__half>(sums, rows + i * kStep, codewords + i * kBlock);
  }

  __device__ __forceinline__ void release(int32_t stage) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(s.empty + static_cast<uint32_t>(stage * 8));
  }
  __device__ __forceinline__ uint64_t open() const {
    barrier_wait(s.full + static_cast<uint32_t>(at.stage * 8), at.phase);
    return swizzled_rows32(s.stage_memory + static_cast<uint32_t>(at.stage * kStageBytes));
  }

  // Adds the products of a run of blocks of codewords and as many steps of rows.
  __device__ __forceinline__ static void multiply_run(float (&sums)[kSearchSums], uint64_t rows, uint64_t codewords, int32_t many) {
#pragma unroll 1
    for (; many >= 4; many -= 4, rows += 4 * kStep, codewords += 4 * kBlock) multiply<4>(sums, rows, codewords);
    if (many == 3) multiply<3>(sums, rows, codewords);
    else if (many == 2) multiply<2>(sums, rows, codewords);
    else if (many == 1) multiply<1>(sums, rows, codewords);
  }

  // Begins the scores of a tile of codewords that the pipeline holds. The codewords of each space begin at the same
  // stage, and no tile wraps around.
  __device__ __forceinline__ void begin_held(float (&sums)[kSearchSums], uint64_t rows, int32_t tile, bool first) const {
    const int32_t stage = at.stage + tile * each;
    if (first) {
      for (int32_t i = 0; i < each; ++i) barrier_wait(s.full + static_cast<uint32_t>((stage + i) * 8), at.phase);
    }
    const uint64_t codewords = swizzled_rows32(s.stage_memory + static_cast<uint32_t>(stage * kStageBytes));
    wgmma_fence();
    wgmma_blocks<__nv_bfloat16, false>(sums, swizzled_rows32(s.ones), codewords);
    multiply_run(sums, rows, codewords + kBlock, p.form.steps);
    wgmma_commit();
  }

  // Releases the space's codewords.
  __device__ __forceinline__ void close_held() {
    for (int32_t i = 0; i < static_cast<int32_t>(p.tiles) * each; ++i) {
      release(at.stage);
      at.next(p.form.stages);
    }
  }

  // Computes the scores of the next tile of codewords that arrives through the pipeline.
  __device__ __forceinline__ void scores(float (&sums)[kSearchSums], uint64_t rows) {
    uint64_t stage = open();
    wgmma_fence();
    wgmma_blocks<__nv_bfloat16, false>(sums, swizzled_rows32(s.ones), stage);
    int32_t left = p.form.steps;
    if (left > 1) multiply<2>(sums, rows, stage + kBlock);
    else multiply<1>(sums, rows, stage + kBlock);
    rows += 2 * kStep;
    wgmma_commit();
#pragma unroll 1
    for (left -= 2; left > 0; left -= 3, rows += 3 * kStep) {
      const int32_t before = at.stage;
      at.next(p.form.stages);
      stage = open();
      if (left > 2) multiply<3>(sums, rows, stage);
      else if (left == 2) multiply<2>(sums, rows, stage);
      else multiply<1>(sums, rows, stage);
      wgmma_commit();
      wgmma_wait<1>();
      release(before);
    }
    wgmma_wait<0>();
    release(at.stage);
    at.next(p.form.stages);
  }

  __device__ __forceinline__ KeptScores<kEach> kept() const { return KeptScores<kEach>(s, group * 4 + warp); }

  // Ended is a tile of rows whose ids are not written yet.
  struct Ended {
    int64_t space, first;  // first: the warp's first row
    float squares[2];
    Leader leaders[2];
  };
  __device__ __forceinline__ void end(const Reach& reach, Ended& tile) const {
    choose<kEach>(p, reach, tile.space, tile.first, p.count, tile.squares, tile.leaders, kept(), lane);
  }

  // Processes all of a block's rows if the pipeline holds the codewords. The ids of a tile of rows are written after
  // the first products of the next tile have been issued: before them the tensor cores would wait, and together with
  // them these would end later.
  __device__ __forceinline__ void run_held() {
    Ended tile{-1, 0, {}, {}};
    Reach reach{};
    constexpr bool beside = kEach == 8;
    for (WorkOfAll work(p); work.next();) {
      const bool first = work.space != tile.space;
      const uint32_t rows = take_rows();
      float sums[kSearchSums];
      begin_held(sums, swizzled_rows32(rows), 0, first);
      if constexpr (!beside) wgmma_wait<0>();
      if (tile.space >= 0) end(reach, tile);
      if (first) reach = Reach(p, work.space);
      tile = Ended{work.space, work.first() + group * kSearchRows + warp * 16, {}, {}};
      measure(rows, tile.squares);
      if constexpr (beside) wgmma_wait<0>();
      take_scores(sums, 0, tile.leaders, kept(), lane);
#pragma unroll 1
      for (int32_t i = 1; i < p.tiles; ++i) {
        begin_held(sums, swizzled_rows32(rows), i, first);
        wgmma_wait<0>();
        take_scores(sums, i, tile.leaders, kept(), lane);
      }
      give_rows();
      if (work.last_of_space()) close_held();
    }
    if (tile.space >= 0) end(reach, tile);
  }

  // Processes all of a block's rows, each with codewords that stream through the pipeline.
  __device__ __forceinline__ void run() {
    for (WorkOfAll work(p); work.next();) {
      const uint32_t rows = take_rows();
      Ended tile{work.space, work.first() + group * kSearchRows + warp * 16, {}, {}};
      measure(rows, tile.squares);
      float sums[kSearchSums];
#pragma unroll 1
      for (int32_t i = 0; i < p.tiles; ++i) {
        scores(sums, swizzled_rows32(rows));
        take_scores(sums, i, tile.leaders, kept(), lane);
      }
      give_rows();
      end(Reach(p, work.space), tile);
    }
  }
};

// Loads the rows of every tile for every warpgroup; run by one thread. Rows past the last are zeros, and so are
// columns.
__device__ __forceinline__ void fill_rows(const SearchParams& p, const SearchShared& s) {
  SearchPlace at;
  for (WorkOfAll work(p); work.next(); at.next(p.form.row_buffers)) {
#pragma unroll 1
    for (int32_t group = 0; group < p.form.groups; ++group) {
      const uint32_t full = s.rows_full(group, at.stage), to = s.row_buffer(p.form, group, at.stage);
      barrier_wait(s.rows_empty(group, at.stage), at.phase ^ 1);
      barrier_expect(full, static_cast<uint32_t>(p.form.steps * kRowBlock));
#pragma unroll 1
      for (int32_t step = 0; step < p.form.steps; ++step) {
        copy_rows(to + static_cast<uint32_t>(step * kRowBlock), p.rows_map, step * 16,
                  static_cast<int32_t>(work.first()) + group * kSearchRows, static_cast<int32_t>(work.space), full);
      }
    }
  }
}

#endif

#if MR_HOPPER
template <int32_t kEach>
__global__ void __launch_bounds__(kSearchThreads + 128, 1) search_half(const __grid_constant__ SearchParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if (p.state->moved != p.moved) return;
  const SearchShared s(launch_memory(), p.form);
  init_pipeline(p.form, s);
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0), lane = static_cast<int32_t>(threadIdx.x) % 32;
  if (warp >= kSearchWarps) {
    registers_down<32>();
    if (warp == kSearchWarps && lane == 0) produce_codewords<WorkOfAll>(p, s);
    if (warp == kSearchWarps + 1 && lane == 0) fill_rows(p, s);
  } else {
    registers_up<112>();
    if (warp / 4 >= p.form.groups) return;
    HalfPass<kEach> part(p, s, warp, lane);
    if (p.form.held) part.run_held();
    else part.run();
  }
#endif
}
#endif

}  // namespace mr::cuda
