#pragma GCC optimize("fp-contract=off")
#include "vector_math.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.h"

namespace mr {
namespace {

template <class T>
double squares(const T* v, int64_t n) {
  double a[8] = {};
  for (int64_t j = 0; j < n; ++j) a[j % 8] += static_cast<double>(v[j]) * static_cast<double>(v[j]);
  return fold_eight(a);
}

}  // namespace

void encode_codewords(int32_t type, const float* values, int64_t n, void* to) {
  if (type == MR_VECTOR_F32) {
    std::memcpy(to, values, static_cast<size_t>(n) * 4);
    return;
  }
  uint8_t* out = static_cast<uint8_t*>(to);
  for (int64_t i = 0; i < n; ++i, out += 2) {
    uint16_t bits;
    if (type == MR_VECTOR_F16) {
      bits = float_to_half(values[i]);
    } else {
      uint32_t whole;
      std::memcpy(&whole, &values[i], 4);
      bits = static_cast<uint16_t>(whole >> 16);
    }
    std::memcpy(out, &bits, 2);
  }
}

double length_squared(const double* v, int64_t n) { return squares(v, n); }
double length_squared(const float* v, int64_t n) { return squares(v, n); }

void normalise(const float* x, int64_t n, float* to) {
  const double length = std::sqrt(squares(x, n));
  for (int64_t j = 0; j < n; ++j) to[j] = length > 0 ? static_cast<float>(static_cast<double>(x[j]) / length) : x[j];
}

double block_sum(const double* v, int64_t n, double plus) {
  double a[kBlockLanes] = {};
  for (int64_t first = 0; first < n; first += kBlockLanes) {
    const int64_t some = std::min(kBlockLanes, n - first);
    for (int64_t i = 0; i < some; ++i) a[i] += plus + v[first + i];
  }
  for (int64_t half = kBlockLanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) a[i] += a[i + half];
  return a[0];
}

}  // namespace mr
