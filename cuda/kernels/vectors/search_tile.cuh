// search_tile: shared by the warpgroups of a search: their shared memory, and the products of their rows with one tile
// of codewords after another.
#pragma once

#include "kernels/vectors/search_rows.cuh"
#include "kernels/vectors/search_work.cuh"

namespace mr::cuda {

constexpr int32_t kSearchThreads = 128 * kSearchGroups;  // that multiply; a pipeline of codewords has 128 more

struct SearchShared {
  uint32_t full, empty;      // barriers of the stages, then two of each buffer of rows
  uint32_t ones;             // a block of rows 1, 1, 1, 0, ...
  uint32_t rows, group_bytes;  // blocks of each warpgroup, in the form's number of buffers
  uint32_t stage_memory;
  uint32_t kept;             // kept_bytes, unless rows are listed ones
  float* squares;            // (kSearchTile)
  uint8_t* lists;            // kSearchLists bytes at the same address, if listed rows are settled

  __device__ __forceinline__ SearchShared(uint8_t* memory, const SearchForm& f) {
    const uint32_t start = shared_address(memory), base = (start + 1023) & ~1023u;
    rows = base;
    group_bytes = static_cast<uint32_t>(f.row_buffers * f.row_terms * f.chunk_steps * kRowBlock);
    ones = rows + static_cast<uint32_t>(f.groups) * group_bytes;
    stage_memory = ones + kRowBlock;
    full = stage_memory + static_cast<uint32_t>(f.stages * kStageBytes);
    empty = full + kMostStages * 8;
    uint8_t* const behind = memory + (empty + kMostStages * 8 + kRowBarriers * 8 - start);
    squares = reinterpret_cast<float*>(behind);
    lists = behind + kSearchTile * 4;
    kept = empty + kMostStages * 8 + kRowBarriers * 8 + kSearchTile * 4;
  }

  // Returns the address of a warpgroup's buffer of rows.
  __device__ __forceinline__ uint32_t row_buffer(const SearchForm& f, int32_t group, int32_t buffer) const {
    return rows + static_cast<uint32_t>(group) * group_bytes + static_cast<uint32_t>(buffer * f.steps * kRowBlock);
  }
  __device__ __forceinline__ uint32_t rows_full(int32_t group, int32_t buffer) const {
    return empty + static_cast<uint32_t>((kMostStages + group * 2 + buffer) * 8);
  }
  __device__ __forceinline__ uint32_t rows_empty(int32_t group, int32_t buffer) const {
    return rows_full(group, buffer) + kRowBarriers / 2 * 8;
  }
};

// Writes the block of ones; run by the first warpgroup.
__device__ __forceinline__ void write_ones(uint32_t ones) {
  const int32_t r = static_cast<int32_t>(threadIdx.x) / 2, h = static_cast<int32_t>(threadIdx.x) % 2;
  if (threadIdx.x < 128)
    store_shared16(ones + piece_offset(r, h), h == 0 ? make_uint4(0x3f803f80u, 0x00003f80u, 0, 0) : make_uint4(0, 0, 0, 0));
}

__device__ __forceinline__ const uint8_t* image_of(const SearchParams& p, int64_t space, int64_t tile) {
  return p.images + (space * p.tiles + tile) * p.form.blocks * kCodewordBlock;
}

// SearchByMma multiplies by mma, with codewords read from global memory.
template <class E, bool resident>
struct SearchByMma {
  const SearchParams& p;
  const SearchShared& s;
  int32_t group, warp, lane;

  __device__ __forceinline__ void settle_writes() const { named_barrier(1 + group, 128); }
  __device__ __forceinline__ void rewind() const {}

