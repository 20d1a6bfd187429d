// prefill_parts: which parts of the columns (product.h) a block of the prefill class takes, and how they reach the residual stream one
// after another.
//
// In turn, a block takes every part of each of its tiles. Beside each other, clusters take one part of one tile each: as many for part 0
// as there are tiles, behind them as many for part 1, and so on. Either way what a part is added to is loaded when the part before has
// been stored, of which marks in global memory tell: one for every 64 rows of a block's tile, at the block's place among those of its
// part. The warp that stored part i makes it i + 1; whoever has waited on behalf of the last part makes it 0 again. Tiles past the last
// have none.
//
// Nobody waits for ever. In turn, whoever asks for data waits when it has asked for all of a part's units, in the course of which the
// warps that multiply tell of the part before. Beside each other, blocks wait for those of lower indices alone, which a device begins
// first: so the lowest that has not ended waits for nobody, whatever else the device has to do. That blocks begin in the order of their
// indices is what devices do and no promise of CUDA.
#pragma once

#include "kernels/linear/prefill.h"
#include "kernels/linear/wgmma.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t rows>
struct PrefillParts {
  const PrefillParams& p;

  // What a block begins with.
  __device__ __forceinline__ int32_t first_item() const { return p.beside ? cluster() % p.item_stride : cluster(); }
  __device__ __forceinline__ int32_t first() const { return p.beside ? cluster() / p.item_stride : 0; }
  // Goes on to the block's next part of a tile; where there is none, to its first of the next tile.
  __device__ __forceinline__ bool next(int32_t& part) const {
    if (p.beside) return false;
    if (++part < p.parts) return true;
    part = 0;
    return false;
  }

  // The unit that a part begins with; behind the last part, how many there are. Groups times part, divided by the parts.
  __device__ __forceinline__ int32_t unit(int32_t part) const {
    return min(static_cast<int32_t>(__umulhi(p.part_groups * static_cast<uint32_t>(part), p.part_share)) * kGroupUnits, p.units);
  }
  __device__ __forceinline__ int32_t units(int32_t part) const { return unit(part + 1) - unit(part); }

  // Waits until the part before has been stored: group `group` of 64 rows of this block's tile. By one thread, whose copies may then load
  // it; so may threads that a barrier lets go on behind it.
  __device__ __forceinline__ void await(int32_t group, int32_t part) const {
    uint32_t* const here = mark(group, part);
    uint32_t stored;
    do {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(stored) : "l"(here) : "memory");
    } while (stored < static_cast<uint32_t>(part));
    if (part + 1 == p.parts) asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(here), "r"(0) : "memory");
    asm volatile("fence.acq_rel.gpu;\nfence.proxy.async.global;" ::: "memory");
  }

  // Tells that a part has been stored. By the thread that has waited for its stores, or behind a barrier for those of others.
  __device__ __forceinline__ void announce(int32_t group, int32_t part) const {
    asm volatile("fence.proxy.async.global;\nst.release.gpu.global.u32 [%0], %1;" ::"l"(mark(group, part)), "r"(part + 1) : "memory");
  }

 private:
  __device__ __forceinline__ int32_t cluster() const { return static_cast<int32_t>(blockIdx.x) / (p.row_blocks * p.token_blocks); }
  __device__ __forceinline__ uint32_t* mark(int32_t group, int32_t part) const {
    const int32_t before = p.beside ? part * p.item_stride * p.row_blocks * p.token_blocks : 0;  // blocks
    return p.marks + (static_cast<int32_t>(blockIdx.x) - before) * kMarksABlock + group;
  }
  static_assert(rows / 64 <= kMarksABlock);
};

#endif

}  // namespace mr::cuda
