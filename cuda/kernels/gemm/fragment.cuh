// fragment: converts a unit of packed weights in shared memory to the A fragments of its steps.
//
// A fragment of quantised weights holds them as f16: scale * quant + min, rounded once. To turn the bits of a quant into a
// number they are put below the exponent of a power of two, the base, which is then subtracted together with the zero
// point. What follows keeps every bit until the rounding:
//
//   Q8_0, Q4_0, Q5_0, IQ4_NL   quant * d: both are f16 numbers, and one product rounds
//   MXFP4                      the bits of a quant are the sign, exponent and top mantissa bit of an f16 number, which is 2^-14 of its
//                              value; two powers of two multiply it. Exact if half of the block's power of two is from 2^-24 to
//                              2^15. Below, a block becomes zeros; above, its row fails
//   NVFP4                      as MXFP4; 2^14 and the scale multiply it. Exact: of six bits, from 2^-10 to 2880
//   Q4_1, Q5_1                 quant * d + m, by one fma
//   Q6_K, codes                quant * scale * d: the first product is an integer (of codes times their power of two), exact
//                              up to 2048 and else even
//   Q2_K                       quant * scale * d + min: the first product is an integer, and the min is rounded before
//   prefill: Q4_K, Q5_K        scale and min in f32, quant * scale + min by one fma in f32
//
// Decode kernels multiply Q4_K and Q5_K otherwise (folded.cuh). Float weights that the multiplied type cannot hold become
// two terms in decode kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/act.cuh"
#include "kernels/gemm/packed_access.cuh"
#include "kernels/instructions.cuh"

