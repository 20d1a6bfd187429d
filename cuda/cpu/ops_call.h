// ops_call: shared by the plain operations: a call's checked operands, and the time of its kernels.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <memory>

#include "error.h"
#include "ops.h"
#include "vecops.h"

namespace mr::cpu {

class Timer {
 public:
  uint64_t nanoseconds() const {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin_).count());
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// The product of sizes, each at least 1, or a refusal.
inline uint64_t product(std::initializer_list<int64_t> sizes) {
  uint64_t result = 1;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(result, static_cast<uint64_t>(size), &result) || result > uint64_t{1} << 60)
      fail(MR_INVALID_ARGUMENT, "the operation's sizes are beyond any memory");
  return result;
}

inline void check_size(const char* field, int64_t value) {
  if (value < 1) fail(MR_INVALID_ARGUMENT, "%s is %lld: want at least 1", field, static_cast<long long>(value));
}

inline void check_finite(const char* field, float value) {
  if (!std::isfinite(value)) fail(MR_INVALID_ARGUMENT, "%s is %g: want a finite number", field, static_cast<double>(value));
}

inline void check_bytes(const char* field, const std::shared_ptr<Buffer>& buffer, uint64_t bytes) {
  if (buffer == nullptr) fail(MR_INVALID_ARGUMENT, "buffer %s is null", field);
  if (buffer->size() < bytes)
    fail(MR_INVALID_ARGUMENT, "buffer %s has %llu bytes: the operation's sizes want %llu", field,
         static_cast<unsigned long long>(buffer->size()), static_cast<unsigned long long>(bytes));
}

struct Call {
  Device& device;
  const mr_op_args& args;
  const Operands& operands;
  const VecOps& ops;

  const float* read(const char* field, const std::shared_ptr<Buffer>& buffer, uint64_t floats) const {
    check_bytes(field, buffer, floats * sizeof(float));
    return reinterpret_cast<const float*>(buffer->readable(floats * sizeof(float)));
  }
  void check_out(uint64_t floats) const { check_bytes("out", operands.out, floats * sizeof(float)); }
  float* write(uint64_t floats) const { return reinterpret_cast<float*>(operands.out->writable(floats * sizeof(float))); }
  void check_apart(const char* field, const std::shared_ptr<Buffer>& buffer) const {
    if (buffer == operands.out) fail(MR_INVALID_ARGUMENT, "buffer out is also %s: this operation needs another one", field);
  }
};

// MATMUL, MATVEC and their F16 forms: op_product.cpp.
uint64_t run_product(const Call& call);

}  // namespace mr::cpu
