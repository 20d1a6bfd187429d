// engine_abi_fuzz: the fuzz target for libFuzzer, and its eyes. g++ compiles the engine, since only it knows the pragmas that
// choose instructions; it calls the function below at every edge, which counts for libFuzzer.
#include "fuzz/engine_abi.h"

namespace {

constexpr size_t kCounters = 1 << 17;
uint8_t counters[kCounters];

}  // namespace

extern "C" {

extern char __executable_start;
void __sanitizer_cov_8bit_counters_init(uint8_t* begin, uint8_t* end);
void __wrap___sanitizer_cov_trace_pc();
void __sanitizer_cov_trace_cmpf(float, float);
void __sanitizer_cov_trace_cmpd(double, double);
int LLVMFuzzerInitialize(int* argc, char*** argv);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

__attribute__((no_sanitize("address", "undefined"))) void __wrap___sanitizer_cov_trace_pc() {
  const size_t at = static_cast<size_t>(static_cast<char*>(__builtin_return_address(0)) - &__executable_start);
  uint8_t& counter = counters[at * 0x9e3779b97f4a7c15u >> 47];
  if (counter != 255) ++counter;
}

// libFuzzer learns from compared integers only.
void __sanitizer_cov_trace_cmpf(float, float) {}
void __sanitizer_cov_trace_cmpd(double, double) {}

int LLVMFuzzerInitialize(int*, char***) {
  __sanitizer_cov_8bit_counters_init(counters, counters + kCounters);
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::run(data, size);
  return 0;
}

}  // extern "C"
