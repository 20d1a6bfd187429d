// fragment: converts a unit of packed weights in shared memory to the A fragments of its steps and the factors of their
// sums.
//
// A fragment holds the quants as integers (exact in f16 and bf16), or the float weights. To turn bits into a number
// they are put below the exponent of a power of two, the base, which is then subtracted together with the zero point.
// Types with mins keep the base, because their min, which is multiplied by the sum of x anyway, can be lowered by base
// * scale instead. Float weights that the multiplied type cannot hold become two terms.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

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
};

__device__ __forceinline__ uint32_t bits_of(__half2 v) { return *reinterpret_cast<uint32_t*>(&v); }
__device__ __forceinline__ uint32_t bits_of(__nv_bfloat162 v) { return *reinterpret_cast<uint32_t*>(&v); }

// Splits a pair into two bf16 terms whose sum has a relative error of 2^-16.
__device__ __forceinline__ void split_bf16(float low, float high, uint32_t& first, uint32_t& second) {
  const __nv_bfloat162 head = __floats2bfloat162_rn(low, high);
  first = bits_of(head);
  second = bits_of(__floats2bfloat162_rn(low - __low2float(head), high - __high2float(head)));
}

__device__ __forceinline__ void split_half2(uint32_t pair, uint32_t& first, uint32_t& second) {
  const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pair));
  split_bf16(v.x, v.y, first, second);
}

// a - b for two packed elements of type E.
template <class E>
__device__ __forceinline__ uint32_t minus(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<E, __half>) {
    return bits_of(__hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b)));
  } else {
    return bits_of(__hsub2(*reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b)));
  }
}

__host__ __device__ constexpr uint32_t twice(uint32_t half) { return half | half << 16; }

// Quants as E: their bits lie below the exponent of `base`, where bit `shift` counts as one. For f16 that is bit 4,
// where the upper nibbles of a word already are.
template <class E>
struct Magic {
  static constexpr bool f16 = std::is_same_v<E, __half>;
  static constexpr int32_t shift = f16 ? 4 : 0;
  static constexpr float base = f16 ? 64.0f : 128.0f;
  static constexpr uint32_t bits = twice(f16 ? 0x5400u : 0x4300u);
  // base + zero, as bits.
  template <int32_t zero>
  static constexpr uint32_t zero_bits = bits + twice(static_cast<uint32_t>(zero) << shift);
};

template <int32_t by>
__device__ __forceinline__ uint32_t shift_left(uint32_t v) {
  if constexpr (by >= 0) return v << by;
  else return v >> -by;
}

// Register i of base + q, from a word of nibbles and `width` high bits, which are at bit `at` and 16 bits higher.
template <class E, int32_t i, int32_t width, int32_t at>
__device__ __forceinline__ uint32_t raised(uint32_t w, uint32_t high) {
  constexpr int32_t shift = Magic<E>::shift;
  constexpr uint32_t mask = twice(0x0fu << shift), high_mask = twice((width == 1 ? 0x10u : 0x30u) << shift);
  uint32_t bits = Magic<E>::bits;
  if constexpr (width > 0) bits = and_or(shift_left<4 + shift - at>(high), high_mask, bits);
  return and_or(shift_left<shift - 4 * i>(w), mask, bits);
}

template <class E, int32_t width, int32_t zero, int32_t at>
__device__ __forceinline__ void from_nibbles(uint32_t w, uint32_t high, uint32_t (&a)[4]) {
  a[0] = raised<E, 0, width, at>(w, high);
  a[1] = raised<E, 1, width, at + width>(w, high);
  a[2] = raised<E, 2, width, at + 2 * width>(w, high);
  a[3] = raised<E, 3, width, at + 3 * width>(w, high);
  if constexpr (zero != 0) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) a[i] = minus<E>(a[i], Magic<E>::template zero_bits<zero>);
  }
}

// Bytes 2*pair and 2*pair + 1 of a word, each 128 above its value.
template <class E, int32_t pair>
__device__ __forceinline__ uint32_t from_bytes(uint32_t w) {
  if constexpr (std::is_same_v<E, __half>) {
    return minus<E>(__byte_perm(w, 0x64646464u, pair == 0 ? 0x4140u : 0x4342u), twice(0x6480u));
  } else {
    // Seven bits fit below the exponent of 128; the eighth selects between subtracting 128 and 256.
    const uint32_t v = __byte_perm(w, 0, pair == 0 ? 0x4140u : 0x4342u);
    return minus<E>(and_or(v, twice(0x7fu), twice(0x4300u)), andnot_or(v, twice(0x80u), twice(0x4300u)));
  }
}

