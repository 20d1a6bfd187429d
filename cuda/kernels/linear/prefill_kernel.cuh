// prefill_kernel: the prefill class of products on devices with wgmma; see product.h for what it promises.
//
// A block takes tiles of 64 or 128 rows by `tokens` tokens: a warpgroup for every 64 rows, and a warp that asks for data
// (prefill_rings.cuh). Weights become A fragments in registers (prefill_fragments.cuh); sums are one f32 chain in ascending order,
// and are ended by the warps that made them (prefill_end.cuh): once, or part by part of the columns (prefill_parts.cuh).
#pragma once

#include "kernels/launch.h"
#include "kernels/linear/prefill_end.cuh"
#include "kernels/linear/prefill_fragments.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, class A, int32_t rows, int32_t tokens>
struct PrefillBlock {
  using Rings = PrefillRings<T, rows, tokens>;
  using Layout = typename Rings::Layout;
  using Sums = float[tokens / 2];

  // In turn, a part's stores are waited for behind so many pairs of units of the next: they have long been written, and nobody asks for
  // what they wrote before the last unit.
  static constexpr int32_t kTold = 8;
  static_assert(kTold * 2 < kLeastPartUnits);

  const PrefillParams& p;
  const Rings& rings;

  // half: of the tile's tokens, of which alone there are sums.
  template <bool half>
  __device__ __forceinline__ void issue(Sums& sums, const uint32_t (&a)[4][4], int32_t stage) const {
    const uint64_t tokens_at = swizzled_rows(rings.ring + stage * Layout::stage + Layout::weights);
    wgmma_fence();
#pragma unroll
    for (int32_t step = 0; step < 4; ++step) {
      if constexpr (half) wgmma_m64n128<A>(sums, a[step], tokens_at + step * 2);
      else wgmma_m64<A>(sums, a[step], tokens_at + step * 2);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void consume(const PrefillFragments<T, A, rows, tokens>& fragments,
                                          PrefillEnd<T, A, rows, tokens>& end) const {
    grid_wait();
    typename Rings::Place at;
    typename PrefillFragments<T, A, rows, tokens>::Slot from;
    GroupHeader<T, A> header;
    const auto fetch = [&](uint32_t (&a)[4][4], int32_t unit, bool odd) {
      const int32_t stage = at.stage;
      rings.await(at);
      if (Layout::helpers > 0 && odd) fragments.take(a, from);
      else fragments.load(a, header, stage, unit);
      at.next();
      return stage;
    };
    // Adds the products of a part's units.
    const auto multiply = [&](Sums& sums, int32_t units, auto half) {
      uint32_t a[2][4][4];
      int32_t next = fetch(a[0], 0, false);
      const int32_t pairs = (units + 1) / 2;
      int32_t pair = 0;
      for (int32_t stop = end.untold < 0 ? pairs : kTold; pair < pairs; stop = pairs) {
        for (; pair < stop; ++pair) {
          const int32_t unit = pair * 2;
#pragma unroll
          for (int32_t i = 0; i < 2; ++i) {
            if (unit + i >= units) break;
            const int32_t stage = next;
            issue<decltype(half)::value>(sums, a[i], stage);
            if (i == 0) end.settle();
            // The next unit's fragments, while this one's products run.
            if (unit + i + 1 < units) next = fetch(a[1 - i], unit + i + 1, i == 0);
            wgmma_wait<0>();
            rings.release(stage);
          }
        }
        end.announce();
      }
    };
    int32_t part = rings.parts.first();
    for (int32_t item = rings.parts.first_item(); item < p.items; item += p.item_stride) {
      const bool half = rings.is_half(item);
      do {
        const int32_t units = rings.parts.units(part);
        Sums sums = {};
        if constexpr (Rings::kHalves) {
          if (half) multiply(sums, units, std::true_type{});
          else multiply(sums, units, std::false_type{});
        } else {
          multiply(sums, units, std::false_type{});
        }
        // No use of a sum is worked out before its products are waited for.
#pragma unroll
        for (int32_t i = 0; i < tokens / 2; ++i) asm volatile("" : "+f"(sums[i])::"memory");
        int32_t tile, token0;
        rings.locate(item, tile, token0);
        end.finish(sums, tile, token0, part, half, at);
      } while (rings.parts.next(part));
    }
    end.close();
  }
};

#endif

#if MR_HOPPER
template <int32_t T, class A, int32_t rows, int32_t tokens>
__global__ void __launch_bounds__(PrefillLayout<T, rows, tokens>::threads, PrefillLayout<T, rows, tokens>::blocks)
    prefill_product(const __grid_constant__ PrefillParams p, const __grid_constant__ PrefillMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = PrefillLayout<T, rows, tokens>;
  using Rings = PrefillRings<T, rows, tokens>;
  extern __shared__ uint8_t memory[];
  const uint32_t base = kept_address(memory), ring = (base + 1023) & ~1023u;
  Rings rings{p, maps, {p}};
  rings.ring = ring;
  PrefillFragments<T, A, rows, tokens> fragments{rings};
  rings.spare = ring + Layout::stages * Layout::stage;
  fragments.exchange = rings.spare + Layout::spare;
  fragments.handed = fragments.exchange + Layout::exchange;
  rings.full = fragments.handed + Layout::handed;
  rings.empty = rings.full + Layout::stages * 8;
  fragments.ready = rings.empty + Layout::stages * 8;
  fragments.taken = fragments.ready + Layout::slots * Layout::helpers * 8;
  const int32_t rank = static_cast<int32_t>(cluster_rank());
  rings.row_rank = rank % p.row_blocks;
  rings.token_rank = rank / p.row_blocks;
  rings.warp = static_cast<int32_t>(threadIdx.x) / 32;
  rings.lane = static_cast<int32_t>(threadIdx.x) % 32;
  rings.panel = rings.warp % Layout::warps;
  rings.told = rings.lane < Rings::peers(p) ? rings.peer(rings.lane) : -1;
  PrefillEnd<T, A, rows, tokens> end{p, rings};
  const PrefillBlock<T, A, rows, tokens> block{p, rings};
  if (threadIdx.x == 0) {
    for (int32_t s = 0; s < Layout::stages; ++s) {
      barrier_init(rings.full + s * 8, 1);
      barrier_init(rings.empty + s * 8, Layout::readers * Rings::peers(p));  // the warps that read what this block asks for
    }
    for (int32_t s = 0; s < Layout::slots * Layout::helpers; ++s) {
      barrier_init(fragments.ready + s * 8, 1);
      barrier_init(fragments.taken + s * 8, 1);
    }
    barrier_init_fence();
  }
  cluster_sync();
  if constexpr (Layout::gives_registers) {
    // The thread that asks for data keeps all that it needs for a unit in 56.
    static_assert(kRegistersFit<224, 56>);
    if (rings.warp >= Layout::warps) {
      registers_down<56>();
      if (rings.warp == Layout::warps && elected()) rings.produce();
    } else {
      registers_up<224>();
      block.consume(fragments, end);
    }
  } else {
    if (rings.warp < Layout::warps) block.consume(fragments, end);
    else if (rings.warp < Layout::readers) fragments.help();
    else if (elected()) rings.produce();
  }
  __syncwarp();
  cluster_sync();  // other blocks may still fill this one's ring, or arrive at its barriers
#endif
}

template <int32_t T, class A, int32_t form>
PrefillKernel prefill_kernel_of() {
  constexpr int32_t rows = kPrefillFormList[form].rows, tokens = kPrefillFormList[form].tokens;
  using Layout = PrefillLayout<T, rows, tokens>;
  return {reinterpret_cast<const void*>(&prefill_product<T, A, rows, tokens>),
          Layout::bytes,
          Layout::threads,
          tokens,
          rows,
          {Layout::out_box(ProductEnd::kStoreF32), Layout::out_box(ProductEnd::kStoreAct), Layout::out_box(ProductEnd::kAddF32),
           Layout::out_box(ProductEnd::kSwiGLU)}};
}
#else
template <int32_t T, class A, int32_t form>
PrefillKernel prefill_kernel_of() {
  return {};
}
#endif

template <int32_t T, class A, int32_t i = 0>
PrefillKernel prefill_kernel_for(int32_t form) {
  if constexpr (i < kPrefillForms) return i == form ? prefill_kernel_of<T, A, i>() : prefill_kernel_for<T, A, i + 1>(form);
  else return {};
}

}  // namespace mr::cuda
