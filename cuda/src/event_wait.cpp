#include "src/event_wait.h"

#include <thread>

#include "src/error.h"

namespace mr::cuda {

void wait_for_event(cudaEvent_t event, std::chrono::microseconds spin) {
  constexpr std::chrono::microseconds kSleep{30};
  const auto until = std::chrono::steady_clock::now() + spin;
  for (;;) {
    const cudaError_t error = cudaEventQuery(event);
    if (error != cudaErrorNotReady) {
      CUDA_CHECK(error);
      return;
    }
    (void)cudaGetLastError();  // clear the error: not ready does not persist
    if (std::chrono::steady_clock::now() >= until) std::this_thread::sleep_for(kSleep);
  }
}

}  // namespace mr::cuda
