// prefill_wgmma_kernel: the prefill class on devices with wgmma; see gemm.h for the contract.
//
// A block processes tiles of 64 or 128 rows by `tokens` tokens: one consumer warpgroup for every 64 rows, and one
// producer warp (prefill_wgmma_pipeline.cuh). Weights become A fragments in registers (PrefillFragments), because quantised
// weights cannot be multiplied from shared memory. Sums are one f32 chain in ascending order. The consumers also run the
// epilogue (prefill_wgmma_epilogue.cuh), once for a tile or once for each K partition (PrefillPartitions).
#pragma once

#include "kernels/gemm/fragment.cuh"
#include "kernels/gemm/prefill_wgmma_epilogue.cuh"
#include "kernels/launch.h"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// PrefillFragments turns a unit of a panel's packed bytes into A fragments of the activation type. If only one warpgroup multiplies
// quantised weights, a second one makes the fragments of every other unit and hands them over.
template <int32_t T, class A, int32_t rows, int32_t tokens>
struct PrefillFragments {
  using Pipeline = PrefillPipeline<T, rows, tokens>;
  using Layout = typename Pipeline::Layout;
  using StageCursor = typename Pipeline::StageCursor;
  using Slot = PipelineState<Layout::slots>;
  using Header = GroupHeader<T>;
  static constexpr WeightFormat f = Pipeline::f;
  static constexpr int32_t half_panels = Pipeline::half_panels;

  const Pipeline& pipeline;
  uint32_t exchange, handoff, ready, consumed;  // addresses; ready, consumed: a barrier for each slot and warp

  // Returns the address of this warp's plane i in a stage.
  __device__ __forceinline__ uint32_t plane(int32_t stage, int32_t i) const {
    return pipeline.stage_memory + stage * Layout::stage + Layout::plane_at(i) + pipeline.panel / half_panels * Layout::half_bytes(i) +
           pipeline.panel % half_panels * Layout::plane_bytes(i);
  }
  __device__ __forceinline__ uint32_t published() const { return exchange + pipeline.warp * Layout::exchange_each; }

  // Loads a group's header, which its first unit carries.
  __device__ __forceinline__ void open(Header& header, int32_t stage) const {
    header.load(plane(stage, 3), pipeline.lane);
    if constexpr (Layout::publishes) {
      __syncwarp();
      header.template publish<f.units>(published(), 0, pipeline.lane);
      __syncwarp();
    }
  }

  // Makes the A fragments of a unit in a stage. Units are counted from the start of a partition, where groups begin.
  static_assert(kGroupUnits % f.units == 0);
  __device__ __forceinline__ void load(uint32_t (&a)[4][4], Header& header, int32_t stage, int32_t unit) const {
    const uint32_t first_plane = plane(stage, 0);
    if constexpr (Format<T>::is_float) {
#pragma unroll
      for (int32_t step = 0; step < 4; ++step) load_rounded<T, A>(a[step], first_plane, step, pipeline.lane);
    } else {
      const bool alone = f.units == 1;  // the unit has one plane
      const int32_t u = unit % f.units;
      RoundedUnit<T> weights;
      weights.quants.begin(first_plane, alone ? first_plane + f.quants : plane(stage, 1), pipeline.lane);
      if (u == 0) open(header, stage);
      weights.scale(Layout::publishes ? published() + u * 256 : alone ? first_plane + f.quants + f.high : plane(stage, 2), header,
                    pipeline.lane);
      weights.take_all(a);
    }
  }

  // Runs in a helper warp: makes the fragments of every other unit of a partition for the consumer warp of this panel.
  __device__ __forceinline__ void help() const {
    StageCursor cursor;
    Slot to;
    Header header;
    int32_t partition = pipeline.partitions.first();
    for (int32_t item = pipeline.partitions.first_item(); item < pipeline.p.items; item += pipeline.p.item_stride) {
      do {
        const int32_t units = pipeline.partitions.units(partition);
        for (int32_t unit = 0; unit < units; ++unit, cursor.next()) {
          pipeline.await(cursor);
          if (unit % 2 == 1) {
            uint32_t a[4][4];
            load(a, header, cursor.stage, unit);
            const int32_t slot = to.stage * Layout::helpers + pipeline.panel;
            barrier_wait(consumed + slot * 8, to.phase ^ 1);
#pragma unroll
            for (int32_t step = 0; step < 4; ++step) {
              const uint4 v = make_uint4(a[step][0], a[step][1], a[step][2], a[step][3]);
              store_shared16(handoff + slot * 2048 + step * 512 + pipeline.lane * 16, v);
            }
            warp_release(ready + slot * 8, pipeline.lane);
            to.next();
          } else if (unit % f.units == 0) {
            open(header, cursor.stage);
            shared_fence();  // the header's loads may still be in flight (barrier_arrive)
          }
          pipeline.release(cursor.stage);
        }
        pipeline.pass(cursor);
      } while (pipeline.partitions.next(partition));
    }
  }