namespace mr::cuda {

// OperandSplit is the type in which weights of type T and activations of type A are multiplied, and the terms of each.
template <int32_t T, class A>
struct OperandSplit {
  static constexpr bool f16_act = std::is_same_v<A, __half>;
  static constexpr bool wide = T == kF32 || (T == kBF16 && f16_act) || (T == kF16 && !f16_act);
  using Element = std::conditional_t<wide, __nv_bfloat16, A>;
  static constexpr int32_t weights = T == kF32 || (T == kF16 && !f16_act) ? 2 : 1;
  static constexpr int32_t inputs = wide && f16_act ? 2 : 1;
  static constexpr bool single = weights == 1 && inputs == 1;  // one term each
};

__device__ __forceinline__ uint32_t bits_of(__half2 v) { return *reinterpret_cast<uint32_t*>(&v); }
__device__ __forceinline__ uint32_t bits_of(__nv_bfloat162 v) { return *reinterpret_cast<uint32_t*>(&v); }
__device__ __forceinline__ __half2 halves_of(uint32_t v) { return *reinterpret_cast<__half2*>(&v); }
__device__ __forceinline__ float2 half_pair(uint32_t v) { return __half22float2(halves_of(v)); }

// Splits a pair into two bf16 terms whose sum has a relative error of 2^-16.
__device__ __forceinline__ void split_bf16(float low, float high, uint32_t& first, uint32_t& second) {
  const __nv_bfloat162 head = __floats2bfloat162_rn(low, high);
  first = bits_of(head);
  second = bits_of(__floats2bfloat162_rn(low - __low2float(head), high - __high2float(head)));
}

__device__ __forceinline__ void split_half2(uint32_t pair, uint32_t& first, uint32_t& second) {
  const float2 v = half_pair(pair);
  split_bf16(v.x, v.y, first, second);
}

// For two packed f16 numbers: a - b, a * b and a * b + c, each rounded once.
__device__ __forceinline__ uint32_t minus(uint32_t a, uint32_t b) { return bits_of(__hsub2(halves_of(a), halves_of(b))); }
__device__ __forceinline__ uint32_t times(uint32_t a, uint32_t b) { return bits_of(__hmul2(halves_of(a), halves_of(b))); }
__device__ __forceinline__ uint32_t times_plus(uint32_t a, uint32_t b, uint32_t c) {
  return bits_of(__hfma2(halves_of(a), halves_of(b), halves_of(c)));
}

__host__ __device__ constexpr uint32_t twice(uint32_t half) { return half | half << 16; }

// The low half of a word in both halves, and the high half.
__device__ __forceinline__ uint32_t low_twice(uint32_t v) { return __byte_perm(v, 0, 0x1010); }
__device__ __forceinline__ uint32_t high_twice(uint32_t v) { return __byte_perm(v, 0, 0x3232); }

// The bits of a quant lie below the exponent of the base, 64, where bit 4 of a half counts as one: the upper nibbles of a
// word are there already.
constexpr int32_t kQuantShift = 4;
constexpr float kQuantBase = 64.0f;
constexpr uint32_t kQuantBits = twice(0x5400u);
// base + zero, as bits.
template <int32_t zero>
constexpr uint32_t kZeroBits = kQuantBits + twice(static_cast<uint32_t>(zero) << kQuantShift);

template <int32_t by>
__device__ __forceinline__ uint32_t shift_left(uint32_t v) {
  if constexpr (by >= 0) return v << by;
  else return v >> -by;
}

// Register i of base + quant, from a word of nibbles and, if width is 1, high bits, which are at bit `at` and 16 bits higher.
template <int32_t i, int32_t width, int32_t at>
__device__ __forceinline__ uint32_t raised(uint32_t w, uint32_t high) {
  constexpr uint32_t mask = twice(0x0fu << kQuantShift), high_mask = twice(0x10u << kQuantShift);
  uint32_t bits = kQuantBits;
  if constexpr (width > 0) bits = and_or(shift_left<4 + kQuantShift - at>(high), high_mask, bits);
  return and_or(shift_left<kQuantShift - 4 * i>(w), mask, bits);
}

// Bytes 2*pair and 2*pair + 1 of a word, each 128 above its value.
template <int32_t pair>
__device__ __forceinline__ uint32_t from_bytes(uint32_t w) {
  return minus(__byte_perm(w, 0x64646464u, pair == 0 ? 0x4140u : 0x4342u), twice(0x6480u));
}

// The values, each 128 above, for which the four nibbles in the low half of w stand. book: the sixteen values.
__device__ __forceinline__ uint32_t value_bytes(uint32_t w, const uint4& book) {
  const uint32_t index = w & 0x7777u;
  const uint32_t low = __byte_perm(book.x, book.y, index), high = __byte_perm(book.z, book.w, index);
  return __byte_perm(low, high, (w >> 1 & 0x4444u) | 0x3210u);
}

// Loads the fragment of a step of float weights of two bytes as they are.
__device__ __forceinline__ void load_fragment(uint32_t (&a)[4], uint32_t unit, int32_t step, int32_t lane) {
  const uint4 v = load_shared16(unit + step * 512 + lane * 16);
  a[0] = v.x;
  a[1] = v.y;
  a[2] = v.z;
  a[3] = v.w;
}

// Calls put(register, low, high) for the pairs of a step of F32 weights.
template <class Put>
__device__ __forceinline__ void for_floats(uint32_t unit, int32_t step, int32_t lane, Put&& put) {
  const uint4 g = load_shared16(unit + step * 1024 + lane * 16), g8 = load_shared16(unit + step * 1024 + 512 + lane * 16);
  put(0, __uint_as_float(g.x), __uint_as_float(g.y));
  put(1, __uint_as_float(g8.x), __uint_as_float(g8.y));
  put(2, __uint_as_float(g.z), __uint_as_float(g.w));
  put(3, __uint_as_float(g8.z), __uint_as_float(g8.w));
}

// Loads the fragments of a step of float weights as `count` terms: a[term][register].
template <int32_t T, int32_t count>
__device__ __forceinline__ void load_terms(uint32_t (&a)[count][4], uint32_t unit, int32_t step, int32_t lane) {
  if constexpr (T == kF32) {
    for_floats(unit, step, lane, [&](int32_t i, float low, float high) { split_bf16(low, high, a[0][i], a[1][i]); });
  } else {
    load_fragment(a[0], unit, step, lane);
    if constexpr (count == 2) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) split_half2(a[0][i], a[0][i], a[1][i]);
    }
  }
}

