// fragment: from a unit of packed weights in shared memory to the A fragments of its steps, and to what multiplies them.
//
// A fragment holds the quants as integers (exact in f16 and bf16) or the float weights; integers become numbers by putting
// their bits below the exponent of 1024 (f16) or 128 (bf16) and subtracting that and the zero point. Float weights that
// the multiplied type cannot hold become two terms.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/linear/mma.cuh"
#include "kernels/linear/packed_access.cuh"

namespace mr::cuda {

// What a weight of type T and activations of type A are multiplied as, and into how many terms each is split.
template <int32_t T, class A>
struct Terms {
  static constexpr bool f16_act = std::is_same_v<A, __half>;
  static constexpr bool wide = T == kF32 || (T == kBF16 && f16_act) || (T == kF16 && !f16_act);
  using Element = std::conditional_t<wide, __nv_bfloat16, A>;
  static constexpr int32_t weights = T == kF32 || (T == kF16 && !f16_act) ? 2 : 1;
  static constexpr int32_t inputs = wide && f16_act ? 2 : 1;
};

__device__ __forceinline__ uint32_t bits_of(__half2 v) { return *reinterpret_cast<uint32_t*>(&v); }
__device__ __forceinline__ uint32_t bits_of(__nv_bfloat162 v) { return *reinterpret_cast<uint32_t*>(&v); }

// Two bf16 whose sum is (low, high) to 2^-16.
__device__ __forceinline__ void split_bf16(float low, float high, uint32_t& first, uint32_t& second) {
  const __nv_bfloat162 head = __floats2bfloat162_rn(low, high);
  first = bits_of(head);
  second = bits_of(__floats2bfloat162_rn(low - __low2float(head), high - __high2float(head)));
}

__device__ __forceinline__ void split_half2(uint32_t pair, uint32_t& first, uint32_t& second) {
  const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pair));
  split_bf16(v.x, v.y, first, second);
}

// (1024 + q) - (1024 + zero) for two f16, the constant given as bits.
template <class E>
__device__ __forceinline__ uint32_t minus(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<E, __half>) {
    return bits_of(__hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b)));
  } else {
    return bits_of(__hsub2(*reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b)));
  }
}

// Both halves of a pair of E that hold 2^e + n, where the low bits of E count units.
template <class E>
__host__ __device__ constexpr uint32_t base_plus(int32_t n) {
  const uint32_t one = (std::is_same_v<E, __half> ? 0x6400u : 0x4300u) + static_cast<uint32_t>(n);
  return one | one << 16;
}

// Four fragment registers from a word of nibbles and, shifted to bits 4 and 20 of each register, its high bits.
template <class E, int32_t zero>
__device__ __forceinline__ void from_nibbles(uint32_t w, uint32_t (&a)[4]) {
  if constexpr (std::is_same_v<E, __half>) {
    // The upper nibbles stay in place: below the exponent of 64 bit 4 counts units.
    constexpr uint32_t low = 0x6400u, high = 0x5400u, low_zero = base_plus<E>(zero);
    constexpr uint32_t high_zero = (0x5400u + (zero << 4)) | (0x5400u + (zero << 4)) << 16;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const uint32_t v = i == 0 ? w : w >> 8;
      a[i * 2] = minus<E>((v & 0x000f000fu) | (low | low << 16), low_zero);
      a[i * 2 + 1] = minus<E>((v & 0x00f000f0u) | (high | high << 16), high_zero);
    }
  } else {
    a[0] = minus<E>((w & 0x000f000fu) | base_plus<E>(0), base_plus<E>(zero));
    a[1] = minus<E>((w >> 4 & 0x000f000fu) | base_plus<E>(0), base_plus<E>(zero));
    a[2] = minus<E>((w >> 8 & 0x000f000fu) | base_plus<E>(0), base_plus<E>(zero));
    a[3] = minus<E>((w >> 12 & 0x000f000fu) | base_plus<E>(0), base_plus<E>(zero));
  }
}

// high: the register's bits at `at` and at + 16, `bits` wide.
template <int32_t bits>
__device__ __forceinline__ uint32_t to_bit4(uint32_t high, int32_t at) {
  constexpr uint32_t mask = bits == 1 ? 0x00100010u : 0x00300030u;
  return (at <= 4 ? high << (4 - at) : high >> (at - 4)) & mask;
}

template <class E, int32_t zero, int32_t bits>
__device__ __forceinline__ void from_nibbles_and_high(uint32_t w, uint32_t high, int32_t at, uint32_t (&a)[4]) {
  constexpr int32_t shift[4] = {0, 4, 8, 12};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    a[i] = minus<E>((w >> shift[i] & 0x000f000fu) | to_bit4<bits>(high, at + i * bits) | base_plus<E>(0), base_plus<E>(zero));
  }
}

