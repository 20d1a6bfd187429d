// experts: grouped GEMMs, which multiply each pair of a row and one of its experts (plan.h) with that expert's matrices.
//
//   file                    class     tile (rows x pairs)   how
//   one_row.cuh             decode    16 x 1                mma, cp.async; a single row, all of whose loads are in flight at once
//   few_rows.cuh            decode    32 x 8                mma, cp.async; each warp streams a slice of K, as in gemv_async.cuh
//   eight_rows.cuh          decode    16 x 8                mma, cp.async; gate and up of at most eight rows, which stay in registers
//   eight_pairs.cuh         decode    16 x 8                mma, cp.async; one target, tiles of at most eight pairs; a warp has all of K
//   several_rows.cuh        decode    256 x 16              mma, cp.async; warps share a tile's pairs, and each has all of K
//   several_rows_wgmma.cuh  decode    192 x 64              wgmma, bulk copies, cp.async; on compute capability 9.0
//   many_rows.cuh           prefill   256 x 64              mma, cp.async; warps share a tile's pairs
//   many_rows_wgmma.cuh     prefill   256 x 128             wgmma, bulk copies, cp.async; on compute capability 9.0
//
// An expert's matrices are one stack: they follow one another (matrix_of of weight.h). A pair's bits depend on its row of x
// and on the class alone. Decode pairs have the eight slices of K of GEMMs of class kDecode (gemm.h), which are added in
// ascending order and not as a tree: a warp that has several slices then keeps one sum of those before. Prefill pairs have one
// ascending sum of weights that are rounded once to the type of x. Which pairs share a tile changes nothing, because the columns
// of a matrix product do not meet. If the device cannot run a type's kernel of many rows, prefill pairs have the sums of decode.
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
  ExpertPlan plan;
  int32_t tile = 0;         // pairs of a tile of the plan: a multiple of 8 up to kManyWgmmaTile, as expert_tile returns it
  int32_t rows = 0, experts = 0, pairs = 0;  // of the plan
  float x_scale = 1, pair_scale = 1;
  int32_t activation = 0;   // MR_ACT_*
  // Of two targets: at least one kernel that is not short (launch.h) lies between the GEMM and the kernels that wrote x and the plan. The
  // GEMM of a single row then requests its operands while its predecessor runs.
  bool ahead = false;
};

// Pairs of a tile of the decode class, which its kernels by mma multiply together.
constexpr int32_t kLeastExpertTile = 8, kMostExpertTile = 16;

// Pairs of a tile of the decode class by wgmma, and the least pairs of an expert, on average, for tiles of that size.
constexpr int32_t kDecodeWgmmaTile = 64, kLeastDecodeWgmmaPairs = 2;

// Pairs of a tile of the prefill class, by mma and by wgmma. Unpacking of weights bounds tiles of few pairs. many_rows.cuh has twice as
// many warps that unpack, so tiles are those of wgmma only if an expert has kLeastWgmmaPairs on average.
constexpr int32_t kManyTile = 64, kManyWgmmaTile = 128, kLeastWgmmaPairs = 48;

// Returns the pairs of a tile of the plan on the current device, which must have been prepared. Tiles of the decode class depend on the
// pairs of an expert, on average: from one pair on they are those of several_rows.cuh, and from kLeastDecodeWgmmaPairs on those of wgmma,
// if the device has it. few_rows.cuh divides them for types without a kernel by wgmma. A build for 9.0 alone leaves several_rows.cuh out,
// and its kernel by wgmma takes those tiles too. Up to eight rows eight_rows.cuh and eight_pairs.cuh multiply tiles of any size, because an
// expert then has at most eight pairs.
int32_t expert_tile(GemmClass kind, int32_t experts, int32_t pairs);

// Raises the kernels' shared memory limits and measures how many tiles the device holds. Must be called once for each
// device, with the device current, before its first grouped GEMM and outside of stream capture.
cudaError_t prepare_expert_gemms();

cudaError_t launch_expert_gemm(const ExpertGemmArgs& args, const Stream& on);

// RowBranch is the branch of a single row: sum over its experts, by ascending id, of weight * (y + bias), plus the shared expert's y times
// its weight, as launch_combine computes it (combine.h) where the branch has no norm. The kernel reads the plan before its dependency wait,
// and with a shared expert the inputs of down too: at least one kernel that is not short (launch.h) lies between it and the kernels that
// wrote these, such as gate and up, and the GEMM that computes y.
struct RowBranch {
  const float* weights = nullptr;  // (pairs)
  const float* bias = nullptr;     // (experts, rows of the weight), or null
  float* x = nullptr;              // (rows of the weight): the residual stream
  float* branch = nullptr;         // the same, or null: the sum is added to x
  const float* shared = nullptr;   // (rows of the weight): y of the shared expert, or null
  const float* shared_weight = nullptr;  // (1), or null: its weight is 1
};

// Returns whether launch_expert_branch can run: one row, one target, and inputs that fit into shared memory.
bool expert_branch_supported(const ExpertGemmArgs& args);

// Multiplies as launch_expert_gemm with one target does, and adds the products up at once: args.out is not used. A padding row is left
// as it is. The bits are those of launch_expert_gemm and launch_combine.
cudaError_t launch_expert_branch(const ExpertGemmArgs& args, const RowBranch& branch, const Stream& on);

}  // namespace mr::cuda
