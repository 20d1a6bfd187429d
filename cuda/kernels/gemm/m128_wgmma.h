// m128_wgmma: the decode class by wgmma for many tokens. A tile has 128 rows, twice those of skinny_wgmma.h. Every tile
// reads the tokens again, so they cross the L2 cache half as often, and quantised weights are unpacked once for 128
// tokens. The order of the sums, and so the bits, are those of the class.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemv.h"
#include "kernels/gemm/prefill_wgmma.h"

namespace mr::cuda {

constexpr int32_t kM128Cluster = 2;  // blocks
constexpr int32_t kM128Panels = 8;   // of a tile: 128 rows

constexpr int32_t kM128Tokens = 128;

// What the blocks of a cluster share: a tile, of which each has half of K; or the tokens of two tiles of neighbouring rows, of
// which each has the whole of K. Then tokens cross the L2 cache half as often and no block waits for the other's sums, but
// twice as many tiles must be in progress to occupy the device.
enum class M128Share : int32_t { kK = 0, kTokens = 1 };
constexpr int32_t kM128Shares = 2;

// Instantiated once for each type, see instances/; null without sm_90a. Float weights multiply tokens of their own type, quantised
// weights f16 tokens. kTokens is for weights that are rounded: those that fold have too many sums for it, and float weights were
// slower (README.md).
template <int32_t T>
WgmmaKernel m128_wgmma_kernel(Act act, M128Share share);

// prepare and launch as in prefill_wgmma.h; prepare must come after prepare_prefill_wgmma. m128_wgmma_time estimates a launch
// with the faster way to share, as skinny_wgmma_time does. m128_wgmma_faster returns whether the kernel runs on the device for
// the targets' type and is expected to take less time than launch_skinny_wgmma.
cudaError_t prepare_m128_wgmma(int32_t device);
int64_t m128_wgmma_time(int32_t device, const GemmArgs& args, int32_t first, int32_t last);
bool m128_wgmma_faster(int32_t device, const GemmArgs& args, int32_t first, int32_t last);
cudaError_t launch_m128_wgmma(int32_t device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on);
// Returns how many clusters the device holds at once; 0 if the kernel does not run there.
int32_t m128_wgmma_clusters(M128Share share, int32_t device, int32_t type, Act act);
// Launches with the faster way to share, or with any that the type has: cudaErrorNotSupported if it has not.
cudaError_t launch_m128_wgmma_as(M128Share share, int32_t device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on);

}  // namespace mr::cuda
