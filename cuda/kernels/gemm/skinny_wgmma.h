// skinny_wgmma: the decode class by wgmma for more than a few tokens. It has the sums, the order and so the bits of
// gemv_async.cuh, because mma.m16n8k16 and wgmma add sixteen products alike (mma_agreement.h).
#pragma once

#include <cstdint>

#include "kernels/gemm/gemv.h"
#include "kernels/gemm/prefill_wgmma.h"

namespace mr::cuda {

constexpr int32_t kSkinnyCluster = 2;  // blocks that share a tile along K
constexpr int32_t kSkinnyPanels = 4;   // of a tile: 64 rows
constexpr int32_t kSkinnyMaxTokens = 128;   // of a tile
constexpr int32_t kMostUnsummed = 64;  // tokens of a GEMM; above, types that fold read their sums of inputs if there is a workspace
constexpr bool reads_input_sums(int32_t type) { return type == kQ4_K || type == kQ5_K; }

// Forms are tiles of 8, 16, 32 and 64 tokens; only types whose up to eight tokens other kernels do not multiply have the
// first (few() of gemm.cu). kSkinnySingle has 128 tokens of one float type, for clusters that take a
// single tile. kSkinnyWithSums has 64 tokens whose input sums are precomputed for all tiles (input_sums.h), for types
// that fold.
constexpr int32_t kSkinnyForms = 6, kSkinnySixtyFour = 3, kSkinnySingle = 4, kSkinnyWithSums = 5;

// Blocks that an SM holds at once. Tiles of more than 16 tokens, and the fragments of types that fold, need the
// registers.
constexpr int32_t skinny_blocks(int32_t tokens, bool folds) { return tokens <= 16 && !folds ? 2 : 1; }

// GEMMs of 17 to 64 tokens have the epilogue kHeads, in the kernels that serve them: tiles of 32 and 64 tokens. With fewer
// tokens 8B in BF16 made 6 % fewer tokens a second at batch 8: the kernel that it replaces is short, and the next GEMM may
// load its weights meanwhile. With more there was no gain.
constexpr bool skinny_ends_heads(int32_t tokens) { return tokens > 16 && tokens <= kMostUnsummed; }
template <int32_t tile_tokens, bool with_sums>
constexpr bool kSkinnyEndsHeads = (tile_tokens == 32 || tile_tokens == 64) && !with_sums;

// Instantiated once for each type, see instances/. Null if weights or tokens need several terms, or without sm_90a.
template <int32_t T>
WgmmaKernel skinny_wgmma_kernel(Act act, int32_t form);

// prepare and launch as in prefill_wgmma.h; prepare must come after prepare_prefill_wgmma. skinny_wgmma_available
// returns whether the kernel runs on the device for a type. skinny_wgmma_time estimates a launch of more than 64 tokens as
// the rounds of tiles times round_times.h; INT64_MAX if no kernel runs.
cudaError_t prepare_skinny_wgmma(int32_t device);
bool skinny_wgmma_available(int32_t device, int32_t type, Act act);
int64_t skinny_wgmma_time(int32_t device, const GemmArgs& args, int32_t first, int32_t last);
cudaError_t launch_skinny_wgmma(int32_t device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on);
// Launches with a form: cudaErrorNotSupported if the type has not that form, or it needs input sums that are missing.
cudaError_t launch_skinny_wgmma_as(int32_t form, int32_t device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on);
// Returns how many clusters of a form the device holds at once; 0 if it does not run there.
int32_t skinny_wgmma_clusters(int32_t device, int32_t type, Act act, int32_t form);

}  // namespace mr::cuda
