#include "src/device_memory.h"

#include <cuda_runtime.h>

#include "src/error.h"

namespace mr::cuda {
namespace {

const char* name_of(cudaMemoryType type) {
  switch (type) {
    case cudaMemoryTypeUnregistered: return "host memory that the driver does not know";
    case cudaMemoryTypeHost: return "pinned host memory";
    case cudaMemoryTypeManaged: return "managed memory";
    default: return "device memory";
  }
}

}  // namespace

void check_device_memory(const void* data, int device, const std::string& what) {
  if (data == nullptr) return;
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, data), ("asking where " + what + " lies").c_str());
  if (attributes.type == cudaMemoryTypeDevice && attributes.device == device) return;
  throw Error(MR_INTERNAL, 0, what + " lies in " + name_of(attributes.type) + " of device " + std::to_string(attributes.device) +
                                  ": want device memory of device " + std::to_string(device));
}

}  // namespace mr::cuda
