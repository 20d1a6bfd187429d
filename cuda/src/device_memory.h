// device_memory: checks in which memory an address lies.
#pragma once

#include <string>

namespace mr::cuda {

// Throws INTERNAL with the name `what` unless `data` is plain memory of GPU `device`: neither the host's, nor managed memory,
// which the driver may move, nor another GPU's. Null passes.
void check_device_memory(const void* data, int device, const std::string& what);

}  // namespace mr::cuda