  // Computes the scores of a tile; load(first, steps) loads the rows' columns into shared memory if they are not
  // resident.
  template <class Load>
  __device__ __forceinline__ void scores(float (&sums)[kSearchSums], int64_t space, int64_t tile, bool, const Load& load) {
    const SearchForm& f = p.form;
    const uint8_t* at = image_of(p, space, tile);
    const uint32_t rows = s.rows + static_cast<uint32_t>(group) * s.group_bytes;
#pragma unroll
    for (int32_t i = 0; i < kSearchSums; ++i) sums[i] = 0;
    multiply_block<__nv_bfloat16>(sums, s.ones, at, warp, lane);
    at += kCodewordBlock;
#pragma unroll 1
    for (int32_t first = 0; first < f.steps; first += f.chunk_steps) {
      const int32_t steps = f.steps - first < f.chunk_steps ? f.steps - first : f.chunk_steps;
      if constexpr (!resident) load(first, steps);
#pragma unroll 1
      for (int32_t block = 0; block < f.codeword_terms * steps; ++block, at += kCodewordBlock) {
        const int32_t step = block < steps ? block : block - steps, terms = block < steps ? f.row_terms : 1;
#pragma unroll 1
        for (int32_t t = 0; t < terms; ++t)
          multiply_block<E>(sums, rows + static_cast<uint32_t>((t * f.chunk_steps + step) * kRowBlock), at, warp, lane);
      }
    }
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// SearchPlace is the next stage of the pipeline.
struct SearchPlace {
  int32_t stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next(int32_t stages) {
    if (++stage < stages) return;
    stage = 0;
    phase ^= 1;
  }
};

// Initialises what all threads share; all threads must call it.
__device__ __forceinline__ void init_pipeline(const SearchForm& f, const SearchShared& s) {
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < f.stages; ++i) {
      barrier_init(s.full + static_cast<uint32_t>(i * 8), 1);
      barrier_init(s.empty + static_cast<uint32_t>(i * 8), static_cast<uint32_t>(f.groups * 4));
    }
    for (int32_t i = 0; i < kRowBarriers / 2; ++i) {
      barrier_init(s.rows_full(i / 2, i % 2), 1);
      barrier_init(s.rows_empty(i / 2, i % 2), 4);
    }
    barrier_init_fence();
  }
  write_ones(s.ones);
  shared_fence();
  __syncthreads();
}

// Produces the pipeline; run by one thread: the tiles of codewords for each tile of rows, or once for a space that the
// pipeline holds. No stage has blocks of two chunks.
template <class Work>
__device__ __forceinline__ void produce_codewords(const SearchParams& p, const SearchShared& s) {
  const SearchForm& f = p.form;
  SearchPlace at;
  int64_t held = -1;
  for (Work work(p); work.next();) {
    if (std::is_same_v<Work, WorkOfAll> && f.held && held == work.space) continue;
    held = work.space;
    const uint8_t* from = image_of(p, work.space, work.begin);
#pragma unroll 1
    for (int64_t tile = work.begin; tile < work.end; ++tile) {
      int32_t blocks = 1;
#pragma unroll 1
      for (int32_t first = 0; first < f.steps; first += f.chunk_steps) {
        blocks += f.codeword_terms * (f.steps - first < f.chunk_steps ? f.steps - first : f.chunk_steps);
#pragma unroll 1
        for (; blocks > 0; blocks -= kStageBlocks) {
          const uint32_t bytes = static_cast<uint32_t>((blocks < kStageBlocks ? blocks : kStageBlocks) * kCodewordBlock);
          const uint32_t full = s.full + static_cast<uint32_t>(at.stage * 8);
          barrier_wait(s.empty + static_cast<uint32_t>(at.stage * 8), at.phase ^ 1);
          barrier_expect(full, bytes);
          bulk_copy(s.stage_memory + static_cast<uint32_t>(at.stage * kStageBytes), from, bytes, full);
          from += bytes;
          at.next(f.stages);
        }
        blocks = 0;
      }
    }
  }
}

// SearchByWgmma multiplies by wgmma, with codewords from the pipeline.
template <class E, bool resident>
struct SearchByWgmma {
  const SearchParams& p;
  const SearchShared& s;
  int32_t group, warp, lane;
  SearchPlace at{}, begun{};  // begun: the stage at which this row tile's codewords begin

  // Makes rows that this warpgroup has written visible as operands.
  __device__ __forceinline__ void settle_writes() const {
    shared_fence();
    named_barrier(1 + group, 128);
  }

  __device__ __forceinline__ void release(int32_t stage) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(s.empty + static_cast<uint32_t>(stage * 8));
  }

  // Waits for the next stage and returns its blocks.
  __device__ __forceinline__ uint64_t open() const {
    barrier_wait(s.full + static_cast<uint32_t>(at.stage * 8), at.phase);
    wgmma_fence();
    return swizzled_rows32(s.stage_memory + static_cast<uint32_t>(at.stage * kStageBytes));
  }