// The values, each 128 above, for which the four nibbles in the low half of w stand. book: the sixteen values.
__device__ __forceinline__ uint32_t value_bytes(uint32_t w, const uint4& book) {
  const uint32_t index = w & 0x7777u;
  const uint32_t low = __byte_perm(book.x, book.y, index), high = __byte_perm(book.z, book.w, index);
  return __byte_perm(low, high, (w >> 1 & 0x4444u) | 0x3210u);
}

// UnitQuants makes the fragments of a unit's steps, as `count` terms: a[term][register]. E: the type that is
// multiplied.
template <int32_t T, class E, int32_t count>
struct UnitQuants {
  static constexpr WeightFormat f = Format<T>::f;
  uint32_t unit;  // address of the quants
  int32_t lane;
  uint4 words;  // nibbles: the four steps; bytes: two steps
  uint32_t high[2];  // high bits; Q2_K: all bits
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
  // Loads the values of a group's header that its units use. Must be called before the first step.
  template <class Header>
  __device__ __forceinline__ void use(const Header& header) {
    if constexpr (T == kCodes) book = header.words;
  }

  // Unpacks one step. Steps must be unpacked in ascending order.
  template <int32_t step>
  __device__ __forceinline__ void take(uint32_t (&a)[count][4]) {
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
      if constexpr (step % 2 == 0) words = load_shared16(unit + step / 2 * 512 + lane * 16);
      const uint32_t g = step % 2 == 0 ? words.x : words.z, g8 = step % 2 == 0 ? words.y : words.w;
      a[0][0] = from_bytes<E, 0>(g);
      a[0][1] = from_bytes<E, 0>(g8);
      a[0][2] = from_bytes<E, 1>(g);
      a[0][3] = from_bytes<E, 1>(g8);
    } else if constexpr (Format<T>::pairs) {
      constexpr int32_t shift = Magic<E>::shift, at = step % 2 * 8;
      const uint32_t pairs = high[step / 2], mask = twice(3u << shift), bits = Magic<E>::bits;
      a[0][0] = minus<E>(and_or(shift_left<shift - at>(pairs), mask, bits), bits);
      a[0][1] = minus<E>(and_or(shift_left<shift - at - 2>(pairs), mask, bits), bits);
      a[0][2] = minus<E>(and_or(shift_left<shift - at - 4>(pairs), mask, bits), bits);
      a[0][3] = minus<E>(and_or(shift_left<shift - at - 6>(pairs), mask, bits), bits);
    } else {
      const uint32_t w = step == 0 ? words.x : step == 1 ? words.y : step == 2 ? words.z : words.w;
      if constexpr (T == kIQ4_NL || T == kMXFP4 || T == kCodes) {
        if constexpr (T == kMXFP4) book = make_uint4(0x83828180u, 0x8c888684u, 0x7d7e7f80u, 0x74787a7cu);
        if constexpr (T == kIQ4_NL) book = make_uint4(0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u);
        const uint32_t even = value_bytes(w, book), odd = value_bytes(w >> 16, book);
        const uint32_t near = __byte_perm(even, odd, 0x5140), far = __byte_perm(even, odd, 0x7362);
        a[0][0] = from_bytes<E, 0>(near);
        a[0][1] = from_bytes<E, 1>(near);
        a[0][2] = from_bytes<E, 0>(far);
        a[0][3] = from_bytes<E, 1>(far);
      } else {
        constexpr int32_t zero = T == kQ4_0 ? 8 : T == kQ5_0 ? 16 : T == kQ6_K ? 32 : 0;
        constexpr int32_t width = Format<T>::high_bits;
        from_nibbles<E, width, zero, step * width * 4 % 16>(w, high[step * width / 4], a[0]);
      }
    }
  }
};

__device__ __forceinline__ float2 half_pair(uint32_t v) { return __half22float2(*reinterpret_cast<__half2*>(&v)); }

