// f8: the conversions of kernels/f8.cuh, and its pairs of wide elements on the host.
#pragma once

#include "../../../../kernels/f8.cuh"

#include "kernels/instructions.cuh"

namespace mr::cuda {

template <class T>
struct WideF8 {
  static constexpr float kFactor = std::is_same_v<T, __half> ? 256.0f : 1.0f;
  // Two elements in the upper bytes of the halves of x.
  static uint32_t pair(uint32_t x) {
    const auto wide = [&](uint32_t element) -> uint32_t {
      const float value = f8_to_f32(element) / kFactor;
      if constexpr (std::is_same_v<T, __half>) return __half_as_ushort(__float2half_rn(value));
      else return __bfloat16_as_ushort(__float2bfloat16_rn(value));
    };
    return wide(x >> 8 & 0xffu) | wide(x >> 24) << 16;
  }
};

template <class T>
uint4 widen_f8(uint32_t low, uint32_t high) {
  const auto two = [](uint32_t x) { return WideF8<T>::pair((x & 0xffu) << 8 | (x & 0xff00u) << 16); };
  return make_uint4(two(low), two(low >> 16), two(high), two(high >> 16));
}
template <class T>
void widen_f8(const uint4& from, uint4 (&to)[2]) {
  to[0] = widen_f8<T>(from.x, from.y);
  to[1] = widen_f8<T>(from.z, from.w);
}

}  // namespace mr::cuda
