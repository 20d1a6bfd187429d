// m128_wgmma: the decode class by wgmma for many tokens. A tile has 128 rows, twice those of skinny_wgmma.h. Every tile
// reads the tokens again, so they cross the L2 cache half as often, and quantised weights are unpacked once for 128
// tokens. The order of the sums, and so the bits, are those of the class.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemv.h"
#include "kernels/gemm/prefill_wgmma.h"

namespace mr::cuda {

constexpr int32_t kM128Cluster = 2;  // blocks that share a tile along K
constexpr int32_t kM128Panels = 8;   // of a tile: 128 rows

constexpr int32_t kM128Tokens = 128;

// Kernels by type, each defined in a file of its own; null without sm_90a. Float weights multiply tokens of their own
// type, quantised weights f16 tokens.
WgmmaKernel m128_wgmma_kernel_f16();
WgmmaKernel m128_wgmma_kernel_bf16();
template <int32_t T>
WgmmaKernel m128_wgmma_quant_kernel();

// prepare and launch as in prefill_wgmma.h; prepare must come after prepare_prefill_wgmma. m128_wgmma_faster returns
// whether the kernel runs on the device for the targets' type and is expected to take less time than
// launch_skinny_wgmma.
cudaError_t prepare_m128_wgmma(int32_t device);
bool m128_wgmma_faster(int32_t device, const GemmArgs& args, int32_t first, int32_t last);
cudaError_t launch_m128_wgmma(int32_t device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on);

}  // namespace mr::cuda
