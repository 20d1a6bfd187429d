// measure_kernels: loads of one kind each, that keep the whole GPU busy.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace mr::cuda {

// Reads `bytes` (a multiple of 1 MiB) once. sink (1 word) receives a fold of all of it, so that no read is left out.
cudaError_t launch_read_stream(const void* data, uint64_t bytes, int sm_count, uint32_t* sink, cudaStream_t stream);

// Each runs `rounds` rounds in registers and returns the number of operations; a multiply-add counts as two.
cudaError_t launch_f32_rounds(int64_t rounds, int sm_count, float* sink, double* operations, cudaStream_t stream);
cudaError_t launch_int8_rounds(int64_t rounds, int sm_count, int32_t* sink, double* operations, cudaStream_t stream);
// Tensor-core products of bf16 with f32 sums, on data that is not zero.
cudaError_t launch_bf16_rounds(int64_t rounds, int sm_count, float* sink, double* operations, cudaStream_t stream);

}  // namespace mr::cuda