// Makes the fragment of a step of float weights, rounded to the activation type if they are of another.
template <int32_t T, class A>
__device__ __forceinline__ void load_rounded(uint32_t (&a)[4], uint32_t unit, int32_t step, int32_t lane) {
  if constexpr (T == kF32) {
    for_floats(unit, step, lane, [&](int32_t i, float low, float high) { a[i] = ActOps<A>::pack(low, high); });
  } else {
    load_fragment(a, unit, step, lane);
    if constexpr (T == kF16 && std::is_same_v<A, __nv_bfloat16>) {
#pragma unroll
      for (uint32_t& pair : a) pair = ActOps<A>::pack(half_pair(pair).x, half_pair(pair).y);
    } else if constexpr (T == kBF16 && std::is_same_v<A, __half>) {
#pragma unroll
      for (uint32_t& pair : a) pair = ActOps<A>::pack(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
    }
  }
}

// UnitQuants turns the quants of a unit's steps into f16 numbers.
template <int32_t T>
struct UnitQuants {
  static constexpr WeightFormat f = Format<T>::f;
  // Whether take() leaves the base, and in Q6_K the zero point, to the multiplication by the scale.
  static constexpr bool raises = T == kQ6_K || Format<T>::pairs || Format<T>::six_bits;
  uint32_t unit;  // address of the quants
  int32_t lane;
  uint4 words;  // nibbles, and most of Q6_K: the four steps; bytes: two steps
  uint32_t high[2];  // high bits; Q2_K: all bits; Q6_K: the other quants
  uint4 book;        // of codes

  // Takes the shared memory addresses of the unit's quants and high plane.
  __device__ __forceinline__ void begin(uint32_t quants_address, uint32_t high_address, int32_t lane_id) {
    unit = quants_address;
    lane = lane_id;
    if constexpr (Format<T>::nibbles) words = load_shared16(unit + lane * 16);
    if constexpr (Format<T>::high_bits == 1) high[0] = load_shared4(high_address + lane * 4);
    if constexpr (Format<T>::high_bits == 2 || Format<T>::pairs) {
      const uint2 v = load_shared8((Format<T>::pairs ? unit : high_address) + lane * 8);
      high[0] = v.x;
      high[1] = v.y;
    }
  }
  // Takes the values of a group's header that its units use. Must be called before the first step.
  template <class Header>
  __device__ __forceinline__ void use(const Header& header) {
    if constexpr (T == kCodes) book = header.words;
    if constexpr (T == kIQ4_NL) book = make_uint4(0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u);
  }

  // Unpacks one step. Steps must be unpacked in ascending order.
  template <int32_t step>
  __device__ __forceinline__ void take(uint32_t (&a)[4]) {
    if constexpr (T == kQ8_0) {
      if constexpr (step % 2 == 0) words = load_shared16(unit + step / 2 * 512 + lane * 16);
      const uint32_t g = step % 2 == 0 ? words.x : words.z, g8 = step % 2 == 0 ? words.y : words.w;
      a[0] = from_bytes<0>(g);
      a[1] = from_bytes<0>(g8);
      a[2] = from_bytes<1>(g);
      a[3] = from_bytes<1>(g8);
    } else if constexpr (Format<T>::pairs) {
      constexpr int32_t at = step % 2 * 8;
      const uint32_t pairs = high[step / 2], mask = twice(3u << kQuantShift), bits = kQuantBits;
      a[0] = and_or(shift_left<kQuantShift - at>(pairs), mask, bits);
      a[1] = and_or(shift_left<kQuantShift - at - 2>(pairs), mask, bits);
      a[2] = and_or(shift_left<kQuantShift - at - 4>(pairs), mask, bits);
      a[3] = and_or(shift_left<kQuantShift - at - 6>(pairs), mask, bits);
    } else {
      const uint32_t w = step == 0 ? words.x : step == 1 ? words.y : step == 2 ? words.z : words.w;
      if constexpr (T == kMXFP4 || T == kNVFP4) {
        // The sign and the other three bits of a nibble go to places three bits apart. A nibble's neighbours are zero, so neither
        // shift moves other bits to a place that is kept. and_or, because the compiler would mask after each shift instead.
        constexpr uint32_t kept = twice(0x8e00u);
        const uint32_t even = and_or(w, 0x0f0f0f0fu, 0), odd = and_or(w, 0xf0f0f0f0u, 0);
        a[0] = (even << 12 | even << 9) & kept;
        a[1] = (odd << 8 | odd << 5) & kept;
        a[2] = (even << 4 | even << 1) & kept;
        a[3] = (odd | odd >> 3) & kept;
      } else if constexpr (T == kQ6_K) {
        constexpr uint32_t whole = twice(0x3fu << kQuantShift), low = twice(0x0fu << kQuantShift), top = twice(0x30u << kQuantShift);
        const uint32_t other = high[step / 2];
        a[0] = and_or(w, whole, kQuantBits);
        a[1] = and_or(w >> 6, whole, kQuantBits);
        a[2] = and_or(step % 2 == 0 ? other : other >> 6, whole, kQuantBits);
        a[3] = and_or(w << kQuantShift, low, and_or(other << (step % 2 == 0 ? 8 : 6), top, kQuantBits));
      } else if constexpr (T == kIQ4_NL || T == kCodes) {
        const uint32_t even = value_bytes(w, book), odd = value_bytes(w >> 16, book);
        const uint32_t near = __byte_perm(even, odd, 0x5140), far = __byte_perm(even, odd, 0x7362);
        a[0] = from_bytes<0>(near);
        a[1] = from_bytes<1>(near);
        a[2] = from_bytes<0>(far);
        a[3] = from_bytes<1>(far);
      } else {
        constexpr int32_t zero = T == kQ4_0 ? 8 : T == kQ5_0 ? 16 : 0, width = Format<T>::high_bits, at = step * 4;
        a[0] = raised<0, width, at>(w, high[0]);
        a[1] = raised<1, width, at + 1>(w, high[0]);
        a[2] = raised<2, width, at + 2>(w, high[0]);
        a[3] = raised<3, width, at + 3>(w, high[0]);
        if constexpr (!raises) {
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) a[i] = minus(a[i], kZeroBits<zero>);
        }
      }
    }
  }
};