// GroupHeader is the header of a group in a warp's registers, from its first unit to its last. For Q4_K and Q5_K lane l
// holds row l/2 and computes block l%2 of a unit for the whole warp.
template <int32_t T, class E>
struct GroupHeader {
  static constexpr float base = Magic<E>::base;
  uint4 words;         // Q4_K, Q5_K; of codes the codebook
  float d[2], dmin[2];  // types with scales of 16 inputs: of rows g and g + 8; dmin is negative

  __device__ __forceinline__ void load(uint32_t address, int32_t lane) {
    if constexpr (T == kQ2_K) {
      const uint2 v = load_shared8(address + (lane >> 2) * 8);
      const float2 g = half_pair(v.x), g8 = half_pair(v.y);
      d[0] = g.x;
      d[1] = g8.x;
      dmin[0] = -g.y;
      dmin[1] = -g8.y;
    } else if constexpr (Format<T>::sixteens) {
      const float2 v = half_pair(load_shared4(address + (lane >> 2) * 4));
      d[0] = v.x;
      d[1] = v.y;
      if constexpr (T == kCodes) {
        const float power = __uint_as_float(load_shared4(address + kPowerAt));
        words = load_shared16(address + kCodebookAt);
        d[0] *= power;
        d[1] *= power;
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
      const float scale = dd.x * static_cast<float>(s), min = fmaf(-base, scale, -(dd.y * static_cast<float>(m)));
      store_shared8(to + i * 256 + lane * 8, make_uint2(__float_as_uint(scale), __float_as_uint(min)));
    }
  }
};

// UnitScales are the factors of one unit's block sums, for rows g and g + 8 of a lane.
//   scale[r][b]: blocks of 32 (b = 0, 1), or of 16 (b = 0..3)
//   min[r][b]: times the block's sum of x; of blocks of 32 it includes what removes the fragments' base
template <int32_t T, class E>
struct UnitScales {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t blocks = Format<T>::sixteens ? 4 : 2;
  static constexpr float base = Magic<E>::base;
  float scale[2][blocks], min[2][Format<T>::has_min ? blocks : 1];

  // scales: address of the unit's scales, or of what publish() wrote.
  __device__ __forceinline__ void load(uint32_t scales, const GroupHeader<T, E>& header, int32_t lane) {
    const int32_t g = lane >> 2;
    if constexpr (T == kQ2_K) {
      const uint2 v = load_shared8(scales + g * 8);
      const uint32_t words[2] = {v.x, v.y};
#pragma unroll
      for (int32_t r = 0; r < 2; ++r) {
#pragma unroll
        for (int32_t b = 0; b < 4; ++b) {
          scale[r][b] = header.d[r] * static_cast<float>(words[r] >> b * 8 & 15);
          min[r][b] = header.dmin[r] * static_cast<float>(words[r] >> (b * 8 + 4) & 15);
        }
      }
    } else if constexpr (Format<T>::sixteens) {
      const uint2 v = load_shared8(scales + g * 8);
#pragma unroll
      for (int32_t b = 0; b < 4; ++b) {
        scale[0][b] = header.d[0] * static_cast<float>(static_cast<int8_t>(v.x >> b * 8));
        scale[1][b] = header.d[1] * static_cast<float>(static_cast<int8_t>(v.y >> b * 8));
      }
    } else if constexpr (Format<T>::superblock) {
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
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int32_t r = 0; r < 2; ++r) {
        const float2 s = half_pair(words[r]), m = half_pair(words[2 + r]);
        scale[r][0] = s.x;
        scale[r][1] = s.y;
        min[r][0] = fmaf(-base, s.x, m.x);
        min[r][1] = fmaf(-base, s.y, m.y);
      }
    } else if constexpr (T == kMXFP4) {
      const uint32_t v = load_shared4(scales + exponent_at(g, 0));
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) scale[i / 2][i % 2] = mxfp4_scale(v >> i * 8 & 255);
    } else if constexpr (!Format<T>::is_float) {
      const uint2 v = load_shared8(scales + g * 8);
      const float2 s0 = half_pair(v.x), s1 = half_pair(v.y);
      scale[0][0] = s0.x;
      scale[0][1] = s0.y;
      scale[1][0] = s1.x;
      scale[1][1] = s1.y;
    }
  }
};

}  // namespace mr::cuda
