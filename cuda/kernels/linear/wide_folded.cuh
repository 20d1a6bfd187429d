// wide_folded: the products of blocks of 256 inputs whose scales fold, by a warpgroup; see folded.cuh.
#pragma once

#include "kernels/linear/wide_rings.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, class A, int32_t tokens>
struct WideFolded : WideRings<T, A, tokens> {
  using Rings = WideRings<T, A, tokens>;
  using typename Rings::Layout;
  using typename Rings::Place;
  using typename Rings::TermsPlace;
  using typename Rings::WeightPlace;
  using Sums = float[tokens / 2];
  using Rings::await, Rings::panel_at, Rings::release, Rings::rows_at, Rings::terms_at;
  using Rings::empty, Rings::empty_terms, Rings::empty_weights, Rings::full_terms, Rings::full_weights;
  using Rings::lane;

  // Where a warpgroup is in its rings.
  struct Places {
    Place rows;
    WeightPlace weights;
    TermsPlace terms;
  };

  // What lasts from a folded block's first unit to its last.
  struct Block {
    FoldedHeader header;
    Sums products, min_products;
    uint32_t a[2][4][4];
  };

  // The products of unit u of a folded block, asynchronous; those of the unit before end, and its tokens are released.
  template <int32_t u>
  __device__ __forceinline__ void issue_folded(Block& block, Places& at, int32_t& before) const {
    const uint32_t panel = panel_at(at.weights.stage);
    if constexpr (u == 0) {
      barrier_wait(full_weights + at.weights.stage * 8, at.weights.phase);
      block.header.load(panel + Format<T>::header_plane, lane);
    }
    UnitQuants<T, A, 1> quants;
    quants.begin(panel + Format<T>::quants_at(u), panel + Format<T>::high_at(u), lane);
    uint32_t (&a)[4][4] = block.a[u % 2];
    folded_unit<T, u>(block.header, quants, false, a);
    if constexpr (u == 3) {
      release(empty_weights, at.weights.stage);
      at.weights.next();
    }
    await(at.rows);
    const int32_t stage = at.rows.stage;
    wgmma_fence();
    wgmma_m64<A, u != 0>(block.products, a[0], rows_at(at.rows));
#pragma unroll
    for (int32_t step = 1; step < 4; ++step) wgmma_m64<A>(block.products, a[step], rows_at(at.rows) + step * 2);
    wgmma_commit();
    if constexpr (u > 0) {
      wgmma_wait<1>();
      release(empty, before);
    }
    before = stage;
    at.rows.next();
  }

  // Adds the products of a segment's `units` units.
  __device__ __forceinline__ void multiply_folded(Sums& acc, Places& at, int32_t units) const {
#pragma unroll 1
    for (int32_t unit = 0; unit < units; unit += 4) {
      int32_t before = 0;
      Block block;
      issue_folded<0>(block, at, before);
      issue_folded<1>(block, at, before);
      issue_folded<2>(block, at, before);
      issue_folded<3>(block, at, before);
      const uint32_t mins[4] = {block.header.mins[0], block.header.mins[1], block.header.mins[0], block.header.mins[1]};
      const uint64_t terms = swizzled_rows64(terms_at(at.terms));
      barrier_wait(full_terms + at.terms.stage * 8, at.terms.phase);
      wgmma_fence();
      wgmma_m64<__nv_bfloat16, false>(block.min_products, mins, terms);
      wgmma_m64<__nv_bfloat16>(block.min_products, mins, terms + 2);
      wgmma_commit();
      wgmma_wait<1>();
      release(empty, before);
      wgmma_wait<0>();
      release(empty_terms, at.terms.stage);
      at.terms.next();
#pragma unroll
      for (int32_t n = 0; n < tokens / 2; n += 4) block.header.add(acc + n, block.products + n, block.min_products + n);
    }
  }
};

#endif

}  // namespace mr::cuda