  // keep: the tiles stay in the pipeline for the next rows.
  template <class Load>
  __device__ __forceinline__ void scores(float (&sums)[kSearchSums], int64_t, int64_t tile, bool keep, const Load& load) {
    const SearchForm& f = p.form;
    if (tile == 0) begun = at;
    const uint64_t rows = swizzled_rows32(s.rows + static_cast<uint32_t>(group) * s.group_bytes);
    const uint32_t term = static_cast<uint32_t>(f.chunk_steps * (kRowBlock >> 4));
    if constexpr (!resident) load(0, f.chunk_steps);
    uint64_t codewords = open();
    wgmma_blocks<__nv_bfloat16, false>(sums, swizzled_rows32(s.ones), codewords);
    codewords += kCodewordBlock >> 4;
    int32_t room = kStageBlocks - 1;  // blocks left in the stage
    if constexpr (resident) {
      multiply(sums, rows, term, codewords, room, f.steps, keep);
    } else {
#pragma unroll 1
      for (int32_t first = 0;;) {
        multiply(sums, rows, term, codewords, room, f.steps - first < f.chunk_steps ? f.steps - first : f.chunk_steps, keep);
        first += f.chunk_steps;
        if (first >= f.steps) break;
        load(first, f.steps - first < f.chunk_steps ? f.steps - first : f.chunk_steps);
        codewords = open();
        room = kStageBlocks;
      }
    }
  }

  // After the last tile of codewords of a row tile that kept them: the next rows begin at the same stage.
  __device__ __forceinline__ void rewind() { at = begun; }

 private:
  struct Operands {
    uint64_t rows, codewords;  // of block 0
    uint32_t term;             // offset from the rows' first terms to the second
    int32_t steps;
  };

  // Adds the products of `many` blocks from `block` on and, if `twice`, also those of the rows' second terms.
  template <int32_t many, bool twice>
  __device__ __forceinline__ static void products(float (&sums)[kSearchSums], const Operands& from, int32_t block) {
#pragma unroll
    for (int32_t i = 0; i < many; ++i) {
      const int32_t b = block + i, step = b < from.steps ? b : b - from.steps;
      const uint64_t rows = from.rows + static_cast<uint32_t>(step * (kRowBlock >> 4));
      const uint64_t codewords = from.codewords + static_cast<uint32_t>(b * (kCodewordBlock >> 4));
      wgmma_blocks<E>(sums, rows, codewords);
      if constexpr (twice) wgmma_blocks<E>(sums, rows + from.term, codewords);
    }
    wgmma_commit();
  }

  // Adds the products of a chunk of `steps` steps, of which the open stage has `room` blocks; waits for all of them.
  __device__ __forceinline__ void multiply(float (&sums)[kSearchSums], uint64_t rows, uint32_t term, uint64_t codewords, int32_t room,
                                           int32_t steps, bool keep) {
    const int32_t blocks = p.form.codeword_terms * steps;
    int32_t before = -1;  // a stage whose products may still be running
#pragma unroll 1
    for (int32_t block = 0;;) {
      const int32_t end = blocks - block < room ? blocks : block + room;
      const Operands from{rows, codewords - static_cast<uint32_t>(block * (kCodewordBlock >> 4)), term, steps};
      const int32_t twice = std::is_same_v<E, __half> || p.form.row_terms == 1 ? block : end < steps ? end : steps > block ? steps : block;
      // The common runs are written out, so that their products follow one another without a break.
      if (twice == block && end - block == 3) {
        products<3, false>(sums, from, block);
      } else if (twice == block && end - block == 2) {
        products<2, false>(sums, from, block);
      } else if (twice == end && end - block == 3) {
        products<3, true>(sums, from, block);
      } else if (twice == end && end - block == 2) {
        products<2, true>(sums, from, block);
      } else {
#pragma unroll 1
        for (int32_t b = block; b < end; ++b) {
          if (b < twice) products<1, true>(sums, from, b);
          else products<1, false>(sums, from, b);
        }
      }
      block = end;
      if (block == blocks) break;
      wgmma_wait<1>();
      if (before >= 0 && !keep) release(before);
      before = at.stage;
      at.next(p.form.stages);
      codewords = open();
      room = kStageBlocks;
    }
    wgmma_wait<0>();
    if (!keep) {
      if (before >= 0) release(before);
      release(at.stage);
    }
    at.next(p.form.stages);
  }
};

#endif

}  // namespace mr::cuda
