// search_half: the fast pass over f16 rows, which are operands as they lie: they are copied into shared memory while others are
// multiplied, and every step of it is as short as its shape allows, because few codewords leave a tile of rows 6 us.
#pragma once

#include "kernels/vectors/search_choose.cuh"
#include "kernels/vectors/search_pass.h"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A warpgroup's part of the pass.
template <SearchPass pass>
struct HalfPass {
  static constexpr bool fine = pass == SearchPass::kFine;
  static constexpr uint64_t kStep = kRowBlock >> 4, kBlock = kCodewordBlock >> 4;  // as descriptors count

  const SearchParams& p;
  const SearchShared& s;
  int32_t group, warp, lane;
  RingPlace at{};

  __device__ __forceinline__ uint32_t buffer(int32_t which) const {
    return s.rows + static_cast<uint32_t>(group) * s.group_bytes + static_cast<uint32_t>(which * p.form.steps * kRowBlock);
  }
  __device__ __forceinline__ const __half* row(int64_t space, int64_t number) const {
    return static_cast<const __half*>(p.rows) + number * p.row_stride + space * p.width;
  }

  // Begins to bring a tile's rows of this warpgroup; those behind the last are zeros. `across` threads have a row's pieces side by
  // side, and one thread the same pieces of several rows.
  template <int32_t across>
  __device__ __forceinline__ void fetch_by(const WorkOfAll& work, uint32_t to) const {
    constexpr int32_t down = 128 / across, rows = kSearchRows / down;
    const int32_t thread = static_cast<int32_t>(threadIdx.x) % 128, own = thread % across, first = thread / across;
    const int32_t pieces = 2 * p.form.steps, there = static_cast<int32_t>(p.width / 8);
    const int32_t many = static_cast<int32_t>(work.rows()) - group * kSearchRows - first;  // rows from this thread's first on
    const __half* from = row(work.space, work.first() + group * kSearchRows + (many > 0 ? first : -group * kSearchRows)) + own * 8;
    const int64_t stride = down * p.row_stride;
    to += piece_offset(first, own % 2) + static_cast<uint32_t>(own / 2 * kRowBlock);
#pragma unroll 1
    for (int32_t c = own; c < pieces; c += across, from += across * 8, to += across / 2 * kRowBlock) {
#pragma unroll
      for (int32_t i = 0; i < rows; ++i) {
        const bool copied = i * down < many && c < there;
        copy16_or_zero(to + static_cast<uint32_t>(i * down * 32), copied ? from + i * stride : static_cast<const __half*>(p.rows),
                       copied ? 16 : 0);
      }
    }
  }
  __device__ __forceinline__ void fetch(const WorkOfAll& work, uint32_t to) const {
    if (p.form.steps >= 4) fetch_by<8>(work, to);
    else if (p.form.steps >= 2) fetch_by<4>(work, to);
    else fetch_by<2>(work, to);
    copies_commit();
  }

  // |x|^2 of the rows lane / 4 and 8 further on of this warp: the diagonal of the products of its rows with themselves, of which a
  // lane's part of the first operand is its two of the second. Off by less than 2^-11 of itself, which Reach::length allows for: 18
  // units of 2^-23 a step, and no more than 83 steps lie in shared memory.
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
    return swizzled_rows32(s.ring + static_cast<uint32_t>(at.stage * kStageBytes));
  }

  // Adds the products of a run of blocks of codewords and as many steps of rows.
  __device__ __forceinline__ static void multiply_run(float (&sums)[kSearchSums], uint64_t rows, uint64_t codewords, int32_t many) {
#pragma unroll 1
    for (; many >= 4; many -= 4, rows += 4 * kStep, codewords += 4 * kBlock) multiply<4>(sums, rows, codewords);
    if (many == 3) multiply<3>(sums, rows, codewords);
    else if (many == 2) multiply<2>(sums, rows, codewords);
    else if (many == 1) multiply<1>(sums, rows, codewords);
  }

  // Begins the scores of a tile of codewords that the ring holds: a space's begin at the same stage, and none goes around the
  // ring's end.
  __device__ __forceinline__ void begin_held(float (&sums)[kSearchSums], uint64_t rows, int32_t tile, bool first) const {
    const int32_t each = tile_stages(), stage = at.stage + tile * each;
    if (first) {
      for (int32_t i = 0; i < each; ++i) barrier_wait(s.full + static_cast<uint32_t>((stage + i) * 8), at.phase);
    }
    const uint64_t codewords = swizzled_rows32(s.ring + static_cast<uint32_t>(stage * kStageBytes));
    wgmma_fence();
    wgmma_blocks<__nv_bfloat16, false>(sums, swizzled_rows32(s.ones), codewords);
    multiply_run(sums, rows, codewords + kBlock, p.form.steps);
    wgmma_commit();
  }

  __device__ __forceinline__ int32_t tile_stages() const { return (p.form.blocks + kStageBlocks - 1) / kStageBlocks; }
  // The space's codewords are done with.
  __device__ __forceinline__ void close_held() {
    for (int32_t i = 0; i < static_cast<int32_t>(p.tiles) * tile_stages(); ++i) {
      release(at.stage);
      at.next(p.form.stages);
    }
  }

  // The scores of the next tile of codewords that comes through the ring.
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

  // Float32 scores as narrow_scores has them, of codewords that the ring's images hold exactly.
  __device__ __forceinline__ void narrow(int64_t space, const int64_t (&numbers)[2], const int64_t (&ids)[2], float (&values)[2]) const {
    const __half* const rows[2] = {row(space, numbers[0]), row(space, numbers[1])};
    const uint8_t* images[2];
    int32_t turned[2];
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      const int32_t r = static_cast<int32_t>(ids[h] % kSearchWide);
      images[h] = image_of(p, space, ids[h] / kSearchWide) + kCodewordBlock + r * 32;
      turned[h] = r >> 2 & 1;
      values[h] = 0;
    }
    const int32_t there = static_cast<int32_t>(p.width / 8);
