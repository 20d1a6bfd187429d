// experts: grouped GEMMs, which multiply each pair of a row and one of its experts (plan.h) with that expert's matrices.
//
//   file             class     tile (rows x pairs)   how
//   few_rows.cuh     decode    16 x 1, 16 x 8        mma, cp.async; each warp streams a slice of K, as gemv_async.cuh
//   many_rows.cuh    prefill   256 x 64              mma, cp.async; warps share a tile's pairs
//
// An expert's matrices are one stack: they follow one another (matrix_of of weight.h). A pair's bits depend on its row of x
// and on the class alone: decode pairs have the sums of GEMMs of class kDecode, and prefill pairs one ascending sum of
// weights that are rounded once to the type of x. Which pairs share a tile changes nothing, because the columns of a matrix
// product do not meet. If the device cannot run a type's kernel of many rows, prefill pairs have the sums of decode.
#pragma once

#include <cstdint>

#include "kernels/experts/plan.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/weight.h"
#include "kernels/launch.h"
#include "kernels/types.h"

namespace mr::cuda {

struct ExpertTarget {
  PackedWeight weight;          // of expert 0
  const float* bias = nullptr;  // (experts, rows), or null
};

struct ExpertGemmArgs {
  // One target: out = x_scale * y + bias, f32. Two of one type and shape, gate and up:
  // out = activation(gate + bias) * (up + bias) / pair_scale, in the type act (gated_product of experts/gated.cuh).
  ExpertTarget targets[2];
  int32_t count = 1;
  GemmClass kind = GemmClass::kDecode;
  Act act = Act::kF16;
  const void* x = nullptr;  // of type act, 16-byte aligned; pair p reads row p / x_share
  int64_t x_stride = 0;     // elements, a multiple of 8
  int32_t x_share = 1;
  void* out = nullptr;      // row p of pair p, at an even address of 4 bytes
  int64_t out_stride = 0;   // elements, even
  ExpertPlan plan;          // of tiles of expert_tile(kind) pairs
  int32_t rows = 0, experts = 0, pairs = 0;  // of the plan
  float x_scale = 1, pair_scale = 1;
  int32_t activation = 0;   // MR_ACT_*
};

// Pairs of a tile.
constexpr int32_t expert_tile(GemmClass kind) { return kind == GemmClass::kDecode ? 8 : 64; }

// Raises the kernels' shared memory limits and measures how many tiles the device holds. Must be called once for each
// device, with the device current, before its first grouped GEMM and outside of stream capture.
cudaError_t prepare_expert_gemms();

cudaError_t launch_expert_gemm(const ExpertGemmArgs& args, const Stream& on);

}  // namespace mr::cuda
