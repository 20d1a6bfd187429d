// prefill_wgmma_partitions: which K partitions (gemm.h) a block of the prefill class computes, and how they are added
// to the residual stream in order.
//
// In sequence, a block computes every partition of each of its tiles. Concurrently, each cluster computes one partition
// of one tile: the first clusters, as many as there are tiles, have partition 0, the next ones partition 1, and so on.
// Either way a partition loads the residual after the one before it has been stored. Semaphores in global memory
// order this: one for every 64 rows of a block's tile, indexed by the block's position among those of its partition.
// The warp that has stored partition i sets it to i + 1; the waiter of the last partition sets it to 0 again. Tiles
// past the last have none.
//
// There is no deadlock. In sequence, the producer waits only after it has requested all units of a partition, and while
// these are multiplied the consumers announce the partition before. Concurrently, blocks wait only for blocks of lower
// index, and the device starts those first, so the lowest block that has not ended never waits, whatever else runs
// on the device. That blocks start in the order of their index is what devices do; CUDA does not promise it.
#pragma once

#include "kernels/gemm/prefill_wgmma.h"
#include "kernels/gemm/wgmma.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t rows>
struct PrefillPartitions {
  const WgmmaParams& p;

  // The block's first item and its first partition.
  __device__ __forceinline__ int32_t first_item() const { return p.concurrent ? cluster() % p.item_stride : cluster(); }
  __device__ __forceinline__ int32_t first() const { return p.concurrent ? cluster() / p.item_stride : 0; }
  // Advances to the block's next partition of the tile and returns true; after the last, returns false with the first.
  __device__ __forceinline__ bool next(int32_t& partition) const {
    if (p.concurrent) return false;
    if (++partition < p.partitions) return true;
    partition = 0;
    return false;
  }

  // Returns the first unit of a partition, or the number of units after the last: groups times partition divided by
  // partitions.
  __device__ __forceinline__ int32_t unit(int32_t partition) const {
    return min(static_cast<int32_t>(__umulhi(p.partition_groups * static_cast<uint32_t>(partition), p.partition_share)) * kGroupUnits,
               p.units);
  }
  __device__ __forceinline__ int32_t units(int32_t partition) const { return unit(partition + 1) - unit(partition); }

  // Waits until the partition before has been stored, for the 64 rows `group` of this block's tile. Called by one
  // thread. Its copies may then load the rows, and so may threads that pass a barrier after it.
  __device__ __forceinline__ void await(int32_t group, int32_t partition) const {
    uint32_t* const here = semaphore(group, partition);
    uint32_t stored;
    do {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(stored) : "l"(here) : "memory");
    } while (stored < static_cast<uint32_t>(partition));
    if (partition + 1 == p.partitions) asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(here), "r"(0) : "memory");
    asm volatile("fence.acq_rel.gpu;\nfence.proxy.async.global;" ::: "memory");
  }

  // Announces that a partition has been stored. Called by the thread that waited for its TMA stores, or after a barrier
  // if other threads stored.
  __device__ __forceinline__ void announce(int32_t group, int32_t partition) const {
    asm volatile("fence.proxy.async.global;\nst.release.gpu.global.u32 [%0], %1;" ::"l"(semaphore(group, partition)),
                 "r"(partition + 1)
                 : "memory");
  }

 private:
  __device__ __forceinline__ int32_t cluster() const { return static_cast<int32_t>(blockIdx.x) / (p.row_blocks * p.token_blocks); }
  __device__ __forceinline__ uint32_t* semaphore(int32_t group, int32_t partition) const {
    const int32_t before = p.concurrent ? partition * p.item_stride * p.row_blocks * p.token_blocks : 0;  // blocks
    return p.semaphores + (static_cast<int32_t>(blockIdx.x) - before) * kSemaphoresABlock + group;
  }
  static_assert(rows / 64 <= kSemaphoresABlock);
};

#endif

}  // namespace mr::cuda