#pragma unroll 2
    for (int32_t c = 0; c < there; ++c) {
      uint4 x[2], y[2];
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) {
        x[h] = *reinterpret_cast<const uint4*>(rows[h] + c * 8);
        y[h] = *reinterpret_cast<const uint4*>(images[h] + c / 2 * kCodewordBlock + ((c % 2 ^ turned[h]) << 4));
      }
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) {
        float a[8], b[8];
        piece_floats(Piece{x[h], {}}, MR_VECTOR_F16, a);
        piece_floats(Piece{y[h], {}}, MR_VECTOR_F16, b);
#pragma unroll
        for (int32_t i = 0; i < 8; ++i) {
          if (p.inner) {
            values[h] = fmaf(-a[i], b[i], values[h]);
          } else {
            const float t = a[i] - b[i];
            values[h] = fmaf(t, t, values[h]);
          }
        }
      }
    }
  }

  // A tile of rows whose ids are still to be written.
  struct Ended {
    int64_t space, first;  // first: the warp's first row
    float squares[2];
    Leader leaders[2];
  };
  __device__ __forceinline__ void end(const Reach& reach, Ended& tile) const {
    const auto scores_of = [&](const int64_t(&numbers)[2], const int64_t(&ids)[2], float(&values)[2]) {
      narrow(tile.space, numbers, ids, values);
    };
    choose<fine>(p, reach, tile.space, tile.first, p.count, tile.squares, tile.leaders, scores_of, lane);
  }

  // All of a block's rows, of which the ring holds the codewords: while the first products of a tile are under way, the next rows are
  // asked for and the ids of those before are written.
  __device__ __forceinline__ void run_held() {
    const bool twice = p.form.row_buffers == 2;
    WorkOfAll ahead(p);
    if (!ahead.next()) return;
    fetch(ahead, buffer(0));
    Reach reach(p, ahead.space);
    Ended tile{-1, 0, {}, {}};
    int32_t which = 0;
    for (WorkOfAll work(p); work.next();) {
      copies_wait<0>();
      shared_fence();
      named_barrier(1 + group, 128);  // these rows are there, and those before are done with
      const bool more = ahead.next(), first = work.space != tile.space;
      const uint32_t rows = buffer(which);
      float sums[kSearchSums];
      begin_held(sums, swizzled_rows32(rows), 0, first);
      if (twice && more) fetch(ahead, buffer(which ^ 1));
      if (tile.space >= 0) end(reach, tile);
      if (first) reach = Reach(p, work.space);
      tile = Ended{work.space, work.first() + group * kSearchRows + warp * 16, {}, {}};
      measure(rows, tile.squares);
      wgmma_wait<0>();
      take_scores<fine>(sums, 0, tile.leaders);
#pragma unroll 1
      for (int32_t i = 1; i < p.tiles; ++i) {
        begin_held(sums, swizzled_rows32(rows), i, first);
        wgmma_wait<0>();
        take_scores<fine>(sums, i, tile.leaders);
      }
      if (work.last_of_space()) close_held();
      if (twice) {
        which ^= 1;
      } else if (more) {
        named_barrier(1 + group, 128);
        fetch(ahead, rows);
      }
    }
    end(reach, tile);
  }

  // All of a block's rows, each of them with codewords that come through the ring.
  __device__ __forceinline__ void run() {
    WorkOfAll ahead(p);
    if (ahead.next()) fetch(ahead, buffer(0));
    const uint32_t rows = buffer(0);
    for (WorkOfAll work(p); work.next();) {
      copies_wait<0>();
      shared_fence();
      named_barrier(1 + group, 128);  // these rows are there
      Ended tile{work.space, work.first() + group * kSearchRows + warp * 16, {}, {}};
      measure(rows, tile.squares);
      float sums[kSearchSums];
#pragma unroll 1
      for (int32_t i = 0; i < p.tiles; ++i) {
        scores(sums, swizzled_rows32(rows));
        take_scores<fine>(sums, i, tile.leaders);
      }
      if (ahead.next()) {
        named_barrier(1 + group, 128);  // and are done with
        fetch(ahead, rows);
      }
      end(Reach(p, work.space), tile);
    }
  }
};

#endif

#if MR_HOPPER
template <SearchPass pass>
__global__ void __launch_bounds__(kSearchThreads + 128, 1) search_half(const __grid_constant__ SearchParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if (p.state->moved != p.moved) return;
  const SearchShared s(launch_memory(), p.form);
  open_ring(p.form, s);
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0), lane = static_cast<int32_t>(threadIdx.x) % 32;
  if (warp >= kSearchWarps) {
    registers_down<32>();
    if (warp == kSearchWarps && lane == 0) fill_ring<WorkOfAll>(p, s);
  } else {
    registers_up<112>();
    HalfPass<pass> part{p, s, warp / 4, warp % 4, lane};
    if (warp / 4 >= p.form.groups) return;
    if (p.form.held) part.run_held();
    else part.run();
  }
#endif
}
#endif

}  // namespace mr::cuda