// GroupHeader is the header of a group in a warp's registers, from its first unit to its last. For Q4_K and Q5_K lane l
// holds row l/2 and computes block l%2 of a unit for the whole warp.
template <int32_t T>
struct GroupHeader {
  uint4 words;              // Q4_K, Q5_K; of codes the codebook
  uint32_t d[2], dmin[2];   // of rows g and g + 8, in both halves; dmin (Q2_K) is negative
  uint32_t power, less;     // of codes: their power of two and -1152 times it, in both halves

  __device__ __forceinline__ void load(uint32_t address, int32_t lane) {
    if constexpr (T == kQ2_K) {
      const uint2 v = load_shared8(address + (lane >> 2) * 8);
      d[0] = low_twice(v.x);
      d[1] = low_twice(v.y);
      dmin[0] = high_twice(v.x) ^ twice(0x8000u);
      dmin[1] = high_twice(v.y) ^ twice(0x8000u);
    } else if constexpr (Format<T>::superblock && Format<T>::sixteens) {
      const uint32_t v = load_shared4(address + (lane >> 2) * 4);
      d[0] = low_twice(v);
      d[1] = high_twice(v);
      if constexpr (T == kCodes) {
        words = load_shared16(address + kCodebookAt);
        power = bits_of(__float2half2_rn(__uint_as_float(load_shared4(address + kPowerAt))));
        less = times(power, twice(0xe480u));
      }
    } else if constexpr (Format<T>::superblock) {
      words = load_shared16(address + (lane >> 1) * 16);
    }
  }

