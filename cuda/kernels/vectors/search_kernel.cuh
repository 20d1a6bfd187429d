// search_kernel: the two passes of a search over tiles of rows: the fast pass over all rows, and the pass that settles
// listed rows.
//
// Up to four warpgroups of a block have 64 rows each and multiply them with every tile of 128 codewords: while one
// waits for the tensor cores, others compare scores. With wgmma a fifth warpgroup donates its registers and produces
// the pipeline of codewords; mma needs no pipeline.
#pragma once

#include "kernels/vectors/search_choose.cuh"
#include "kernels/vectors/search_pass.h"
#include "kernels/vectors/search_settle.cuh"

namespace mr::cuda {

template <SearchPass pass>
using SearchWork = std::conditional_t<pass == SearchPass::kSettle, WorkOfListed, WorkOfAll>;

// Clears the lists of a warpgroup's part of a tile of listed rows. Missing rows repeat the first one, and nothing is
// listed for them.
__device__ __forceinline__ void open_lists(const SearchParams& p, const WorkOfListed& work, const SearchLists& lists, int32_t group) {
  named_barrier(1 + group, 128);  // the lists of the tile before are no longer used
  const int32_t r = static_cast<int32_t>(threadIdx.x) % 128;
  if (r < kSearchRows) {
    const int32_t place = group * kSearchRows + r, i = row_at(place, p.form.groups * 4);
    const bool there = i < work.rows();
    const int64_t at = work.space * p.most_rows + work.first() + (there ? i : 0);
    lists.counts[place] = 0;
    lists.rows[place] = p.list[at];
    lists.limits[place] = there ? p.limits[at] : -kNoScore;
  }
  named_barrier(1 + group, 128);
}

template <class E, SearchPass pass, bool resident, class Products>
__device__ __forceinline__ void search_rows(const SearchParams& p, const SearchShared& s, Products& products) {
  constexpr bool listed = pass == SearchPass::kSettle;
  const int32_t group = products.group, warp = products.warp, lane = products.lane;
  const SearchLists lists(s.lists);
  const KeptScores<4> kept(s, group * 4 + warp);
  float* const squares = s.squares + group * kSearchRows;
  const uint32_t blocks = s.rows + static_cast<uint32_t>(group) * s.group_bytes;
  for (SearchWork<pass> work(p); work.next();) {
    const int64_t space = work.space, first = work.first() + group * kSearchRows, behind = work.rows() - group * kSearchRows;
    const int32_t many = static_cast<int32_t>(listed ? kSearchRows : behind < 0 ? 0 : behind < kSearchRows ? behind : kSearchRows);
    const float* const center = p.moved ? p.center + space * p.width : nullptr;
    if constexpr (listed) open_lists(p, work, lists, group);
    const auto offset = [&](int32_t r) {
      const int64_t row = listed ? static_cast<int64_t>(lists.rows[group * kSearchRows + r]) : first + r;
      return row * p.row_stride + space * p.width;
    };
    const SearchRows<decltype(offset)> rows{p, center, offset, many, blocks, squares};
    Leader leaders[2];
    const bool keep = !listed && p.form.held && !work.last_of_space();
    if constexpr (resident) {
      named_barrier(1 + group, 128);  // every warp has multiplied these rows and used their squares
      rows.template load<E, 4>(0, p.form.steps, false);
      products.settle_writes();
    }
    float sums[kSearchSums];
#pragma unroll 1
    for (int32_t tile = static_cast<int32_t>(work.begin); tile < work.end; ++tile) {
      const auto load = [&](int32_t step, int32_t steps) {
        named_barrier(1 + group, 128);
        rows.template load<E, 1>(step, steps, step > 0);
        products.settle_writes();
      };
      products.scores(sums, space, tile, keep, load);
      if constexpr (listed) list_scores(sums, tile, lists, group * kSearchRows + warp * 16 + lane / 4, lane);
      else take_scores(sums, tile, leaders, kept, lane);
    }
    if (keep) products.rewind();
    if constexpr (listed) {
      __syncwarp();
      settle_rows(p, work, lists, group * 4 + warp, lane);
      if (threadIdx.x == 0 && work.segment == 0)
        atomicAdd(reinterpret_cast<unsigned long long*>(p.recomputed), static_cast<unsigned long long>(work.rows()));
    } else {
      const float own[2] = {squares[warp * 16 + lane / 4], squares[warp * 16 + lane / 4 + 8]};
      choose<4>(p, Reach(p, space), space, first + warp * 16, p.count, own, leaders, kept, lane);
    }
  }
}

#if MR_HOPPER != 2
// For devices before 9.0 and builds without sm_90a: codewords are read from global memory.
template <class E, SearchPass pass, bool resident>
__global__ void __launch_bounds__(kSearchThreads) search_by_mma(const __grid_constant__ SearchParams p) {
  if (p.state->moved != p.moved) return;
  const SearchShared s(launch_memory(), p.form);
  write_ones(s.ones);
  __syncthreads();
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
  if (warp / 4 >= p.form.groups) return;
  SearchByMma<E, resident> products{p, s, warp / 4, warp % 4, static_cast<int32_t>(threadIdx.x) % 32};
  search_rows<E, pass, resident>(p, s, products);
}
#endif

#if MR_HOPPER
template <class E, SearchPass pass, bool resident>
__global__ void __launch_bounds__(kSearchThreads + 128, 1) search_by_wgmma(const __grid_constant__ SearchParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if (p.state->moved != p.moved) return;
  const SearchShared s(launch_memory(), p.form);
  init_pipeline(p.form, s);
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0), lane = static_cast<int32_t>(threadIdx.x) % 32;
  if (warp >= kSearchWarps) {
    registers_down<32>();
    if (warp == kSearchWarps && lane == 0) produce_codewords<SearchWork<pass>>(p, s);
  } else {
    registers_up<112>();
    if (warp / 4 >= p.form.groups) return;
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
#if MR_HOPPER == 2
  return {};
#else
  return {reinterpret_cast<const void*>(&search_by_mma<E, pass, resident>), kSearchThreads};
#endif
}

template <class E, bool resident>
SearchKernel search_kernel_for(SearchPass pass, bool hopper) {
  switch (pass) {
    case SearchPass::kNearest: return search_kernel_of<E, SearchPass::kNearest, resident>(hopper);
    default: return search_kernel_of<E, SearchPass::kSettle, resident>(hopper);
  }
}

}  // namespace mr::cuda
