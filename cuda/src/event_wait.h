// event_wait: waits for an event of a device without keeping a processor busy.
#pragma once

#include <cuda_runtime.h>

#include <chrono>

namespace mr::cuda {

// Returns once the event has happened, or throws the device's error. The thread polls the event without pause for the time
// `spin`, and then sleeps for some tens of microseconds between polls: a sleep costs more than a short wait. An event with
// cudaEventBlockingSync would sleep too, but its interrupt wakes every thread of the process that waits for such an event, so
// that with a few of them loads lose more time to waking than to copying.
void wait_for_event(cudaEvent_t event, std::chrono::microseconds spin = std::chrono::microseconds(0));

}  // namespace mr::cuda