// Bytes 2*pair and 2*pair + 1 of a word, each 128 above its value.
template <class E, int32_t pair>
__device__ __forceinline__ uint32_t from_bytes(uint32_t w) {
  if constexpr (std::is_same_v<E, __half>) {
    return minus<E>(__byte_perm(w, 0x64646464u, pair == 0 ? 0x4140u : 0x4342u), base_plus<E>(128));
  } else {
    // 2^23 + byte, as f32.
    const float low = __uint_as_float(__byte_perm(w, 0x4b000000u, 0x7650u + 2 * pair)) - 8388736.0f;
    const float high = __uint_as_float(__byte_perm(w, 0x4b000000u, 0x7651u + 2 * pair)) - 8388736.0f;
    return bits_of(__floats2bfloat162_rn(low, high));
  }
}

// IQ4_NL: the values, 128 above, of the four nibbles in the low half of w.
__device__ __forceinline__ uint32_t iq4_nl_bytes(uint32_t w) {
  const uint32_t index = w & 0x7777u;
  const uint32_t low = __byte_perm(0x3f2d1801u, 0x766a5d4fu, index), high = __byte_perm(0xa6998d81u, 0xf1d9c5b5u, index);
  return __byte_perm(low, high, (w >> 1 & 0x4444u) | 0x3210u);
}

// The fragments of one step, as `count` terms: a[term][register].
// unit: the unit's bytes in shared memory, quants first, then the high plane. E: the type they are multiplied as.
template <int32_t T, class E, int32_t count>
struct UnitQuants {
  static constexpr WeightFormat f = Format<T>::f;
  uint32_t unit;
  int32_t lane;
  uint4 words;       // nibbles: of the four steps; bytes: of two steps
  uint32_t high[2];

  __device__ __forceinline__ void begin(uint32_t unit_address, int32_t lane_id) {
    unit = unit_address;
    lane = lane_id;
    if constexpr (Format<T>::nibbles) words = load_shared16(unit + lane * 16);
    if constexpr (Format<T>::high_bits == 1) high[0] = load_shared4(unit + f.quants + lane * 4);
    if constexpr (Format<T>::high_bits == 2) {
      const uint2 v = load_shared8(unit + f.quants + lane * 8);
      high[0] = v.x;
      high[1] = v.y;
    }
  }

  // Steps are taken in ascending order, `step` known at compilation.
  __device__ __forceinline__ void step(int32_t step, uint32_t (&a)[count][4]) {
    if constexpr (T == kF32) {
      const uint4 first = load_shared16(unit + (step * 2) * 512 + lane * 16);
      const uint4 second = load_shared16(unit + (step * 2 + 1) * 512 + lane * 16);
      split_bf16(__uint_as_float(first.x), __uint_as_float(first.y), a[0][0], a[1][0]);
      split_bf16(__uint_as_float(second.x), __uint_as_float(second.y), a[0][1], a[1][1]);
      split_bf16(__uint_as_float(first.z), __uint_as_float(first.w), a[0][2], a[1][2]);
      split_bf16(__uint_as_float(second.z), __uint_as_float(second.w), a[0][3], a[1][3]);
    } else if constexpr (Format<T>::is_float) {
      const uint4 v = load_shared16(unit + step * 512 + lane * 16);
      const uint32_t r[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        if constexpr (count == 2) split_half2(r[i], a[0][i], a[1][i]);
        else a[0][i] = r[i];
      }
    } else if constexpr (T == kQ8_0) {
      if (step % 2 == 0) words = load_shared16(unit + step / 2 * 512 + lane * 16);
      const uint32_t g = step % 2 == 0 ? words.x : words.z, g8 = step % 2 == 0 ? words.y : words.w;
      a[0][0] = from_bytes<E, 0>(g);
      a[0][1] = from_bytes<E, 0>(g8);
      a[0][2] = from_bytes<E, 1>(g);
      a[0][3] = from_bytes<E, 1>(g8);
    } else {
      const uint32_t w = step == 0 ? words.x : step == 1 ? words.y : step == 2 ? words.z : words.w;
      if constexpr (T == kIQ4_NL) {
        const uint32_t even = iq4_nl_bytes(w), odd = iq4_nl_bytes(w >> 16);
        const uint32_t near = __byte_perm(even, odd, 0x5140), far = __byte_perm(even, odd, 0x7362);
        a[0][0] = from_bytes<E, 0>(near);
        a[0][1] = from_bytes<E, 1>(near);
        a[0][2] = from_bytes<E, 0>(far);
        a[0][3] = from_bytes<E, 1>(far);
      } else if constexpr (Format<T>::high_bits == 0) {
        from_nibbles<E, T == kQ4_0 ? 8 : 0>(w, a[0]);
      } else if constexpr (Format<T>::high_bits == 1) {
        from_nibbles_and_high<E, T == kQ5_0 ? 16 : 0, 1>(w, high[0], step * 4, a[0]);
      } else {
        from_nibbles_and_high<E, 32, 2>(w, high[step / 2], step % 2 * 8, a[0]);
      }
    }
  }
};

