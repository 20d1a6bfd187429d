// vector_fixture: rows and codewords of every type, and the binary64 search against which the device is tested.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <functional>

#include "kernel_fixture.h"
#include "millrace/vectors.h"

namespace mr::cuda::testing {

inline const char* type_name(int32_t type) {
  const char* const names[] = {"f32", "f16", "bf16", "u8", "i8"};
  return names[type];
}

inline size_t type_bytes(int32_t type) { return type == MR_VECTOR_F32 ? 4 : type <= MR_VECTOR_BF16 ? 2 : 1; }

// Appends the bytes of the value of the type nearest to v, and returns that value.
inline float append(int32_t type, double v, std::vector<uint8_t>* bytes) {
  uint8_t raw[4];
  float value = static_cast<float>(v);
  if (type == MR_VECTOR_F32) {
    std::memcpy(raw, &value, 4);
  } else if (type == MR_VECTOR_F16) {
    const __half h = __float2half_rn(value);
    std::memcpy(raw, &h, 2);
    value = __half2float(h);
  } else if (type == MR_VECTOR_BF16) {
    const __nv_bfloat16 h = __float2bfloat16_rn(value);
    std::memcpy(raw, &h, 2);
    value = __bfloat162float(h);
  } else {
    const double low = type == MR_VECTOR_U8 ? 0 : -128, high = type == MR_VECTOR_U8 ? 255 : 127;
    const int whole = static_cast<int>(std::nearbyint(std::fmin(std::fmax(v, low), high)));
    raw[0] = static_cast<uint8_t>(whole);
    value = static_cast<float>(whole);
  }
  bytes->insert(bytes->end(), raw, raw + type_bytes(type));
  return value;
}

struct Values {
  std::vector<float> floats;
  std::vector<uint8_t> bytes;  // of the type
};

inline Values values_of(int32_t type, size_t count, const std::function<double(size_t)>& value) {
  Values v;
  v.floats.reserve(count);
  v.bytes.reserve(count * type_bytes(type));
  for (size_t i = 0; i < count; ++i) v.floats.push_back(append(type, value(i), &v.bytes));
  return v;
}

// Computes Q as docs/decisions/029-vector-numerics.md specifies.
inline double reference_distance(const float* x, const float* c, int64_t width, int32_t metric) {
  double sum[8] = {};
  for (int64_t j = 0; j < width; ++j) {
    const double a = static_cast<double>(x[j]), b = static_cast<double>(c[j]);
    if (metric == MR_METRIC_L2) sum[j % 8] += (a - b) * (a - b);
    else sum[j % 8] += a * b;
  }
  for (int half = 4; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
  return metric == MR_METRIC_L2 ? sum[0] : -sum[0];
}

}  // namespace mr::cuda::testing
