// The m128 wgmma GEMM kernels of F16 and BF16 weights.
#include "kernels/gemm/m128_wgmma_kernel.cuh"

namespace mr::cuda {

WgmmaKernel m128_wgmma_kernel_f16() { return m128_wgmma_kernel_for<__half>(); }
WgmmaKernel m128_wgmma_kernel_bf16() { return m128_wgmma_kernel_for<__nv_bfloat16>(); }

}  // namespace mr::cuda
