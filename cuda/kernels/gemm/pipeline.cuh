// pipeline: the barrier rule of every wgmma GEMM's stages, and the loop over the units of a slice.
//
// A stage of shared memory has two mbarriers, `full` and `empty`, and a PipelineState (wgmma.cuh) counts their phases.
//
//   producer (one elected thread)                        consumer (every warp of its warpgroups)
//     wait empty, parity phase ^ 1  <---- arrive -----     release: lane 0 arrives for its warp
//     expect the bytes on full, issue the copies           wait full, parity phase
//     the copies complete full      ---- complete --->     load fragments, issue products, wait for the products
//
// 1. The first wait for `empty` passes, because the phase before the first has the parity 1.
// 2. A warp releases a stage only after a product, sum or store has used its last load of it, or after shared_fence(). An
//    arrival does not order copies after loads that are in flight (barrier_arrive).
// 3. A warp meets before one lane arrives for it, so `empty` counts warps: those of every block that reads the stage.
// 4. Fragments stay in their registers until their products have been waited for (wgmma_keep).
#pragma once

#include "kernels/gemm/wgmma.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Releases what `barrier` guards, by rules 2 and 3: in this block, or in the first `blocks` blocks of the cluster.
__device__ __forceinline__ void warp_release(uint32_t barrier, int32_t lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(barrier);
}
__device__ __forceinline__ void warp_release(uint32_t barrier, int32_t lane, int32_t blocks) {
  __syncwarp();
  if (lane < blocks) barrier_arrive_at(barrier, lane);
}

// Issues the products of a unit of 64 inputs. rows: the descriptor of its tokens. half: of the first 128 tokens alone.
template <class A, bool half = false, int32_t size>
__device__ __forceinline__ void issue_unit(float (&sums)[size], const uint32_t (&a)[4][4], uint64_t rows) {
  wgmma_fence();
#pragma unroll
  for (int32_t step = 0; step < 4; ++step) {
    if constexpr (half) wgmma_m64n128<A>(sums, a[step], rows + step * 2);
    else wgmma_m64<A>(sums, a[step], rows + step * 2);
  }
  wgmma_commit();
}

// Adds the products of `units` units, from the cursor's stage on. The next unit's fragments are made, by load(fragments,
// stage, unit), while this unit's products run. P waits for a stage, describes its tokens and releases it.
template <class A, class P, class Sums, class Load>
__device__ __forceinline__ void multiply_units(const P& pipeline, Sums& sums, typename P::StageCursor& cursor, int32_t units, Load&& load) {
  if (units == 0) return;
  uint32_t a[2][4][4];
  pipeline.await(cursor);
  load(a[0], cursor.stage, 0);
#pragma unroll 1
  for (int32_t unit = 0; unit < units; unit += 2) {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      if (unit + i >= units) break;
      const int32_t stage = cursor.stage;
      issue_unit<A>(sums, a[i], pipeline.rows_at(stage));
      cursor.next();
      if (unit + i + 1 < units) {
        pipeline.await(cursor);
        load(a[1 - i], cursor.stage, unit + i + 1);
      }
      wgmma_wait<0>();
      wgmma_keep(a[i]);
      pipeline.release_unit(stage);
    }
  }
}

#endif

}  // namespace mr::cuda