// What multiplies the sums of one unit's blocks, for rows g and g + 8 of a lane.
//   scale[r][b]: blocks of 32 (b = 0, 1), or of 16 in Q6_K (b = 0..3);  min[r][b]: added times the block's sum of x.
// Q4_K, Q5_K: lane l holds the header of row l/2 from the first unit of its group on, computes block l%2 of that row and
// passes it on through `exchange`: 256 bytes of shared memory of the warp's own.
template <int32_t T>
struct UnitScales {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t blocks = T == kQ6_K ? 4 : 2;
  float scale[2][blocks], min[2][Format<T>::has_min ? 2 : 1];
  uint4 header;   // Q4_K, Q5_K
  float d[2];     // Q6_K

  __device__ __forceinline__ static float half_bits(uint32_t v) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(v)));
  }

  __device__ __forceinline__ static float2 half_pair(uint32_t v) { return __half22float2(*reinterpret_cast<__half2*>(&v)); }

  // At the first unit of a group, whose header lies behind its other planes.
  __device__ __forceinline__ void begin_group(uint32_t unit, int32_t lane) {
    const uint32_t at = unit + f.quants + f.high + f.scales;
    if constexpr (T == kQ6_K) {
      const float2 v = half_pair(load_shared4(at + (lane >> 2) * 4));
      d[0] = v.x;
      d[1] = v.y;
    } else if constexpr (Format<T>::superblock) {
      header = load_shared16(at + (lane >> 1) * 16);
    }
  }

  // unit: in shared memory; index: of the unit in its group.
  __device__ __forceinline__ void begin_unit(uint32_t unit, int32_t index, int32_t lane, uint32_t exchange) {
    const int32_t g = lane >> 2;
    const uint32_t at = unit + f.quants + f.high;
    if constexpr (T == kQ6_K) {
      const uint2 v = load_shared8(at + g * 8);
#pragma unroll
      for (int32_t b = 0; b < 4; ++b) {
        scale[0][b] = d[0] * static_cast<float>(static_cast<int8_t>(v.x >> b * 8));
        scale[1][b] = d[1] * static_cast<float>(static_cast<int8_t>(v.y >> b * 8));
      }
    } else if constexpr (Format<T>::superblock) {
      const int32_t shift = (index * 2 + (lane & 1)) * 4;
      const uint32_t tops = header.w >> shift;
      const uint32_t s = (header.y >> shift & 15) | (tops & 3) << 4, m = (header.z >> shift & 15) | (tops & 12) << 2;
      const float2 dd = half_pair(header.x);
      const float sf = dd.x * static_cast<float>(s), mf = -(dd.y * static_cast<float>(m));
      __syncwarp();
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(exchange + lane * 8), "f"(sf), "f"(mf) : "memory");
      __syncwarp();
#pragma unroll
      for (int32_t r = 0; r < 2; ++r) {
        const uint4 v = load_shared16(exchange + (g + r * 8) * 16);
        scale[r][0] = __uint_as_float(v.x);
        min[r][0] = __uint_as_float(v.y);
        scale[r][1] = __uint_as_float(v.z);
        min[r][1] = __uint_as_float(v.w);
      }
    } else if constexpr (Format<T>::has_min) {
      const uint4 v = load_shared16(at + g * 16);
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int32_t r = 0; r < 2; ++r) {
        const float2 s = half_pair(words[r]), m = half_pair(words[2 + r]);
        scale[r][0] = s.x;
        scale[r][1] = s.y;
        min[r][0] = m.x;
        min[r][1] = m.y;
      }
    } else if constexpr (!Format<T>::is_float) {
      const uint2 v = load_shared8(at + g * 8);
      const float2 s0 = half_pair(v.x), s1 = half_pair(v.y);
      scale[0][0] = s0.x;
      scale[0][1] = s0.y;
      scale[1][0] = s1.x;
      scale[1][1] = s1.y;
    }
  }
};

}  // namespace mr::cuda
