// What launchers ask of the device that is emulated.
#include <cuda_runtime.h>

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 9;  // its compute capability
  return cudaSuccess;
}
