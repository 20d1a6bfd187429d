// nap: waiting for a device that is busy for a while, without keeping a processor.
#pragma once

#include <cuda_runtime.h>

#include <chrono>

namespace mr::cuda {

// Returns once the event has happened, or throws what the device failed of. Between looks the thread naps for some tens of
// microseconds, after it has looked without pause for the time `awake`: what is over sooner is not worth a nap. An event of cudaEventBlockingSync sleeps as well, but its interrupt wakes every thread of the process that
// waits so: a few of them, and loads lose more to waking than to copying.
void nap_until(cudaEvent_t event, std::chrono::microseconds awake = std::chrono::microseconds(0));

}  // namespace mr::cuda
