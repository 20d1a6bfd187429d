// tall: the decode class by wgmma for many tokens, as data. A tile has twice the rows of one of wide.h, so that the tokens, which every
// tile reads anew, cross the second level cache half as often, and quantised weights are unpacked once for 128 tokens. The same sums in
// the same order, and the same bits.
#pragma once

#include <cstdint>

#include "kernels/linear/decode.h"
#include "kernels/linear/prefill.h"

namespace mr::cuda {

constexpr int32_t kTallCluster = 2;  // blocks that share a tile by columns
constexpr int32_t kTallPanels = 8;   // of a tile: 128 rows

constexpr int32_t kTallTokens = 128;

// One file a type defines it. No function without sm_90a. Float weights of tokens of their own type, and quantised weights of f16
// tokens: those of types that tall_quants names.
PrefillKernel tall_kernel_f16();
PrefillKernel tall_kernel_bf16();
template <int32_t T>
PrefillKernel tall_quants_kernel();

// Whether a quantised type's blocks have no mins, or fold (folded.cuh).
constexpr bool tall_quants(int32_t type) {
  return type == kQ8_0 || type == kQ4_0 || type == kQ5_0 || type == kIQ4_NL || type == kQ4_K || type == kQ5_K || type == kQ6_K;
}

// As prepare_prefill, after it, and launch_prefill. tall_faster: whether it runs on the device for the targets' type, and
// takes less time than launch_wide.
cudaError_t prepare_tall(int32_t device);
bool tall_faster(int32_t device, const ProductArgs& args, int32_t first, int32_t last);
cudaError_t launch_tall(int32_t device, const ProductArgs& args, int32_t first, int32_t last, const Stream& on);

}  // namespace mr::cuda
