#include "src/nap.h"

#include <chrono>
#include <thread>

#include "src/error.h"

namespace mr::cuda {

void nap_until(cudaEvent_t event) {
  constexpr std::chrono::microseconds kNap{30};
  for (;;) {
    const cudaError_t error = cudaEventQuery(event);
    if (error != cudaErrorNotReady) {
      CUDA_CHECK(error);
      return;
    }
    (void)cudaGetLastError();  // not ready is no lasting state
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace mr::cuda
