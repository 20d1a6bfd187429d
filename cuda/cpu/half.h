// half: f16 in plain C++. Names are local to each file that includes this one, as its instructions are.
#pragma once

#include <stdint.h>

namespace mr {
namespace {

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  uint32_t exponent = (h >> 10) & 31u, fraction = h & 0x3ffu, bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | (fraction << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  } else if (fraction == 0) {
    bits = sign;
  } else {
    exponent = 113;
    while ((fraction & 0x400u) == 0) {
      fraction <<= 1;
      --exponent;
    }
    bits = sign | (exponent << 23) | ((fraction & 0x3ffu) << 13);
  }
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
}

inline uint16_t float_to_half(float f) {  // nearest even; beyond 65504 + half a step infinity; NaN stays NaN
  uint32_t bits;
  __builtin_memcpy(&bits, &f, sizeof bits);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x33000000u) return sign;  // below half of the smallest subnormal
  const uint32_t exponent = magnitude >> 23;
  uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u, shift = 13, base = 0;
  if (exponent < 113) shift = 13 + (113 - exponent);
  else base = (exponent - 113) << 10;  // the hidden bit of the fraction adds the last one
  const uint32_t half = 1u << (shift - 1), rest = fraction & ((1u << shift) - 1);
  fraction >>= shift;
  if (rest > half || (rest == half && (fraction & 1u))) ++fraction;
  return static_cast<uint16_t>(sign | (base + fraction));
}

}  // namespace
}  // namespace mr
