#include "src/nap.h"

#include <thread>

#include "src/error.h"

namespace mr::cuda {

void nap_until(cudaEvent_t event, std::chrono::microseconds awake) {
  constexpr std::chrono::microseconds kNap{30};
  const auto until = std::chrono::steady_clock::now() + awake;
  for (;;) {
    const cudaError_t error = cudaEventQuery(event);
    if (error != cudaErrorNotReady) {
      CUDA_CHECK(error);
      return;
    }
    (void)cudaGetLastError();  // not ready is no lasting state
    if (std::chrono::steady_clock::now() >= until) std::this_thread::sleep_for(kNap);
  }
}

}  // namespace mr::cuda
