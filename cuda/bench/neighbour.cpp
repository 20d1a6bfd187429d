// neighbour: a process that allocates memory of the first GPU, touches it and holds it for a while, to test a worker
// next to it.
//
//   cuda_bench_neighbour BYTES SECONDS
//
// Prints the time at which it had the memory, in seconds since 1970.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

bool succeeded(cudaError_t error, const char* what) {
  if (error != cudaSuccess) std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return error == cudaSuccess;
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned long long bytes = argc == 3 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const int seconds = argc == 3 ? std::atoi(argv[2]) : 0;
  if (bytes == 0 || seconds <= 0) {
    std::fprintf(stderr, "usage: cuda_bench_neighbour BYTES SECONDS\n");
    return 2;
  }
  void* memory = nullptr;
  if (!succeeded(cudaFree(nullptr), "beginning") || !succeeded(cudaMalloc(&memory, static_cast<size_t>(bytes)), "allocating")) return 1;
  const long long at =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (!succeeded(cudaMemset(memory, 1, static_cast<size_t>(bytes)), "touching") || !succeeded(cudaDeviceSynchronize(), "touching")) return 1;
  std::printf("took %llu bytes at %lld.%03lld\n", bytes, at / 1000, at % 1000);
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  return succeeded(cudaFree(memory), "giving back") ? 0 : 1;
}
