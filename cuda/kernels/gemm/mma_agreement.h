// mma_agreement: checks that mma and wgmma give the same sums on a GPU of compute capability 9.0.
//
// The decode class and prompts of experts rely on it: few tokens are multiplied by mma.m16n8k16 and many by wgmma, and a row's bits must
// not depend on which. NVIDIA specifies neither the rounding nor the order of addition, so each GPU is tested when it is
// opened.
#pragma once

#include <cuda_runtime.h>

namespace mr::cuda {

// Compares sums of f16 and of bf16 products by m16n8k16 and by wgmma m64n8k16, for numbers of one magnitude and of
// many, bit for bit, on the current device. It waits for the stream; it takes less than a millisecond once the code is
// loaded. *alike is true too if the build has no wgmma for the device. If `spoilt`, one operand of wgmma differs and
// the check must fail.
cudaError_t mma_and_wgmma_agree(cudaStream_t stream, bool spoilt, bool* alike);

}  // namespace mr::cuda
