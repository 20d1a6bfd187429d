// kept_kernel: the decode class's products of up to eight tokens whose inputs fit a block's registers, by weights whose blocks
// of 256 fold (folded.cuh): columns of at most kKeptGroups groups a segment.
//
// As decode_kernel.cuh, and the same bits; but a warp loads its segment of the tokens once, as the fragments that it
// multiplies, with the terms of their sums, instead of once a tile: eight tokens are more bytes than a panel of weights. Its
// ring holds weights alone, a group of one panel a stage. Of a pair it takes the gate's panel of a tile and then the up's.
#pragma once

#include "kernels/instructions.cuh"
#include "kernels/launch.h"
#include "kernels/linear/decode_tile.cuh"
#include "kernels/linear/folded.cuh"
#include "kernels/linear/targets.cuh"

namespace mr::cuda {

template <int32_t T, class S, int32_t room>
struct KeptLayout {
  static constexpr int32_t warp_stage = Format<T>::group_bytes, stage = S::warps * warp_stage;
  static constexpr int32_t fitting_stages(int32_t blocks) {
    const int32_t left = room * 1024 / blocks - 1024 - 2 * S::join * 4;
    return left / stage < 6 ? left / stage : 6;
  }
  static constexpr int32_t many = fitting_stages(S::blocks_per_sm), stages = many >= 2 ? many : fitting_stages(1);
  static constexpr int32_t joins_at = stages * stage, bytes = joins_at + 2 * S::join * 4;
  // Where a unit's inputs become fragments: eight rows of 128 bytes, 16 further apart so that ldmatrix meets every bank once.
  static constexpr int32_t row = kUnitCols * 2 + 16;
  static_assert(room == 0 || (stages >= 2 && S::tokens * row <= warp_stage));
};

template <int32_t T, class S>
struct KeptBlock : DecodeTile<__half, S> {
  using Tile = DecodeTile<__half, S>;
  using Layout = KeptLayout<T, S, kDecodeRoom>;
  using Tile::finish, Tile::joins, Tile::lane, Tile::p, Tile::put, Tile::warp;
  static constexpr int32_t units = Format<T>::f.units, group_bytes = Format<T>::group_bytes;

  uint32_t shared;      // the rings' address
  int32_t first_group;  // of this warp's segment
  int32_t groups;       // <= kKeptGroups
  uint64_t policy;

  // A group of eight tokens.
  struct Inputs {
    uint32_t x[units][2][4];  // as load_matrices gives each 32 of a unit
    uint32_t terms[3];        // of their sums
  };

  // A place in the sequence of groups that a warp takes, panel after panel and tile after tile.
  struct Cursor {
    int32_t item, panel, group;
    const uint8_t* from;  // this lane's first 16 bytes of the group
  };

  __device__ __forceinline__ void aim(Cursor& at) const {
    int32_t panel = at.item;
    const DecodeTarget& target = S::panels == 2 ? p.targets[at.panel] : target_of(p, at.item, panel);
    at.from = target.data + panel * p.panel_bytes + first_group * group_bytes + lane * 16;
  }

  __device__ __forceinline__ uint32_t weights_in(int32_t stage) const {
    return shared + stage * Layout::stage + warp * Layout::warp_stage;
  }

  // Asks for the group of a place, if there is one, and goes on to the next.
  __device__ __forceinline__ void fill(Cursor& at, int32_t stage) const {
    if (at.item >= p.items) return;
    const uint32_t to = weights_in(stage) + lane * 16;
#pragma unroll
    for (int32_t c = 0; c < group_bytes; c += 512) {
      if (c + 512 <= group_bytes || lane * 16 < group_bytes - c) copy16(to + c, at.from + c, policy);
    }
    at.from += group_bytes;
    if (++at.group < groups) return;
    at.group = 0;
    if (++at.panel == S::panels) {
      at.panel = 0;
      at.item += p.item_stride;
    }
    if (at.item < p.items) aim(at);
  }

  // Loads the segment's inputs, through the stage that is not filled yet. Rows beyond the last token are zeros.
  __device__ __forceinline__ void keep(Inputs (&inputs)[kKeptGroups]) const {
    const int32_t row = lane / 8, piece = lane % 8 * 16;
    const uint8_t* const from = static_cast<const uint8_t*>(p.x) + first_group * (units * kUnitCols * 2) + piece;
    uint4 pieces[kKeptGroups][units][2];
#pragma unroll
    for (int32_t g = 0; g < kKeptGroups; ++g) {
#pragma unroll
      for (int32_t i = 0; i < units * 2; ++i) {
        const int32_t token = row + i % 2 * 4;
        const uint8_t* const at = from + token * p.x_stride * 2 + (g * units + i / 2) * (kUnitCols * 2);
        pieces[g][i / 2][i % 2] = g < groups && token < p.tokens ? __ldcg(reinterpret_cast<const uint4*>(at)) : make_uint4(0, 0, 0, 0);
      }
    }
    const uint32_t place = weights_in(Layout::stages - 1), to = place + row * Layout::row + piece;
    const uint32_t fragments = place + (lane & 7) * Layout::row + (lane >> 3) * 16;
#pragma unroll
    for (int32_t g = 0; g < kKeptGroups; ++g) {
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
      sums.split(inputs[g].terms);
    }
  }

