// grouped: the parameters of the grouped GEMM kernels, and the table from which experts.cu chooses.
#pragma once

#include <algorithm>

#include "kernels/experts/experts.h"
#include "kernels/gemm/gemv.h"
#include "kernels/gemm/input_sums.h"

namespace mr::cuda {

struct GroupedParams {
  GemvParams gemm;  // its targets, tokens, cols, groups, panel_bytes, x, x_stride, x_scale and pair_share
  int64_t matrix_bytes;  // of an expert's matrix
  ExpertPlan plan;
  int32_t parts;         // of a tile: the kernels by mma divide larger tiles than their own
  int32_t x_share, activation;
  bool ahead;            // of kOneGated: see ExpertGemmArgs
};

// GroupedForm is a kernel. kEight has two targets, gate and up, and kEightPairs one; all others but the last two have one or two. kFewOne
// is few_rows.cuh with tiles of one pair, for devices with little shared memory.
enum class GroupedForm : int32_t {
  kFew = 0, kFewOne, kEight, kEightPairs, kSeveral, kSeveralWgmma, kMany, kManyWgmma, kOneGated, kOneBranch
};
constexpr int32_t kGroupedForms = 10;

// Returns whether a tile of the decode class prefers few_rows.cuh to several_rows.cuh. One target of few columns has slices of
// unlike length, and warps that have all of K do not wait for the longest.
inline bool prefers_few(const ExpertGemmArgs& args) { return args.rows == 1 || (args.count == 2 && args.tile <= kLeastExpertTile); }

inline int32_t panels_of(const ExpertGemmArgs& args) {
  return static_cast<int32_t>((args.targets[0].weight.rows + kPanelRows - 1) / kPanelRows);
}

// Rows of x, and units of a slice, that a warp of eight_rows.cuh keeps in registers.
constexpr int32_t kEightRows = 8, kEightUnits = 8;

// Returns whether eight_rows.cuh can multiply a launch: gate and up of few rows, whose slices have few columns. A row uses an expert once,
// so an expert has at most one pair of each row.
inline bool eight_rows_suffice(const ExpertGemmArgs& args) {
  const PackedWeight& weight = args.targets[0].weight;
  const WeightFormat& format = kWeightFormats[weight_format_index(weight.type)];
  const int64_t slice_cols = int64_t{kUnitCols} * format.units * kSlices, most = kEightUnits / format.units;
  return args.count == 2 && args.rows <= kEightRows && int64_t{args.pairs} <= int64_t{kEightRows} * args.x_share &&
         (weight.cols + slice_cols - 1) / slice_cols <= most;
}

// Returns whether a launch that eight_rows.cuh can multiply prefers it to few_rows.cuh. Its blocks load all rows before the first item. On
// an H200, Q4_K of Qwen3-30B takes 19.7 us and not 15.2 with two rows, and 32.6 and not 42.4 with eight. Three to seven were not measured.
inline bool prefers_eight_rows(const ExpertGemmArgs& args) { return args.rows > 4; }

// Bytes of shared memory for rows of x and their sums in eight_pairs.cuh: eight rows of 2 880 columns, of 2 560 with input sums.
constexpr int32_t kEightPairsRoom = 46208;

// Returns whether eight_pairs.cuh can multiply a launch: one target of few columns, by tiles of at most eight pairs.
inline bool eight_pairs_suffice(const ExpertGemmArgs& args) {
  const PackedWeight& weight = args.targets[0].weight;
  const WeightFormat& format = kWeightFormats[weight_format_index(weight.type)];
  const int64_t group_cols = kUnitCols * format.units, groups = (weight.cols + group_cols - 1) / group_cols;
  const int64_t sums = format.header == 256 ? kInputSumBytes : 0;  // of types that fold
  return args.count == 1 && (args.rows <= 8 || args.tile <= 8) && 8 * (groups * (group_cols * 2 + sums) + 16) <= kEightPairsRoom;
}

// Returns whether a launch that eight_pairs.cuh can multiply prefers it: by experts with few pairs. Matrices of heads have all rows.
inline bool prefers_eight_pairs(const ExpertGemmArgs& args) {
  return args.rows > 1 && args.pairs < kLeastDecodeWgmmaPairs * args.experts;
}

// Returns whether a kernel of any number of rows can multiply a launch. few_rows.cuh divides larger tiles than its own.
inline bool form_suffices(GroupedForm form, const ExpertGemmArgs& args, const GemvKernel& kernel) {
  if (form == GroupedForm::kEight) return eight_rows_suffice(args);
  if (form == GroupedForm::kEightPairs) return eight_pairs_suffice(args);
  return form == GroupedForm::kFew || form == GroupedForm::kFewOne || args.tile <= kernel.tokens;
}

inline GroupedParams grouped_params(const ExpertGemmArgs& args) {
  const PackedWeight& weight = args.targets[0].weight;
  const WeightFormat& format = kWeightFormats[weight_format_index(weight.type)];
  const int64_t group_cols = kUnitCols * format.units;
  GroupedParams p{};
  for (int32_t i = 0; i < args.count; ++i) {
    const ExpertTarget& t = args.targets[i];
    p.gemm.targets[i] = {t.weight.data, t.bias, args.out, args.out_stride, static_cast<int32_t>(weight.rows), panels_of(args), 0};
  }
  p.gemm.pair = args.count == 2 ? 1 : 0;
  p.gemm.x = args.x;
  p.gemm.x_stride = args.x_stride;
  p.gemm.tokens = (args.pairs + args.x_share - 1) / args.x_share;
  p.gemm.cols = static_cast<int32_t>(weight.cols);
  p.gemm.groups = static_cast<int32_t>((weight.cols + group_cols - 1) / group_cols);
  p.gemm.panel_bytes = int64_t{p.gemm.groups} * format.group_bytes();
  p.gemm.x_scale = args.x_scale;
  p.gemm.pair_share = 1 / args.pair_scale;
  p.matrix_bytes = panels_of(args) * p.gemm.panel_bytes;
  p.plan = args.plan;
  p.parts = 1;
  p.x_share = args.x_share;
  p.activation = args.activation;
  p.ahead = args.ahead;
  return p;
}

inline int32_t tiles_of(const ExpertGemmArgs& args) { return expert_tiles(args.experts, args.pairs, args.tile); }

// Most items of a kernel whose blocks take them by turns; and a block of many_rows for each part of a tile and each of its panels.
inline int64_t decode_items(const ExpertGemmArgs& args, int32_t parts, int32_t panels_an_item) {
  return int64_t{tiles_of(args)} * parts * ((panels_of(args) + panels_an_item - 1) / panels_an_item);
}

// Bytes of shared memory of an expert's sums and outputs in one_row_branch.
constexpr int32_t kBranchSums = (kSlices + 1) * kPanelRows * static_cast<int32_t>(sizeof(float));

// Bytes of shared memory that the kernels of a single row need after their stages: the rows of x, and the sums of one_row_branch.
inline int32_t one_row_bytes(const ExpertGemmArgs& args) {
  const WeightFormat& format = kWeightFormats[weight_format_index(args.targets[0].weight.type)];
  const int64_t group_cols = kUnitCols * format.units, cols = (args.targets[0].weight.cols + group_cols - 1) / group_cols * group_cols;
  return static_cast<int32_t>(std::min<int64_t>(args.count == 2 ? cols * 2 : args.pairs * (cols * 2 + kBranchSums), INT32_MAX / 2));
}
// Most experts of a row. Each has a lane in kOneGated, and 16 of 256 threads in kOneBranch; a row with more runs kernels of any number of
// rows.
constexpr int32_t kMostGatedExperts = 32, kMostBranchExperts = 16;

inline int32_t many_rows_parts(const ExpertGemmArgs& args) { return (args.tile + kManyTile - 1) / kManyTile; }
inline dim3 many_rows_grid(const ExpertGemmArgs& args, int32_t panels_a_block) {
  return dim3(static_cast<unsigned>((panels_of(args) + panels_a_block - 1) / panels_a_block),
              static_cast<unsigned>(tiles_of(args) * many_rows_parts(args)));
}

// Launches as launch_expert_gemm does, with a kernel of any number of rows: for tests and benchmarks. Returns cudaErrorNotSupported if
// the device does not have it for the type, or if form_suffices returns false.
cudaError_t launch_expert_gemm_as(GroupedForm form, const ExpertGemmArgs& args, const Stream& on);

// Instantiated once for each type, see instances/. A kernel's panels are those of an item, half of them of each target of a pair. If a type
// does not have a kernel, its function is null.
template <int32_t T>
GemvKernel few_rows_kernel(Act act, GroupedForm form);
template <int32_t T>
GemvKernel eight_rows_kernel(Act act);
template <int32_t T>
GemvKernel eight_pairs_kernel(Act act);
template <int32_t T>
GemvKernel one_row_kernel(Act act, GroupedForm form);
template <int32_t T>
GemvKernel several_rows_kernel(Act act);
template <int32_t T>
GemvKernel several_rows_wgmma_kernel(Act act);
template <int32_t T>
GemvKernel many_rows_kernel(Act act);
template <int32_t T>
GemvKernel many_rows_wgmma_kernel(Act act);

}  // namespace mr::cuda