  // Writes the scale and the lowered min of blocks 8i..8i+1 (i < units) to 256 bytes each from `to` on; first: the
  // unit's index in the group. The warp must synchronise before it loads them.
  template <int32_t units>
  __device__ __forceinline__ void publish(uint32_t to, int32_t first, int32_t lane) const {
    const float2 dd = half_pair(words.x);
    const int32_t shift = (first * 2 + (lane & 1)) * 4;
    const uint32_t low = words.y >> shift, min_low = words.z >> shift, tops = words.w >> shift;
#pragma unroll
    for (int32_t i = 0; i < units; ++i) {
      const uint32_t t = tops >> i * 8, s = (low >> i * 8 & 15) | (t << 4 & 0x30), m = (min_low >> i * 8 & 15) | (t << 2 & 0x30);
      const float scale = dd.x * static_cast<float>(s), min = fmaf(-kQuantBase, scale, -(dd.y * static_cast<float>(m)));
      store_shared8(to + i * 256 + lane * 8, make_uint2(__float_as_uint(scale), __float_as_uint(min)));
    }
  }
};

// 2^(exponent - 113), in both halves, as two factors, because normal numbers of f16 have 30 powers of two: mostly small_power is
// 2^(exponent - 118) and large_power 2^5.
__device__ __forceinline__ uint32_t small_power(int32_t exponent) {
  return static_cast<uint32_t>(max(min(exponent - 103, 30), 0)) * twice(0x0400u);
}
__device__ __forceinline__ uint32_t large_power(int32_t exponent) {
  return static_cast<uint32_t>(min(max(exponent - 133, 0) + 20, 31)) * twice(0x0400u);
}

// UnitScales are the scales and mins of one unit's blocks, for rows g and g + 8 of a lane: of blocks of 32 inputs
// (b = 0, 1), or of 16 (b = 0..3).
template <int32_t T>
struct UnitScales {
  static constexpr int32_t blocks = Format<T>::sixteens ? 4 : 2;
  using Number = std::conditional_t<Format<T>::six_bits, float, uint32_t>;  // uint32_t: f16 in both halves
  Number scale[2][blocks], min[2][Format<T>::has_min ? blocks : 1];
  uint32_t d[2];  // of blocks of 16, whose scales are integers
  uint32_t power[2][T == kMXFP4 ? 2 : 1];  // multiplies before scale does

