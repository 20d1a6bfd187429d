// tensor_map: looks up the driver's function that encodes tensor maps for TMA copies.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

namespace mr::cuda {

// The lookup is done once for each process. cudaErrorNotSupported: the driver has no such function.
inline cudaError_t find_tensor_map_encoder(PFN_cuTensorMapEncodeTiled_v12000* encoder) {
  static void* entry = nullptr;
  static const cudaError_t error = [] {
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t e = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found);
#endif
    return e != cudaSuccess ? e : found != cudaDriverEntryPointSuccess ? cudaErrorNotSupported : cudaSuccess;
  }();
  *encoder = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  return error;
}

}  // namespace mr::cuda
