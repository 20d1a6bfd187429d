// measure: roofs of a GPU, the sustained rates that kernels are compared with.
#pragma once

#include <cstdint>

#include "src/device.h"

namespace mr::cuda {

// MR_MEASURE_*: units a second over at least duration_ns of work, the sum of those of all GPUs that the device leads. Throws INVALID_ARGUMENT for another `what` or a duration
// outside 1 ms to 60 s, RESOURCE_EXHAUSTED where the ledger does not allow the buffer that is read.
double measure_roof(Device& device, int32_t what, uint64_t duration_ns);

}  // namespace mr::cuda
