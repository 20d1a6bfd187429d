// math: elementary functions with the bits of the CPU engine (cpu/mathfn.cpp, and the exp of cpu/vecops_simd.h where it
// fuses): the same operations in the same order, fused only where fmaf is written.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace mr::cuda {

__host__ __device__ inline double double_from_bits(uint64_t bits) {
#ifdef __CUDA_ARCH__
  return __longlong_as_double(static_cast<long long>(bits));
#else
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

__host__ __device__ inline uint64_t bits_of_double(double x) {
#ifdef __CUDA_ARCH__
  return static_cast<uint64_t>(__double_as_longlong(x));
#else
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

namespace math_detail {
// ln 2 in two parts; the high one has 32 significant bits, so that its product with an exponent is exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
// pi/2 in three parts; the first two have 32 significant bits, so that their products with n < 2^21 are exact.
constexpr double kHalfPi1 = 0x1.921fb544p+0;
constexpr double kHalfPi2 = 0x1.0b4611a6p-34;
constexpr double kHalfPi3 = 0x1.3198a2e037073p-69;

// The nearest integer, ties to even, for |x| < 2^51.
__host__ __device__ inline double nearest(double x) { return (x + 0x1.8p52) - 0x1.8p52; }
}  // namespace math_detail

// e^x in double, below 2 ulp.
__host__ __device__ inline double exp_f64(double x) {
  using namespace math_detail;
  if (!(x == x)) return x;
  if (x > 709.782712893384) return double_from_bits(0x7ff0000000000000u);
  if (x < -708.0) return 0;
  const double n = nearest(x * 1.4426950408889634);
  const double high = x - n * kLn2High, low = n * kLn2Low;
  const double f = high - low;
  double p = 1.0 / 87178291200.0;
  p = p * f + 1.0 / 6227020800.0;
  p = p * f + 1.0 / 479001600.0;
  p = p * f + 1.0 / 39916800.0;
  p = p * f + 1.0 / 3628800.0;
  p = p * f + 1.0 / 362880.0;
  p = p * f + 1.0 / 40320.0;
  p = p * f + 1.0 / 5040.0;
  p = p * f + 1.0 / 720.0;
  p = p * f + 1.0 / 120.0;
  p = p * f + 1.0 / 24.0;
  p = p * f + 1.0 / 6.0;
  p = p * f + 0.5;
  const double tail = (high - f) - low;
  const double result = 1.0 + (f + (f * f * p + tail));
  const int64_t exponent = static_cast<int64_t>(n);
  const int64_t first = exponent / 2, second = exponent - first;
  return result * double_from_bits(static_cast<uint64_t>(first + 1023) << 52) *
         double_from_bits(static_cast<uint64_t>(second + 1023) << 52);
}

// Natural logarithm, below 2 ulp. 0 gives -infinity, negative numbers NaN.
__host__ __device__ inline double log_f64(double x) {
  using namespace math_detail;
  if (!(x >= 0)) return double_from_bits(0x7ff8000000000000u);
  if (x == 0) return double_from_bits(0xfff0000000000000u);
  if (x == double_from_bits(0x7ff0000000000000u)) return x;
  int64_t exponent = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    exponent = -54;
  }
  const uint64_t bits = bits_of_double(x);
  exponent += static_cast<int64_t>(bits >> 52) - 1023;
  double m = double_from_bits((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    exponent += 1;
  }
  const double f = m - 1.0, s = f / (2.0 + f), z = s * s;
  double r = 2.0 / 25.0;
  for (int k = 23; k >= 3; k -= 2) r = r * z + 2.0 / k;
  r *= z;
  const double half = 0.5 * f * f, e = static_cast<double>(exponent);
  return e * kLn2High - ((half - (s * (half + r) + e * kLn2Low)) - f);
}

// Sine and cosine of x for |x| <= 2^21 * pi/2, absolute error below 2^-52.
__host__ __device__ inline void sincos_f64(double x, double* sine, double* cosine) {
  using namespace math_detail;
  const double n = nearest(x * 0.6366197723675814);
  const double a = x - n * kHalfPi1;
  const double w1 = n * kHalfPi2;
  const double b = a - w1;
  const double lost = (a - b) - w1;
  const double w = n * kHalfPi3 - lost;
  const double r = b - w, tail = (b - r) - w;
  const double z = r * r;
  double sp = -1.0 / 121645100408832000.0;
  sp = sp * z + 1.0 / 355687428096000.0;
  sp = sp * z + -1.0 / 1307674368000.0;
  sp = sp * z + 1.0 / 6227020800.0;
  sp = sp * z + -1.0 / 39916800.0;
  sp = sp * z + 1.0 / 362880.0;
  sp = sp * z + -1.0 / 5040.0;
  sp = sp * z + 1.0 / 120.0;
  sp = sp * z + -1.0 / 6.0;
  double cp = -(1.0 / 6402373705728000.0);
  cp = cp * z + 1.0 / 20922789888000.0;
  cp = cp * z + -1.0 / 87178291200.0;
  cp = cp * z + 1.0 / 479001600.0;
  cp = cp * z + -1.0 / 3628800.0;
  cp = cp * z + 1.0 / 40320.0;
  cp = cp * z + -1.0 / 720.0;
  cp = cp * z + 1.0 / 24.0;
  const double half = 0.5 * z, one = 1.0 - half;
  const double s = r + (r * z * sp + tail);
  const double c = one + (((1.0 - one) - half) + (z * z * cp - r * tail));
  const int quarter = static_cast<int>(static_cast<int64_t>(n) & 3);
  const double first = (quarter & 1) ? c : s, second = (quarter & 1) ? s : c;
  *sine = (quarter & 2) ? -first : first;
  *cosine = (quarter == 1 || quarter == 2) ? -second : second;
}

#ifdef __CUDACC__
// e^f for |f| <= ln(2) / 2.
__device__ __forceinline__ float exp_reduced(float f) {
  float p = 1.0f / 5040;
  p = fmaf(p, f, 1.0f / 720);
  p = fmaf(p, f, 1.0f / 120);
  p = fmaf(p, f, 1.0f / 24);
  p = fmaf(p, f, 1.0f / 6);
  p = fmaf(p, f, 0.5f);
  return fmaf(p, f * f, f) + 1.0f;
}

// e^x in f32, at most 1.01 ulp; 0 below -87.3, infinity above 88.72.
__device__ __forceinline__ float exp_f32(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float t = fmaf(x, 1.44269504f, magic);
  const float n = t - magic;
  const int32_t ni = __float_as_int(t) - __float_as_int(magic);
  float f = fmaf(n, -0.693359375f, x);
  f = fmaf(n, 2.12194440e-4f, f);
  float p = exp_reduced(f);
  const int32_t first = ni >> 1, second = ni - first;
  p = p * __int_as_float((first + 127) << 23) * __int_as_float((second + 127) << 23);
  if (x > 88.72284f) p = __int_as_float(0x7f800000);
  return x < -87.3f ? 0.0f : p;
}

__device__ __forceinline__ float silu_f32(float x) { return x / (1.0f + exp_f32(-x)); }

// GELU in its tanh form: x / (1 + e^-u), u = 2 sqrt(2/pi) (x + 0.044715 x^3).
__device__ __forceinline__ float gelu_f32(float x) {
  return x / (1.0f + exp_f32(-1.59576912f * fmaf(0.044715f * x * x, x, x)));
}

// 2^x by the hardware's approximation (2 ulp); subnormal results are 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

}  // namespace mr::cuda
