// place: where memory lies.
#pragma once

#include <string>

namespace mr::cuda {

// Throws INTERNAL, naming `what` lies there, unless `data` is plain memory of GPU `device`: neither the host's, nor managed
// memory that the driver may move, nor another GPU's. Null is nowhere and passes.
void check_place(const void* data, int device, const std::string& what);

}  // namespace mr::cuda