  // scales: address of the unit's scales, or of what publish() wrote.
  __device__ __forceinline__ void load(uint32_t scales, const GroupHeader<T>& header, int32_t lane) {
    const int32_t g = lane >> 2;
    if constexpr (Format<T>::sixteens) {
      const uint2 v = load_shared8(scales + g * 8);
      const uint32_t words[2] = {v.x, v.y};
#pragma unroll
      for (int32_t r = 0; r < 2; ++r) {
        if constexpr (Format<T>::superblock) d[r] = header.d[r];
#pragma unroll
        for (int32_t b = 0; b < 4; ++b) {
          if constexpr (T == kQ2_K) {
            scale[r][b] = minus(above_1024(words[r] & 0x0f0f0f0fu, b), twice(0x6400u));
            min[r][b] = times(minus(above_1024(words[r] >> 4 & 0x0f0f0f0fu, b), twice(0x6400u)), header.dmin[r]);
          } else if constexpr (T == kNVFP4) {  // E4M3 is an f16 number without its last bits, 2^-8 of its value
            const uint32_t byte = words[r] >> b * 8 & 255;
            scale[r][b] = times(byte == 0x7f ? 0 : (byte & 0x7f) * twice(0x0080u), twice(0x5c00u));
          } else {  // a signed byte: with its top bit turned it is 128 above
            const uint32_t above = above_1024(words[r] ^ 0x80808080u, b);
            scale[r][b] = T == kCodes ? times_plus(above, header.power, header.less) : minus(above, twice(0x6480u));
          }
        }
      }
    } else if constexpr (Format<T>::six_bits) {
#pragma unroll
      for (int32_t r = 0; r < 2; ++r) {
        const uint4 v = load_shared16(scales + (g + r * 8) * 16);
        scale[r][0] = __uint_as_float(v.x);
        min[r][0] = __uint_as_float(v.y);
        scale[r][1] = __uint_as_float(v.z);
        min[r][1] = __uint_as_float(v.w);
      }
    } else if constexpr (Format<T>::has_min) {
      const uint4 v = load_shared16(scales + g * 16);
      put(scale, v.x, v.y);
      put(min, v.z, v.w);
    } else if constexpr (T == kMXFP4) {
      const uint32_t v = load_shared4(scales + exponent_at(g, 0));
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const auto exponent = static_cast<int32_t>(v >> i * 8 & 255);
        scale[i / 2][i % 2] = small_power(exponent);
        power[i / 2][i % 2] = large_power(exponent);
      }
    } else {
      const uint2 v = load_shared8(scales + g * 8);
      put(scale, v.x, v.y);
    }
  }

  // Turns the quants of a step into weights.
  template <int32_t step>
  __device__ __forceinline__ void apply(uint32_t (&a)[4]) const {
    constexpr int32_t b = blocks == 4 ? step : step / 2;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t r = i % 2;
      if constexpr (Format<T>::six_bits) {
        const float2 quants = half_pair(a[i]);
        a[i] = bits_of(__floats2half2_rn(fmaf(scale[r][b], quants.x, min[r][b]), fmaf(scale[r][b], quants.y, min[r][b])));
      } else if constexpr (T == kQ6_K) {  // 96 is the base and the zero point
        a[i] = times(times_plus(a[i], scale[r][b], times(scale[r][b], twice(0xd600u))), d[r]);
      } else if constexpr (T == kQ2_K) {  // 64 is the base
        a[i] = times_plus(times_plus(a[i], scale[r][b], times(scale[r][b], twice(0xd400u))), d[r], min[r][b]);
      } else if constexpr (T == kCodes) {
        a[i] = times(times(a[i], scale[r][b]), d[r]);
      } else if constexpr (T == kNVFP4) {
        a[i] = times(times(a[i], twice(0x7400u)), scale[r][b]);
      } else if constexpr (T == kMXFP4) {
        a[i] = times(times(a[i], power[r][b]), scale[r][b]);
      } else if constexpr (Format<T>::has_min) {
        a[i] = times_plus(a[i], scale[r][b], min[r][b]);
      } else {
        a[i] = times(a[i], scale[r][b]);
      }
    }
  }

 private:
  // 1024 plus a byte of a word, in both halves.
  __device__ __forceinline__ static uint32_t above_1024(uint32_t word, int32_t byte) {
    return __byte_perm(word, 0x64646464u, 0x4040u + byte * 0x0101u);
  }

  // g, g8: two halves of a row each, for blocks 0 and 1.
  __device__ __forceinline__ static void put(uint32_t (&to)[2][2], uint32_t g, uint32_t g8) {
    to[0][0] = low_twice(g);
    to[0][1] = high_twice(g);
    to[1][0] = low_twice(g8);
    to[1][1] = high_twice(g8);
  }
};

// RoundedUnit makes the fragments of one unit of quantised weights.
template <int32_t T>
struct RoundedUnit {
  UnitQuants<T> quants;
  UnitScales<T> scales;

  // Takes the addresses of the unit's planes; scales_address: as UnitScales::load takes it.
  __device__ __forceinline__ void begin(uint32_t quants_address, uint32_t high_address, uint32_t scales_address,
                                        const GroupHeader<T>& header, int32_t lane) {
    quants.begin(quants_address, high_address, lane);
    scale(scales_address, header, lane);
  }
  // The part of begin() that needs the header.
  __device__ __forceinline__ void scale(uint32_t scales_address, const GroupHeader<T>& header, int32_t lane) {
    quants.use(header);
    scales.load(scales_address, header, lane);
  }

  template <int32_t step>
  __device__ __forceinline__ void take(uint32_t (&a)[4]) {
    quants.template take<step>(a);
    scales.template apply<step>(a);
  }
  __device__ __forceinline__ void take_all(uint32_t (&a)[4][4]) {
    take<0>(a[0]);
    take<1>(a[1]);
    take<2>(a[2]);
    take<3>(a[3]);
  }
};

}  // namespace mr::cuda
