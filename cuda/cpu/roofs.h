// roofs: the sustained rates of all threads of a device together.
#pragma once

#include <cstdint>

#include "device.h"

namespace mr::cpu {

// what: MR_MEASURE_*. Units a second, measured for about duration_ns (1 ms to 60 s) on every thread at once; the device's
// other work waits. Throws INVALID_ARGUMENT, or RESOURCE_EXHAUSTED when the ledger has no room for the memory to read.
double measure_roof(Device& device, int32_t what, uint64_t duration_ns);

}  // namespace mr::cpu
