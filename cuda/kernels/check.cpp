#include "kernels/check.h"

namespace mr::cuda {
namespace {

int32_t code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return MR_RESOURCE_EXHAUSTED;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorStubLibrary: return MR_UNAVAILABLE;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorNotSupported: return MR_UNIMPLEMENTED;
    default: return MR_INTERNAL;
  }
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // clears the error, so that it is not reported again
  throw Error(code_of(error), error, text_of(error) + " from " + what);
}

std::string text_of(cudaError_t error) { return std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")"; }

}  // namespace mr::cuda
