// wide_folded: the products of blocks of 256 inputs whose scales fold, by a warpgroup; see folded.cuh.
#pragma once

#include "kernels/linear/wide_rings.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, class A, int32_t tokens, bool given>
struct WideFolded : WideRings<T, A, tokens, given> {
  using Rings = WideRings<T, A, tokens, given>;
  using typename Rings::Layout;
  using typename Rings::Place;
  using typename Rings::TermsPlace;
  using typename Rings::WeightPlace;
  using Sums = float[tokens / 2];
  using Rings::await, Rings::panel_at, Rings::release, Rings::rows_at, Rings::terms_at;
  using Rings::empty, Rings::empty_terms, Rings::empty_weights, Rings::full_terms, Rings::full_weights, Rings::rows;
  using Rings::group, Rings::lane, Rings::warp;

  // Eights of tokens whose sums this warp makes.
  static constexpr int32_t own_eights = given ? 0 : (tokens + 31) / 32;

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
    InputSums inputs[given ? 1 : own_eights];
  };

  // The products of unit u of a folded block, asynchronous; those of the unit before end, and its tokens are released.
  template <int32_t u>
  __device__ __forceinline__ void issue_folded(Block& block, Places& at, int32_t& before) const {
    const uint32_t panel = panel_at(at.weights.stage);
    if constexpr (u == 0) {
      barrier_wait(full_weights + at.weights.stage * 8, at.weights.phase);
      block.header.load(panel + Format<T>::header_plane, lane);
      if constexpr (!given)
        for (InputSums& inputs : block.inputs) inputs.clear();
    }
    UnitQuants<T, A, 1> quants;
    quants.begin(panel + Format<T>::quants_at(u), panel + Format<T>::high_at(u), lane);
    uint32_t (&a)[4][4] = block.a[u % 2];
    folded_unit<T, u>(block.header, quants, false, a);
    await(at.rows);
    const int32_t stage = at.rows.stage;
    wgmma_fence();
    wgmma_m64<A, u != 0>(block.products, a[0], rows_at(at.rows));
#pragma unroll
    for (int32_t step = 1; step < 4; ++step) wgmma_m64<A>(block.products, a[step], rows_at(at.rows) + step * 2);
    wgmma_commit();
    if constexpr (u == 3) {
      release(empty_weights, at.weights.stage);  // behind the products of the last that was loaded of it (barrier_arrive)
      at.weights.next();
    }
    if constexpr (!given) add_inputs<u>(block, rows + stage * Layout::rows, terms_at(at.terms));
    if constexpr (u > 0) {
      wgmma_wait<1>();
      release(empty, before);
    }
    before = stage;
    at.rows.next();
  }

  // Adds a unit's tokens to this warp's sums; after the last, to their terms.
  template <int32_t u>
  __device__ __forceinline__ void add_inputs(Block& block, uint32_t tile, uint32_t terms) const {
#pragma unroll
    for (int32_t i = 0; i < own_eights; ++i) {
      const int32_t eight = warp % 4 + i * 4;
      if (eight * 8 >= tokens) continue;
      const uint32_t row = tile + (eight * 8 + lane % 8) * 128;
      uint32_t x[4];
      load_matrices(x, row + (lane / 8 ^ (lane % 8)) * 16);
      block.inputs[i].add(x, u * 2, lane);
      load_matrices(x, row + ((lane / 8 + 4) ^ (lane % 8)) * 16);
      block.inputs[i].add(x, u * 2 + 1, lane);
      if constexpr (u == 3) store_terms(block.inputs[i], terms + eight * 512);
    }
  }

  // Eight rows of terms: the three pieces of 16 bytes are the terms, the fourth stays zero.
  __device__ __forceinline__ void store_terms(const InputSums& inputs, uint32_t to) const {
    uint32_t terms[3];
    inputs.split(terms);
    const uint32_t row = to + lane / 4 * 64 + lane % 4 * 4;
#pragma unroll
    for (int32_t i = 0; i < 3; ++i) store_shared4(row + (i ^ (lane / 8)) * 16, terms[i]);
  }

  // Waits for the terms of the group at hand, which lie in this warpgroup's tile.
  __device__ __forceinline__ void await_terms(const TermsPlace& at) const {
    if constexpr (given) {
      barrier_wait(full_terms + at.stage * 8, at.phase);
    } else {
      shared_fence();
      named_barrier(1 + group, 128);
    }
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
      await_terms(at.terms);
      wgmma_fence();
      wgmma_m64<__nv_bfloat16, false>(block.min_products, mins, terms);
      wgmma_m64<__nv_bfloat16>(block.min_products, mins, terms + 2);
      wgmma_commit();
      wgmma_wait<1>();
      release(empty, before);
      wgmma_wait<0>();
      if constexpr (given) release(empty_terms, at.terms.stage);
      at.terms.next();
#pragma unroll
      for (int32_t n = 0; n < tokens / 2; n += 4) block.header.add(acc + n, block.products + n, block.min_products + n);
    }
  }
};

#endif

}  // namespace mr::cuda