  // Receives the fragments that this warp's helper made.
  __device__ __forceinline__ void take(uint32_t (&a)[4][4], Slot& from) const {
    const int32_t slot = from.stage * Layout::helpers + pipeline.panel;
    barrier_wait(ready + slot * 8, from.phase);
#pragma unroll
    for (int32_t step = 0; step < 4; ++step) load_fragment(a[step], handoff + slot * 2048, step, pipeline.lane);
    warp_release(consumed + slot * 8, pipeline.lane);
    from.next();
  }
};

// PrefillBlock is the consumers of a block.
template <int32_t T, class A, int32_t rows, int32_t tokens>
struct PrefillBlock {
  using Pipeline = PrefillPipeline<T, rows, tokens>;
  using Layout = typename Pipeline::Layout;
  using Sums = float[tokens / 2];

  // If one block does all partitions of a tile, it waits for a partition's stores only after this many pairs of units
  // of the next partition. By then they have long completed, and no block needs them before the last unit.
  static constexpr int32_t kAnnounceDelay = 8;
  static_assert(kAnnounceDelay * 2 < kLeastPartitionUnits);

  const WgmmaParams& p;
  const Pipeline& pipeline;

  __device__ __forceinline__ uint64_t rows_at(int32_t stage) const {
    return swizzled_rows(pipeline.stage_memory + stage * Layout::stage + Layout::weights);
  }

  __device__ __forceinline__ void consume(const PrefillFragments<T, A, rows, tokens>& fragments,
                                          PrefillEpilogue<T, A, rows, tokens>& epilogue) const {
    grid_wait();
    typename Pipeline::StageCursor cursor;
    typename PrefillFragments<T, A, rows, tokens>::Slot from;
    GroupHeader<T> header;
    const auto fetch = [&](uint32_t (&a)[4][4], int32_t unit, bool odd) {
      const int32_t stage = cursor.stage;
      pipeline.await(cursor);
      if (Layout::helpers > 0 && odd) fragments.take(a, from);
      else fragments.load(a, header, stage, unit);
      cursor.next();
      return stage;
    };
    // Adds the products of a partition's units; half: of the first half of the tile's tokens alone.
    const auto multiply = [&](Sums& sums, int32_t units, auto half) {
      uint32_t a[2][4][4];
      int32_t next = fetch(a[0], 0, false);
      const int32_t pairs = (units + 1) / 2;
      int32_t pair = 0;
      for (int32_t stop = epilogue.unannounced < 0 ? pairs : kAnnounceDelay; pair < pairs; stop = pairs) {
        for (; pair < stop; ++pair) {
          const int32_t unit = pair * 2;
#pragma unroll
          for (int32_t i = 0; i < 2; ++i) {
            if (unit + i >= units) break;
            const int32_t stage = next;
            issue_unit<A, decltype(half)::value>(sums, a[i], rows_at(stage));
            if (i == 0) epilogue.settle();
            // Make the next unit's fragments while this unit's products run.
            if (unit + i + 1 < units) next = fetch(a[1 - i], unit + i + 1, i == 0);
            wgmma_wait<0>();
            wgmma_keep(a[i]);
            pipeline.release(stage);
          }
        }
        epilogue.announce();
      }
    };
    int32_t partition = pipeline.partitions.first();
    for (int32_t item = pipeline.partitions.first_item(); item < p.items; item += p.item_stride) {
      const bool half = pipeline.is_half(item);
      do {
        const int32_t units = pipeline.partitions.units(partition);
        Sums sums = {};
        if constexpr (Pipeline::kHalves) {
          if (half) multiply(sums, units, std::true_type{});
          else multiply(sums, units, std::false_type{});
        } else {
          multiply(sums, units, std::false_type{});
        }
        wgmma_settle(sums);
        int32_t tile, token0;
        pipeline.locate(item, tile, token0);
        epilogue.finish(sums, tile, token0, partition, half, cursor);
      } while (pipeline.partitions.next(partition));
    }
    epilogue.close();
  }
};

#endif

