// prefill_wgmma: the prefill class's kernels and launches, and what they share with the decode class's wgmma kernels.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemv.h"

namespace mr::cuda {

// WgmmaParams are the kernel parameters of every wgmma GEMM. A cluster of a prefill kernel has row_blocks tiles of rows by
// token_blocks tiles of tokens, one for each block. In the decode class a cluster has one tile, or two (M128Share, m128_wgmma.h).
struct WgmmaParams {
  KernelTarget targets[kGemmTargets];  // panels of a tile are of one target, or half of them of each of a pair
  int32_t count, pair;
  int32_t tokens, units, groups;
  int64_t panel_bytes;
  int32_t tiles;                       // row tiles of all targets
  int32_t row_blocks, token_blocks;    // blocks of a cluster
  int32_t row_clusters, token_tiles;   // clusters along the rows and along the tokens
  int32_t band;                        // row clusters that sweep all tokens together
  int32_t items, item_stride;          // clusters of tiles; clusters that share them
  int32_t whole;                       // items that are whole: those after them have half the tokens each
  int32_t partitions, concurrent;               // K partitions (gemm.h); bool: each runs in a cluster of its own
  int32_t prefetch;                    // units of a cluster's first tile that are prefetched into the L2 cache
  Epilogue epilogue;
  int32_t boxed_out;             // bool: results are stored by TMA
  float x_scale, pair_share;     // sums are multiplied by x_scale, the result of a pair by pair_share
  int32_t gelu;                  // bool: a pair's activation is GELU
  int32_t tokens_early;          // bool: the kernel ahead writes input sums alone, so tokens may be read while it runs
  GemmHeads heads;
  uint32_t* semaphores;               // GemmArgs::semaphores
  uint32_t partition_groups, partition_share;  // twice the groups of 256 columns; 2^31 / partitions, rounded up
};

// A K partition has at most kPartitionUnits units. It is cut at groups of 256 columns, which no group of a weight
// crosses.
constexpr int32_t kGroupUnits = 4, kPartitionUnits = 32 * kGroupUnits;
// If there are several partitions, each has at least this many units: half as many groups, of which the last may be
// short.
constexpr int32_t kLeastPartitionUnits = kPartitionUnits / 2 - kGroupUnits + 1;
constexpr int32_t kSemaphoresABlock = 2;  // a block's tile has at most 128 rows, and one semaphore serves 64

constexpr int32_t kWgmmaThreads = 3 * 128;  // the third warpgroup donates registers and has the producer warp

struct WgmmaKernel {
  const void* function;
  int32_t shared_bytes, threads, tokens;  // tokens of a tile
  int32_t rows = 0;                       // of a tile, if kernels of the family differ in it
  int32_t out_box[2] = {};                // tokens of a TMA box of results, and of a pair's results
};

// PrefillForm is the shape of a tile. Tiles of 64 rows are for prompts too short to give every SM a tile of 128 rows.
struct PrefillForm {
  int32_t rows, tokens;
};
constexpr PrefillForm kPrefillFormList[] = {{64, 64}, {64, 128}, {128, 64}, {128, 128}, {128, 256}};
constexpr int32_t kPrefillForms = sizeof(kPrefillFormList) / sizeof(kPrefillFormList[0]);
constexpr int32_t kWidestForm = kPrefillForms - 1, kHalfForm = kWidestForm - 1;  // kHalfForm has half of the tokens of kWidestForm
constexpr int32_t kOnlyForm = 1;  // of float weights that are rounded to the activation type, which few models have

// PrefillCluster is the shape of a cluster. Blocks side by side along the rows share tokens, blocks along the tokens
// share weights. Each block loads its share of the common data and multicasts it to the others.
struct PrefillCluster {
  int32_t rows, tokens;

  constexpr int32_t blocks() const { return rows * tokens; }
};
constexpr PrefillCluster kPrefillClusters[] = {{2, 1}, {4, 1}, {2, 2}, {4, 2}};  // along the tokens at most two
constexpr int32_t kPrefillMostBlocks = 8;  // of a cluster

struct PrefillShape {
  int32_t form;  // index into kPrefillFormList
  PrefillCluster cluster;
  int32_t partitions = 0;  // 0: as gemm.h defines them. Others are for builds with MR_FREE_SPLITS
};

// A unit's weights are loaded plane by plane, each plane of half a tile's panels by one TMA copy, because the TMA unit
// takes about as long for a small box as for a large one. prefill_plane returns the bytes of plane i of one panel, or
// 0: all that a unit has; or, if units share a group, its quants, high bits and scales, and the group's header with its
// first unit. Units of F32 are too large for a tensor map.
constexpr int32_t kPrefillPlanes = 4;
__host__ __device__ constexpr bool prefill_boxed(const WeightFormat& format) { return format.quants <= 2048; }
__host__ __device__ constexpr int32_t prefill_plane(const WeightFormat& format, int32_t i) {
  if (format.units == 1) return i == 0 ? format.quants + format.high + format.scales : 0;
  return i == 0 ? format.quants : i == 1 ? format.high : i == 2 ? format.scales : format.header;
}

// Instantiated once for each type, see instances/. Null if the type lacks the form, or without machine code for sm_90a.
template <int32_t T>
WgmmaKernel prefill_wgmma_kernel(Act act, int32_t form);

// Shared by all wgmma kernels. wgmma_params fills the parameters of targets [first, last); panels: of a tile, of a pair
// half of them of each. map_tokens encodes a CUtensorMap of the tokens as (tokens, cols), with boxes of one unit's 64
// columns and rows_a_box tokens; elements outside are zeros.
WgmmaParams wgmma_params(const GemmArgs& args, int32_t first, int32_t last, int32_t panels);
cudaError_t map_tokens(const GemmArgs& args, int32_t rows_a_box, void* map);
// Encodes the map of the workspace of input_sums.h, with boxes of one group's sums and rows_a_box tokens.
cudaError_t map_input_sums(const void* input_sums, int32_t groups, int32_t tokens, int32_t rows_a_box, void* map);
// Encodes the map of a target's panels in elements of 8 bytes, with boxes of `bytes` bytes of panels_a_box panels.
cudaError_t map_panels(const KernelTarget& target, int64_t panel_bytes, void* map, int32_t panels_a_box = 4, int32_t bytes = 2048);

// prepare: as prepare_gemms, for the current device. wgmma_available: whether prepare found wgmma on the device.
cudaError_t prepare_prefill_wgmma(int32_t device, int32_t sms);
bool wgmma_available(int32_t device);
// As in gemm.h.
int32_t prefill_grain(int32_t device, int64_t rows);
// For targets [first, last) of one type and tokens > 0: the expected time of a shape in picoseconds, INT64_MAX if the type
// has no such form or the device cannot hold such a cluster; and the shape with the least expected time.
int64_t prefill_wgmma_time(const PrefillShape& shape, int32_t device, const GemmArgs& args, int32_t first, int32_t last);
PrefillShape fastest_prefill_wgmma(int32_t device, const GemmArgs& args, int32_t first, int32_t last);
// Launches with the fastest shape, or with any shape that has an expected time. All give the same bits.
cudaError_t launch_prefill_wgmma(int32_t device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on);
cudaError_t launch_prefill_wgmma_as(const PrefillShape& shape, int32_t device, const GemmArgs& args, int32_t first, int32_t last,
                              const Stream& on);

}  // namespace mr::cuda
