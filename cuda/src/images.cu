// A kernel that every device of the build has, and the list of the compiled architectures.
#include "src/images.h"

namespace mr::cuda {
namespace {

// Numbers as __CUDA_ARCH__ has them: 860 is compute capability 8.6.
#ifdef __CUDA_ARCH_LIST__
constexpr int kBuilt[] = {__CUDA_ARCH_LIST__};
constexpr bool kTold = true;
#else
constexpr int kBuilt[] = {0};
constexpr bool kTold = false;  // by this compiler: the device is asked alone
#endif

__global__ void probe(int* out) {
  if (out != nullptr) *out = 1;
}

}  // namespace

bool code_is_built(int major, int minor) {
  if (!kTold) return true;
  for (const int built : kBuilt)
    if (built / 100 == major && built / 10 % 10 <= minor) return true;
  return false;
}

std::string built_code() {
  if (!kTold) return "an unknown list";
  std::string text;
  for (const int built : kBuilt) {
    if (!text.empty()) text += ' ';
    text += std::to_string(built / 100) + '.' + std::to_string(built / 10 % 10);
    if (MR_HOPPER && built == 900) text += 'a';
  }
  return text;
}

cudaError_t find_code() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&probe));
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

}  // namespace mr::cuda
