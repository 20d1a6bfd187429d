// prefill_wgmma_fragments: turns a unit of a panel's packed bytes into A fragments of the activation type.
//
// If only one warpgroup multiplies quantised weights, a second one makes the fragments of every other unit and hands
// them over.
#pragma once

#include "kernels/gemm/fragment.cuh"
#include "kernels/gemm/prefill_wgmma_pipeline.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

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

#endif

}  // namespace mr::cuda