#if MR_HOPPER
template <int32_t T, class A, int32_t rows, int32_t tokens>
__global__ void __launch_bounds__(PrefillLayout<T, rows, tokens>::threads, PrefillLayout<T, rows, tokens>::blocks)
    gemm_prefill_wgmma(const __grid_constant__ WgmmaParams p, const __grid_constant__ PrefillMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = PrefillLayout<T, rows, tokens>;
  using Pipeline = PrefillPipeline<T, rows, tokens>;
  extern __shared__ uint8_t memory[];
  const uint32_t base = kept_address(memory), stage_memory = (base + 1023) & ~1023u;
  Pipeline pipeline{p, maps, {p}};
  pipeline.stage_memory = stage_memory;
  PrefillFragments<T, A, rows, tokens> fragments{pipeline};
  pipeline.spare = stage_memory + Layout::stages * Layout::stage;
  fragments.exchange = pipeline.spare + Layout::spare;
  fragments.handoff = fragments.exchange + Layout::exchange;
  pipeline.full = fragments.handoff + Layout::handoff;
  pipeline.empty = pipeline.full + Layout::stages * 8;
  fragments.ready = pipeline.empty + Layout::stages * 8;
  fragments.consumed = fragments.ready + Layout::slots * Layout::helpers * 8;
  const int32_t rank = static_cast<int32_t>(cluster_rank());
  pipeline.row_rank = rank % p.row_blocks;
  pipeline.token_rank = rank / p.row_blocks;
  pipeline.warp = static_cast<int32_t>(threadIdx.x) / 32;
  pipeline.lane = static_cast<int32_t>(threadIdx.x) % 32;
  pipeline.panel = pipeline.warp % Layout::warps;
  pipeline.peer_rank = pipeline.lane < Pipeline::peers(p) ? pipeline.peer(pipeline.lane) : -1;
  PrefillEpilogue<T, A, rows, tokens> epilogue{p, pipeline};
  const PrefillBlock<T, A, rows, tokens> block{p, pipeline};
  if (threadIdx.x == 0) {
    for (int32_t s = 0; s < Layout::stages; ++s) {
      barrier_init(pipeline.full + s * 8, 1);
      barrier_init(pipeline.empty + s * 8, Layout::readers * Pipeline::peers(p));  // all warps that read this block's loads
    }
    for (int32_t s = 0; s < Layout::slots * Layout::helpers; ++s) {
      barrier_init(fragments.ready + s * 8, 1);
      barrier_init(fragments.consumed + s * 8, 1);
    }
    barrier_init_fence();
  }
  cluster_sync();
  if constexpr (Layout::gives_registers) {
    // The producer thread keeps everything that it needs for a unit in 56 registers.
    static_assert(kRegistersFit<224, 56>);
    if (pipeline.warp >= Layout::warps) {
      registers_down<56>();
      if (pipeline.warp == Layout::warps && elected()) pipeline.produce();
    } else {
      registers_up<224>();
      block.consume(fragments, epilogue);
    }
  } else {
    if (pipeline.warp < Layout::warps) block.consume(fragments, epilogue);
    else if (pipeline.warp < Layout::readers) fragments.help();
    else if (elected()) pipeline.produce();
  }
  __syncwarp();
  cluster_sync();  // other blocks may still write this block's stages, or arrive at its barriers
#endif
}

#endif

template <int32_t T, class A, int32_t form>
WgmmaKernel prefill_wgmma_kernel_of() {
#if MR_HOPPER
  constexpr int32_t rows = kPrefillFormList[form].rows, tokens = kPrefillFormList[form].tokens;
  using Layout = PrefillLayout<T, rows, tokens>;
  return {reinterpret_cast<const void*>(&gemm_prefill_wgmma<T, A, rows, tokens>), Layout::bytes, Layout::threads, tokens, rows,
          {Layout::out_box(false), Layout::out_box(true)}};
#else
  return {};
#endif
}

template <int32_t T, class A, int32_t i = 0>
WgmmaKernel prefill_wgmma_kernel_for(int32_t form) {
  constexpr bool rounds = Format<T>::is_float && T != (std::is_same_v<A, __half> ? kF16 : kBF16);
  if constexpr (i == kPrefillForms) {
    return {};
  } else if constexpr (rounds && i != kOnlyForm) {
    return prefill_wgmma_kernel_for<T, A, i + 1>(form);
  } else {
    return i == form ? prefill_wgmma_kernel_of<T, A, i>() : prefill_wgmma_kernel_for<T, A, i + 1>(form);
  }
}

template <int32_t T>
WgmmaKernel prefill_wgmma_kernel(Act act, int32_t form) {
  return with_multiplied_act<T, WgmmaKernel>(act, [&](auto element) { return prefill_wgmma_kernel_for<T, decltype(element)>(form); });
}

}  // namespace mr::cuda
