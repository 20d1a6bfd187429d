// gemv_registers: the decode class's kernel for up to eight f16 tokens whose inputs fit a block's registers, for
// weights whose blocks of 256 fold (folded.cuh). A slice has at most kRegisterGroups groups of columns.
//
// It works as gemv_async.cuh and has the same bits, but a warp loads its slice of the tokens once, as the fragments
// that it multiplies and the terms of their sums, instead of once a tile: eight tokens are more bytes than a panel of
// weights. Its pipeline holds weights alone, a group of one panel to a stage. Of a pair it reads the gate's panel and
// then the up's.
#pragma once

#include "kernels/gemm/folded.cuh"
#include "kernels/gemm/gemv_tile.cuh"
#include "kernels/gemm/targets.cuh"
#include "kernels/instructions.cuh"
#include "kernels/launch.h"

namespace mr::cuda {

template <int32_t T, class S, int32_t room>
struct GemvRegistersLayout {
  static constexpr int32_t warp_stage = Format<T>::group_bytes, stage = S::warps * warp_stage;
  static constexpr int32_t fitting_stages(int32_t blocks) {
    const int32_t left = room * 1024 / blocks - 1024 - 2 * S::reduction * 4;
    return left / stage < 6 ? left / stage : 6;
  }
  static constexpr int32_t many = fitting_stages(S::blocks_per_sm), stages = many >= 2 ? many : fitting_stages(1);
  static constexpr int32_t partial_sums_at = stages * stage, bytes = partial_sums_at + 2 * S::reduction * 4;
  // Scratch for turning a unit's inputs into fragments: eight rows of 128 bytes and 16 of padding, so that ldmatrix
  // meets every bank once.
  static constexpr int32_t row = kUnitCols * 2 + 16;
  static_assert(room == 0 || (stages >= 2 && S::tokens * row <= warp_stage));
};

template <int32_t T, class S>
struct GemvRegistersBlock {
  using Layout = GemvRegistersLayout<T, S, kGemvSharedKiB>;
  static constexpr int32_t units = Format<T>::f.units, group_bytes = Format<T>::group_bytes;

  const GemvParams& p;
  GemvTile<__half, S> tile;
  uint32_t shared;      // address of the stages
  uint64_t policy;
  const int32_t warp = tile.warp, lane = tile.lane;
  const int32_t first_group = p.groups * warp / kSlices;                 // of this warp's slice
  const int32_t groups = p.groups * (warp + 1) / kSlices - first_group;  // <= kRegisterGroups

  // Inputs is one group of eight tokens.
  struct Inputs {
    uint32_t x[units][2][4];  // as load_matrices returns each 32 inputs of a unit
    uint32_t input_sums[3];        // their sums, as three bf16 terms
  };

  // Cursor is a position in the sequence of groups of a warp, panel after panel and tile after tile.
  struct Cursor {
    int32_t item, panel, group;
    const uint8_t* from;  // this lane's first 16 bytes of the group
  };

  __device__ __forceinline__ void aim(Cursor& cursor) const {
    int32_t panel = cursor.item;
    const KernelTarget& target = S::panels == 2 ? p.targets[cursor.panel] : target_of(p, cursor.item, panel);
    cursor.from = target.data + panel * p.panel_bytes + first_group * group_bytes + lane * 16;
  }

  __device__ __forceinline__ uint32_t weights_in(int32_t stage) const {
    return shared + stage * Layout::stage + warp * Layout::warp_stage;
  }

  // Requests the group at the cursor, if there is one, and advances.
  __device__ __forceinline__ void fill(Cursor& cursor, int32_t stage) const {
    if (cursor.item >= p.items) return;
    const uint32_t to = weights_in(stage) + lane * 16;
#pragma unroll
    for (int32_t c = 0; c < group_bytes; c += 512) {
      if (c + 512 <= group_bytes || lane * 16 < group_bytes - c) copy16(to + c, cursor.from + c, policy);
    }
    cursor.from += group_bytes;
    if (++cursor.group < groups) return;
    cursor.group = 0;
    if (++cursor.panel == S::panels) {
      cursor.panel = 0;
      cursor.item += p.item_stride;
    }
    if (cursor.item < p.items) aim(cursor);
  }

