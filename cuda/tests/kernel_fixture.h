// kernel_fixture: seeded numbers, device memory between guard words, and comparisons that NaN never passes, for tests
// of kernels.
#pragma once

// GoogleTest's TEST declares a static member that nothing reads.
#ifdef __CUDACC__
#pragma nv_diag_suppress 177
#endif

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/launch.h"
#include "kernels/types.h"

namespace mr::cuda::testing {

inline void must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    ADD_FAILURE() << what << ": " << cudaGetErrorName(error) << ", " << cudaGetErrorString(error);
    std::exit(1);  // later tests would only fail for the same reason
  }
}
#define MUST(call) ::mr::cuda::testing::must((call), #call)

inline void synchronize() { MUST(cudaDeviceSynchronize()); }

class Numbers {  // splitmix64
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  int32_t below(int64_t n) { return static_cast<int32_t>(next() % static_cast<uint64_t>(n)); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  float normal() {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return static_cast<float>(sum - 6);
  }
  std::vector<float> normals(size_t count, float scale = 1) {
    std::vector<float> x(count);
    for (float& v : x) v = scale * normal();
    return x;
  }

 private:
  uint64_t state_;
};

// Guarded is `count` elements in device memory between guard words. Fresh elements are all-ones bytes, which is NaN in
// every float type. check() returns whether the guards are intact.
template <class T>
class Guarded {
 public:
  explicit Guarded(size_t count) : count_(count), bytes_((count * sizeof(T) + kGuard - 1) / kGuard * kGuard) {
    MUST(cudaMalloc(&memory_, bytes_ + 2 * kGuard));
    MUST(cudaMemset(memory_, 0x5a, bytes_ + 2 * kGuard));
    MUST(cudaMemset(data(), 0xff, count * sizeof(T)));
  }
  explicit Guarded(const std::vector<T>& values) : Guarded(values.size()) { write(values); }
  ~Guarded() {
    check();
    cudaFree(memory_);
  }
  Guarded(const Guarded& ) = delete;
  Guarded& operator=(const Guarded& ) = delete;

  T* data() const { return reinterpret_cast<T*>(static_cast<uint8_t*>(memory_) + kGuard); }
  operator T*() const { return data(); }
  size_t size() const { return count_; }
  void zero() { MUST(cudaMemset(data(), 0, count_ * sizeof(T))); }
  void write(const std::vector<T>& values) {
    ASSERT_LE(values.size(), count_);
    MUST(cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    MUST(cudaMemcpy(values.data(), data(), count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  void check() const {
    std::vector<uint8_t> all(bytes_ + 2 * kGuard);
    MUST(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < all.size(); ++i)
      if (i < kGuard || i >= kGuard + count_ * sizeof(T)) {
        if (all[i] == 0x5a) continue;
        ADD_FAILURE() << "written outside, at byte " << static_cast<int64_t>(i) - static_cast<int64_t>(kGuard) << " of "
                      << count_ * sizeof(T);
        return;
      }
  }

 private:
  static constexpr size_t kGuard = 256;
  size_t count_, bytes_;
  void* memory_ = nullptr;
};

// Activation types as 16-bit patterns on the host.
inline uint16_t to_act(Act act, float x) {
  uint16_t bits;
  if (act == Act::kF16) {
    const __half h = __float2half_rn(x);
    std::memcpy(&bits, &h, 2);
  } else {
    const __nv_bfloat16 h = __float2bfloat16_rn(x);
    std::memcpy(&bits, &h, 2);
  }
  return bits;
}
inline float from_act(Act act, uint16_t bits) {
  if (act == Act::kF16) {
    __half h;
    std::memcpy(static_cast<void*>(&h), &bits, 2);
    return __half2float(h);
  }
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}
inline std::vector<uint16_t> to_acts(Act act, const std::vector<float>& x) {
  std::vector<uint16_t> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = to_act(act, x[i]);
  return y;
}
inline std::vector<float> from_acts(Act act, const std::vector<uint16_t>& x) {
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = from_act(act, x[i]);
  return y;
}
// Half a step of an activation type, relative to the value; near 0 it is absolute.
inline double half_step(Act act) { return act == Act::kF16 ? 0x1p-11 : 0x1p-8; }
inline double half_least(Act act) { return act == Act::kF16 ? 0x1p-25 : 0x1p-134; }
inline const char* name(Act act) { return act == Act::kF16 ? "f16" : "bf16"; }

struct Bound {
  double abs, rel;
};

// An element passes if equal, or if its error is ordered and inside a finite bound: NaN always fails.
inline ::testing::AssertionResult near(const std::vector<float>& got, const std::vector<double>& want, Bound bound) {
  if (got.size() != want.size()) return ::testing::AssertionFailure() << got.size() << " values, want " << want.size();
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - want[i]), limit = bound.abs + bound.rel * std::fabs(want[i]);
    if (static_cast<double>(got[i]) == want[i] || (std::isfinite(limit) && error <= limit)) continue;
    return ::testing::AssertionFailure() << "value " << i << " of " << want.size() << " is " << got[i] << ", want " << want[i]
                                         << ", error " << error / limit << " of the bound";
  }
  return ::testing::AssertionSuccess();
}

template <class T>
::testing::AssertionResult same_bits(const T* a, const T* b, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (std::memcmp(a + i, b + i, sizeof(T)) != 0) return ::testing::AssertionFailure() << "differ at " << i << " of " << count;
  return ::testing::AssertionSuccess();
}

}  // namespace mr::cuda::testing
