// search_kernel: the passes of a search over tiles of rows: the fast pass over all rows, and the one that settles listed rows.
//
// Four warpgroups of a block have 64 rows each and multiply them with every tile of 128 codewords: while one waits for the matrix
// units, others compare. By wgmma a fifth gives its registers away and fills the ring that the codewords come through; by mma
// there is no ring.
#pragma once

#include "kernels/vectors/search_pass.h"
#include "kernels/vectors/search_settle.cuh"

namespace mr::cuda {

template <class E, SearchPass pass, bool resident, class Products>
__device__ __forceinline__ void search_rows(const SearchParams& p, const SearchShared& s, Products& products) {
  constexpr bool listed = pass == SearchPass::kSettle;
  const int32_t group = products.group, warp = products.warp, lane = products.lane;
  const SearchLists lists(s.lists);
  float* const squares = s.squares + group * kSearchRows;
  const uint32_t blocks = s.rows + static_cast<uint32_t>(group) * s.row_bytes;
  for (SearchTiles<listed> tiles(p); tiles.next();) {
    const int64_t space = tiles.space, first = tiles.tile * kSearchTile + group * kSearchRows, behind = tiles.many - first;
    const int32_t many = static_cast<int32_t>(behind < 0 ? 0 : behind < kSearchRows ? behind : kSearchRows);
    const float* const center = p.moved ? p.center + space * p.width : nullptr;
    if constexpr (listed) {
      named_barrier(1 + group, 128);  // the lists before are done with
      const int32_t r = static_cast<int32_t>(threadIdx.x) % 128;
      if (r < kSearchRows) {
        const int64_t at = space * p.most_rows + first + r;
        lists.counts[group * kSearchRows + r] = 0;
        lists.rows[group * kSearchRows + r] = r < many ? p.list[at] : 0;
        lists.limits[group * kSearchRows + r] = r < many ? p.limits[at] : -kNoScore;
      }
      named_barrier(1 + group, 128);
    }
    const auto offset = [&](int32_t r) {
      const int64_t row = listed ? static_cast<int64_t>(lists.rows[group * kSearchRows + r]) : first + r;
      return row * p.row_stride + space * p.width;
    };
    const SearchRows<decltype(offset)> rows{p, center, offset, many, blocks, squares};
    Leader leaders[2];
    const bool keep = !listed && p.form.held && !tiles.last_of_space();
    if constexpr (resident) {
      named_barrier(1 + group, 128);  // every warp has multiplied what lies there, and is done with its squares
      rows.template load<E, 4>(0, p.form.steps, false);
      products.settle_writes();
    }
    float sums[kSearchSums];
#pragma unroll 1
    for (int32_t tile = 0; tile < p.tiles; ++tile) {
      const auto load = [&](int32_t step, int32_t steps) {
        named_barrier(1 + group, 128);
        rows.template load<E, 1>(step, steps, step > 0);
        products.settle_writes();
      };
      products.scores(sums, space, tile, keep, load);
      if constexpr (pass == SearchPass::kSettle) list_scores(sums, tile, lists, group * kSearchRows + warp * 16 + lane / 4, lane);
      else take_scores<pass == SearchPass::kFine>(sums, tile, leaders);
    }
    if (keep) products.rewind();
    if constexpr (listed) {
      __syncwarp();
      settle_rows(p, space, lists, group * kSearchRows + warp * 16, group * kSearchRows + many, lane);
      if (lane == 0 && warp == 0 && many > 0)
        atomicAdd(reinterpret_cast<unsigned long long*>(p.recomputed), static_cast<unsigned long long>(many));
    } else {
      choose<pass == SearchPass::kFine>(p, space, first + warp * 16, tiles.many, squares + warp * 16, leaders, lane);
    }
  }
}

// Where codewords do not come through a ring: everything before 9.0, and builds without 90a.
template <class E, SearchPass pass, bool resident>
__global__ void __launch_bounds__(kSearchThreads) search_by_mma(const __grid_constant__ SearchParams p) {
  if (p.state->moved != p.moved) return;
  const SearchShared s(launch_memory(), p.form);
  write_ones(s.ones);
  __syncthreads();
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
  SearchByMma<E, resident> products{p, s, warp / 4, warp % 4, static_cast<int32_t>(threadIdx.x) % 32};
  search_rows<E, pass, resident>(p, s, products);
}

#if MR_HOPPER
template <class E, SearchPass pass, bool resident>
__global__ void __launch_bounds__(kSearchThreads + 128, 1) search_by_wgmma(const __grid_constant__ SearchParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if (p.state->moved != p.moved) return;
  const SearchShared s(launch_memory(), p.form);
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < p.form.stages; ++i) {
      barrier_init(s.full + static_cast<uint32_t>(i * 8), 1);
      barrier_init(s.empty + static_cast<uint32_t>(i * 8), kSearchThreads / 32);
    }
    barrier_init_fence();
  }
  write_ones(s.ones);
  shared_fence();
  __syncthreads();
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0), lane = static_cast<int32_t>(threadIdx.x) % 32;
  if (warp >= kSearchThreads / 32) {
    registers_down<32>();
    if (warp == kSearchThreads / 32 && lane == 0) fill_ring<pass == SearchPass::kSettle>(p, s);
  } else {
    registers_up<112>();
    SearchByWgmma<E, resident> products{p, s, warp / 4, warp % 4, lane};
    search_rows<E, pass, resident>(p, s, products);
  }
#endif
}
#endif

template <class E, SearchPass pass, bool resident>
SearchKernel search_kernel_of(bool hopper) {
#if MR_HOPPER
  if (hopper) return {reinterpret_cast<const void*>(&search_by_wgmma<E, pass, resident>), kSearchThreads + 128};
#endif
  (void)hopper;
  return {reinterpret_cast<const void*>(&search_by_mma<E, pass, resident>), kSearchThreads};
}

template <class E, bool resident>
SearchKernel search_kernel_for(SearchPass pass, bool hopper) {
  switch (pass) {
    case SearchPass::kGroups: return search_kernel_of<E, SearchPass::kGroups, resident>(hopper);
    case SearchPass::kFine: return search_kernel_of<E, SearchPass::kFine, resident>(hopper);
    default: return search_kernel_of<E, SearchPass::kSettle, resident>(hopper);
  }
}

}  // namespace mr::cuda
