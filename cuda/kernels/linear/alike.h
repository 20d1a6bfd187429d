// alike: whether the two kinds of matrix products of a GPU of compute capability 9.0 add alike. The decode class counts on it: few tokens
// are multiplied by mma.m16n8k16, many by wgmma (wide.h, tall.h), and a row's bits may not depend on which. What either rounds,
// and in what order it adds, is specified nowhere; so each GPU is asked when it is opened.
#pragma once

#include <cuda_runtime.h>

namespace mr::cuda {

// Compares sums of f16 and of bf16 products by m16n8k16 and m64n8k16, the narrowest of either, of numbers of one size and of many, bit
// for bit, on the current device and a stream of it that it waits for; less than a millisecond once the code is loaded. *alike: true also where the build has no wgmma for the
// device. `spoilt`: wgmma is given one other number, which must be found out.
cudaError_t products_add_alike(cudaStream_t stream, bool spoilt, bool* alike);

}  // namespace mr::cuda