  // Adds the products of a group.
  __device__ __forceinline__ void multiply(float (&acc)[4], const Inputs& inputs, uint32_t weights) const {
    FoldedHeader header;
    header.load(weights + Format<T>::header_plane, lane);
    float products[4] = {0, 0, 0, 0};
    multiply_unit<0>(products, header, inputs, weights);
    multiply_unit<1>(products, header, inputs, weights);
    multiply_unit<2>(products, header, inputs, weights);
    multiply_unit<3>(products, header, inputs, weights);
    header.add_with_mins(acc, products, inputs.terms);
  }

  template <int32_t u>
  __device__ __forceinline__ void multiply_unit(float (&products)[4], const FoldedHeader& header, const Inputs& inputs,
                                                uint32_t weights) const {
    UnitQuants<T, __half, 1> quants;
    quants.begin(weights + Format<T>::quants_at(u), weights + Format<T>::high_at(u), lane);
    uint32_t a[4][4];
    folded_unit<T, u>(header, quants, false, a);
#pragma unroll
    for (int32_t step = 0; step < 4; ++step) {
      const uint32_t* const x = &inputs.x[u][step / 2][step % 2 * 2];
      mma16816<__half>(products, a[step], x[0], x[1]);
    }
  }

  __device__ __forceinline__ void run() {
    first_group = p.groups * warp / kSegments;
    groups = p.groups * (warp + 1) / kSegments - first_group;
    const int32_t first_item = static_cast<int32_t>(blockIdx.x);
    Cursor next{groups > 0 ? first_item : p.items, 0, 0, nullptr};
    if (next.item < p.items) aim(next);
    // Weights first, while the kernel before may still be writing the tokens.
#pragma unroll 1
    for (int32_t s = 0; s < Layout::stages - 1; ++s) {
      fill(next, s);
      copies_commit();
    }
    if (this->ends_heads()) this->aim_heads(first_item, true);
    grid_wait();
    grid_trigger();
    Inputs inputs[kKeptGroups];
    keep(inputs);

    int32_t stage = 0, free_stage = Layout::stages - 1, buffer = 0;
#pragma unroll 1
    for (int32_t item = first_item; item < p.items; item += p.item_stride) {
      float* const sums = joins + buffer * S::join;
#pragma unroll 1
      for (int32_t panel = 0; panel < S::panels; ++panel) {
        float acc[4] = {0, 0, 0, 0};
#pragma unroll
        for (int32_t g = 0; g < kKeptGroups; ++g) {
          if (g >= groups) break;
          copies_wait<Layout::stages - 2>();
          __syncwarp();
          fill(next, free_stage);
          copies_commit();
          multiply(acc, inputs[g], weights_in(stage));
          free_stage = stage;
          stage = stage + 1 == Layout::stages ? 0 : stage + 1;
        }
        put(acc, panel, sums);
      }
      finish(item, sums);
      if (this->ends_heads()) this->aim_heads(item + p.item_stride, false);
      buffer ^= 1;
    }
  }
};

template <int32_t T, class S>
__global__ void __launch_bounds__(S::threads, S::blocks_per_sm) kept_product(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(128) uint8_t ring[];
  KeptBlock<T, S> block{{p}};
  block.shared = shared_address(ring);
  block.joins = reinterpret_cast<float*>(ring + KeptLayout<T, S, kDecodeRoom>::joins_at);
  block.warp = static_cast<int32_t>(threadIdx.x) / 32;
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  block.policy = evict_first_policy();
  block.run();
}

// panels: two for a pair.
template <int32_t T, int32_t panels>
DecodeKernel kept_kernel() {
  using S = DecodeShape<panels, 8, Format<T>::f.units, 2>;
  return {reinterpret_cast<const void*>(&kept_product<T, S>),
          [](int32_t capability) {
            return decode_bytes(capability, [](auto room) { return KeptLayout<T, S, decltype(room)::value>::bytes; });
          },
          S::threads, S::panels, S::tokens};
}

}  // namespace mr::cuda
