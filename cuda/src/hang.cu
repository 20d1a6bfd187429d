// One thread that sleeps and looks at the clock until its time is over.
#include "src/hang.h"

namespace mr::cuda {
namespace {

__global__ void sleep_until_over(uint64_t nanoseconds) {
  uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    __nanosleep(10000);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

}  // namespace

cudaError_t launch_hang(uint64_t nanoseconds, cudaStream_t stream) {
  sleep_until_over<<<1, 1, 0, stream>>>(nanoseconds);
  return cudaGetLastError();
}

}  // namespace mr::cuda
