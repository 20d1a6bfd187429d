#pragma GCC optimize("fp-contract=off")
#include "mathfn.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace mr::cpu {
namespace {

double from_bits(uint64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

uint64_t to_bits(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// ln 2 in two parts; the high one has 32 significant bits, so that its product with an exponent is exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

// pi/2 in three parts; the first two have 32 significant bits, so that their products with n < 2^21 are exact.
constexpr double kHalfPi1 = 0x1.921fb544p+0;
constexpr double kHalfPi2 = 0x1.0b4611a6p-34;
constexpr double kHalfPi3 = 0x1.3198a2e037073p-69;

// The nearest integer, ties to even, for |x| < 2^51.
double nearest(double x) {
  constexpr double magic = 0x1.8p52;
  return (x + magic) - magic;
}

}  // namespace

double exp_f64(double x) {
  if (std::isnan(x)) return x;
  if (x > 709.782712893384) return std::numeric_limits<double>::infinity();
  if (x < -708.0) return 0;
  const double n = nearest(x * 1.4426950408889634);
  const double high = x - n * kLn2High, low = n * kLn2Low;
  const double f = high - low;
  // Taylor series to f^14, |f| <= 0.347; the correction of f's own rounding is first order.
  double p = 1.0 / 87178291200.0;
  double divisor[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0,
                      1.0 / 40320.0,      1.0 / 5040.0,      1.0 / 720.0,      1.0 / 120.0,     1.0 / 24.0,
                      1.0 / 6.0,          0.5};
  for (const double c : divisor) p = p * f + c;
  const double tail = (high - f) - low;
  const double result = 1.0 + (f + (f * f * p + tail));
  const int64_t exponent = static_cast<int64_t>(n);
  const int64_t first = exponent / 2, second = exponent - first;
  return result * from_bits(static_cast<uint64_t>(first + 1023) << 52) *
         from_bits(static_cast<uint64_t>(second + 1023) << 52);
}

double log_f64(double x) {
  if (std::isnan(x) || x < 0) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0) return -std::numeric_limits<double>::infinity();
  if (std::isinf(x)) return x;
  int64_t exponent = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    exponent = -54;
  }
  uint64_t bits = to_bits(x);
  exponent += static_cast<int64_t>(bits >> 52) - 1023;
  double m = from_bits((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    exponent += 1;
  }
  // log m = 2 atanh(s) with s = f / (2 + f), |s| <= 0.1716; written as f - (f^2/2 - s (f^2/2 + R)) for small f.
  const double f = m - 1.0, s = f / (2.0 + f), z = s * s;
  double r = 2.0 / 25.0;
  for (int k = 23; k >= 3; k -= 2) r = r * z + 2.0 / k;
  r *= z;
  const double half = 0.5 * f * f, e = static_cast<double>(exponent);
  return e * kLn2High - ((half - (s * (half + r) + e * kLn2Low)) - f);
}

void sincos_f64(double x, double* sine, double* cosine) {
  const double n = nearest(x * 0.6366197723675814);
  const double a = x - n * kHalfPi1;
  const double w1 = n * kHalfPi2;
  const double b = a - w1;
  const double lost = (a - b) - w1;
  const double w = n * kHalfPi3 - lost;
  const double r = b - w, tail = (b - r) - w;
  const double z = r * r;
  double sp = -1.0 / 121645100408832000.0;
  const double sine_terms[] = {1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
                               1.0 / 362880.0,          -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
  for (const double c : sine_terms) sp = sp * z + c;
  double cp = 1.0 / 6402373705728000.0;
  cp = -cp;
  const double cosine_terms[] = {1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0,
                                 1.0 / 40320.0,          -1.0 / 720.0,         1.0 / 24.0};
  for (const double c : cosine_terms) cp = cp * z + c;
  const double half = 0.5 * z, one = 1.0 - half;
  const double s = r + (r * z * sp + tail);
  const double c = one + (((1.0 - one) - half) + (z * z * cp - r * tail));
  switch (static_cast<int64_t>(n) & 3) {
    case 0: *sine = s; *cosine = c; break;
    case 1: *sine = c; *cosine = -s; break;
    case 2: *sine = -s; *cosine = -c; break;
    default: *sine = -c; *cosine = s; break;
  }
}

}  // namespace mr::cpu