  // Loads the slice's inputs through the stage that is not filled yet. Rows past the last token are zeros.
  __device__ __forceinline__ void keep(Inputs (&inputs)[kRegisterGroups]) const {
    const int32_t row = lane / 8, piece = lane % 8 * 16;
    const uint8_t* const from = static_cast<const uint8_t*>(p.x) + first_group * (units * kUnitCols * 2) + piece;
    uint4 pieces[kRegisterGroups][units][2];
#pragma unroll
    for (int32_t g = 0; g < kRegisterGroups; ++g) {
#pragma unroll
      for (int32_t i = 0; i < units * 2; ++i) {
        const int32_t token = row + i % 2 * 4;
        const uint8_t* const source = from + token * p.x_stride * 2 + (g * units + i / 2) * (kUnitCols * 2);
        pieces[g][i / 2][i % 2] = g < groups && token < p.tokens ? __ldcg(reinterpret_cast<const uint4*>(source)) : make_uint4(0, 0, 0, 0);
      }
    }
    const uint32_t place = weights_in(Layout::stages - 1), to = place + row * Layout::row + piece;
    const uint32_t fragments = place + (lane & 7) * Layout::row + (lane >> 3) * 16;
#pragma unroll
    for (int32_t g = 0; g < kRegisterGroups; ++g) {
      InputSums sums;
      sums.clear();
#pragma unroll
      for (int32_t u = 0; u < units; ++u) {
        store_shared16(to, pieces[g][u][0]);
        store_shared16(to + 4 * Layout::row, pieces[g][u][1]);
        __syncwarp();
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) {
          load_matrices(inputs[g].x[u][half], fragments + half * 64);
          sums.add(inputs[g].x[u][half], u * 2 + half, lane);
        }
        __syncwarp();
      }
      sums.split(inputs[g].input_sums);
    }
  }

  __device__ __forceinline__ void run() {
    const int32_t first_item = static_cast<int32_t>(blockIdx.x);
    Cursor next{groups > 0 ? first_item : p.items, 0, 0, nullptr};
    if (next.item < p.items) aim(next);
    // Weights first: the kernel before may still be writing the tokens.
#pragma unroll 1
    for (int32_t s = 0; s < Layout::stages - 1; ++s) {
      fill(next, s);
      copies_commit();
    }
    if (tile.ends_heads()) tile.aim_heads(first_item, true);
    grid_wait();
    grid_trigger();
    Inputs inputs[kRegisterGroups];
    keep(inputs);

    int32_t stage = 0, free_stage = Layout::stages - 1, buffer = 0;
#pragma unroll 1
    for (int32_t item = first_item; item < p.items; item += p.item_stride) {
      float* const sums = tile.partial_sums + buffer * S::reduction;
#pragma unroll 1
      for (int32_t panel = 0; panel < S::panels; ++panel) {
        float acc[4] = {0, 0, 0, 0};
#pragma unroll
        for (int32_t g = 0; g < kRegisterGroups; ++g) {
          if (g >= groups) break;
          copies_wait<Layout::stages - 2>();
          __syncwarp();
          fill(next, free_stage);
          copies_commit();
          multiply_folded_block<T>(acc, weights_in(stage), inputs[g].x, inputs[g].input_sums, lane);
          free_stage = stage;
          stage = stage + 1 == Layout::stages ? 0 : stage + 1;
        }
        tile.put(acc, panel, sums);
      }
      tile.finish(item, sums);
      if (tile.ends_heads()) tile.aim_heads(item + p.item_stride, false);
      buffer ^= 1;
    }
  }
};

template <int32_t T, class S>
__global__ void __launch_bounds__(S::threads, S::blocks_per_sm) gemv_registers(const __grid_constant__ GemvParams p) {
  uint8_t* const stage_memory = dynamic_memory();
  float* const partial_sums = reinterpret_cast<float*>(stage_memory + GemvRegistersLayout<T, S, kGemvSharedKiB>::partial_sums_at);
  GemvRegistersBlock<T, S> block{p,
                                 {p, partial_sums, static_cast<int32_t>(threadIdx.x) / 32, static_cast<int32_t>(threadIdx.x) % 32},
                                 shared_address(stage_memory),
                                 evict_first_policy()};
  block.run();
}

// panels: 2 for a pair.
template <int32_t T, int32_t panels>
GemvKernel gemv_registers_kernel() {
  using S = GemvShape<panels, 8, Format<T>::f.units, 2>;
  return {reinterpret_cast<const void*>(&gemv_registers<T, S>),
          [](int32_t capability) {
            return gemv_shared_bytes(capability, [](auto room) { return GemvRegistersLayout<T, S, decltype(room)::value>::bytes; });
          },
          S::threads, S::panels, S::tokens};
}

}  // namespace mr::cuda
