// Checks for the C++ unit programs: a failed one prints its place and values, and the exit status is 1.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdint>
#include <cstring>
#include <vector>

#include "isa.h"

namespace check {

inline int failures = 0;

#define CHECK(condition, ...)                                      \
  do {                                                             \
    if (!(condition)) {                                            \
      ++check::failures;                                           \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);  \
      std::printf(__VA_ARGS__);                                    \
      std::printf("\n");                                           \
    }                                                              \
  } while (0)

// Equal, or within a finite bound: NaN always fails.
inline bool close(double got, double want, double absolute, double relative) {
  if (got == want) return true;
  const double error = std::fabs(got - want), limit = absolute + relative * std::fabs(want);
  return std::isfinite(limit) && error <= limit;
}

// Small deterministic numbers for test data.
struct Numbers {
  uint64_t state;
  explicit Numbers(uint64_t seed) : state(seed * 2654435769u + 1) {}
  uint64_t next() {
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  float normal() {  // roughly
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return static_cast<float>(sum);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
};

// n floats between two runs of guard words that must stay as they are.
class Guarded {
 public:
  explicit Guarded(int64_t n) : n_(n), data_(static_cast<size_t>(n + 2 * kGuard), kMark) {}
  float* data() { return data_.data() + kGuard; }
  float& operator[](int64_t i) { return data()[i]; }
  bool intact() const {
    for (int64_t i = 0; i < kGuard; ++i)
      if (data_[static_cast<size_t>(i)] != kMark || data_[static_cast<size_t>(n_ + kGuard + i)] != kMark) return false;
    return true;
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr float kMark = 1234567.0f;
  const int64_t n_;
  std::vector<float> data_;
};

// Runs f for every path of this processor.
template <class F>
void each_isa(F f) {
  for (const mr::cpu::Isa isa : {mr::cpu::Isa::portable, mr::cpu::Isa::avx2, mr::cpu::Isa::avx512vnni,
                                 mr::cpu::Isa::avx512bf16, mr::cpu::Isa::amx})
    if (mr::cpu::runnable(isa)) f(isa);
}

inline int report(const char* what) {
  std::printf("%s: %s\n", what, failures == 0 ? "ok" : "FAILED");
  return failures == 0 ? 0 : 1;
}

}  // namespace check
