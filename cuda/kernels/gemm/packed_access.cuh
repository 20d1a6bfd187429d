// packed_access: the position of each field of a weight, in its file and packed. For repacking, unpacking and single
// rows; the GEMM kernels read fragments (fragment.cuh).
//
// Within a unit, lane l = 4g + t of a warp holds rows g and g + 8. In step s (16 inputs) its fragment register i = 0..3
// holds the inputs 16s + 8(i/2) + 2t and the next, of row g + 8(i%2).
#pragma once

#include <cstdint>

#include "kernels/gemm/weight.h"

namespace mr::cuda {

template <int32_t T>
struct Format {
  static constexpr WeightFormat f = weight_format(T);
  // Offsets within a group; u is the unit, if the plane has units.
  static constexpr int32_t group_bytes = f.group_bytes();
  static constexpr int32_t high_plane = f.high_at(0), scales_plane = f.scales_at(0), header_plane = f.header_at();
  __host__ __device__ static constexpr int32_t quants_at(int32_t u) { return u * f.quants; }
  __host__ __device__ static constexpr int32_t high_at(int32_t u) { return high_plane + u * f.high; }
  __host__ __device__ static constexpr int32_t scales_at(int32_t u) { return scales_plane + u * f.scales; }

  static constexpr bool is_float = f.block == 1;
  static constexpr bool nibbles = f.quants == 512;  // quants are 4 bits, with or without high bits
  static constexpr bool pairs = f.quants == 256;    // quants are 2 bits
  static constexpr int32_t high_bits = f.high / 128;
  static constexpr bool superblock = f.block == 256;
  static constexpr bool six_bits = T == kQ4_K || T == kQ5_K;                 // the scales and mins of its blocks of 32
  static constexpr bool sixteens = (superblock && !six_bits) || T == kNVFP4;  // a scale is of 16 inputs
  static constexpr bool has_min = T == kQ4_1 || T == kQ5_1 || T == kQ2_K || six_bits;
};

// Place is the position of an input of a row within a unit: row 0..15, k 0..63.
struct Place {
  int32_t lane, step, reg, half;
};

__device__ __forceinline__ Place place_of(int32_t row, int32_t k) {
  const int32_t within = k & 15;
  return Place{(row & 7) * 4 + ((within & 7) >> 1), k >> 4, (row >> 3) + 2 * (within >> 3), within & 1};
}

// Bytes from the start of the matrix to group `group` of the panel of `row`.
template <int32_t T>
__device__ __forceinline__ int64_t group_at(int64_t row, int64_t group, int64_t groups) {
  return (row / kPanelRows * groups + group) * Format<T>::group_bytes;
}

// Returns a pair of bits, at its place in a unit's plane of pairs.
__device__ __forceinline__ int32_t packed_pair(const uint8_t* plane, Place p) {
  const int32_t bit = ((p.step & 1) * 4 + p.reg) * 2 + p.half * 16;
  return plane[p.lane * 8 + (p.step >> 1) * 4 + bit / 8] >> bit % 8 & 3;
}

// Returns the low quant bits of a quantised type but Q6_K, at their place in a unit's quants plane.
template <int32_t T>
__device__ __forceinline__ int32_t packed_low(const uint8_t* plane, Place p) {
  if constexpr (Format<T>::pairs) {
    return packed_pair(plane, p);
  } else if constexpr (Format<T>::nibbles) {
    // One word for each step; its byte order is 2t, 2t+8, 2t+1, 2t+9; row g is in the low nibbles.
    const int32_t byte = p.lane * 16 + p.step * 4 + p.half * 2 + (p.reg >> 1);
    return plane[byte] >> (p.reg & 1) * 4 & 15;
  } else {
    const int32_t byte = (p.step >> 1) * 512 + p.lane * 16 + ((p.step & 1) * 2 + (p.reg & 1)) * 4 + (p.reg >> 1) * 2 + p.half;
    return plane[byte];
  }
}

// Returns the high quant bit of types that have one, at its place in a unit's plane.
__device__ __forceinline__ int32_t packed_high(const uint8_t* plane, Place p) {
  const int32_t bit = p.step * 4 + p.reg + p.half * 16;
  return plane[p.lane * 4 + bit / 8] >> bit % 8 & 1;
}

// Q6_K packs whole quants of six bits: of each step s two in word s of the quants plane, and one in word s / 2 of the high plane.
// A half of a word has, from bit 0 on, four bits of the fourth, and twice six. In the quants plane these are register 3's low
// bits, then registers 0 and 1; in the high plane register 3's two high bits of steps 2i and 2i + 1, then register 2 of these
// steps. Quants at bits 4 to 9 are where fragments have them.
__device__ __forceinline__ int32_t packed_six(const uint8_t* quants, const uint8_t* high, Place p) {
  const auto half_of = [&](const uint8_t* plane, int32_t word) {
    return static_cast<int32_t>(*reinterpret_cast<const uint16_t*>(plane + word * 4 + p.half * 2));
  };
  const int32_t own = half_of(quants, p.lane * 4 + p.step), other = half_of(high, p.lane * 2 + p.step / 2), odd = p.step % 2;
  switch (p.reg) {
    case 0: return own >> 4 & 63;
    case 1: return own >> 10;
    case 2: return other >> (odd == 0 ? 4 : 10) & 63;
    default: return (own & 15) | (other >> odd * 2 & 3) << 4;
  }
}

// Bytes from the start of a unit to a float weight.
template <int32_t T>
__device__ __forceinline__ int32_t float_at(Place p) {
  if constexpr (Format<T>::f.block_bytes == 2) {
    return p.step * 512 + p.lane * 16 + p.reg * 4 + p.half * 2;
  } else {
    return (p.step * 2 + (p.reg & 1)) * 512 + p.lane * 16 + (p.reg >> 1) * 8 + p.half * 4;
  }
}

// Bytes from the start of a unit's scales to the half of block b = 0, 1 of row 0..15; field 0 is d, 1 is m.
template <int32_t T>
__device__ __forceinline__ int32_t scale_at(int32_t row, int32_t b, int32_t field) {
  return (row & 7) * (Format<T>::f.scales / 8) + field * 8 + (row >> 3) * 4 + b * 2;
}

// Bytes from the start of a unit's scales to the exponent of block b = 0, 1 of row 0..15 (MXFP4).
__device__ __forceinline__ int32_t exponent_at(int32_t row, int32_t b) { return (row & 7) * 4 + (row >> 3) * 2 + b; }

// Bytes from the start of a unit's scales to the byte of 16 inputs, j = 0..3 (Q2_K, Q6_K, NVFP4, codes).
__device__ __forceinline__ int32_t scale16_at(int32_t row, int32_t j) { return (row & 7) * 8 + (row >> 3) * 4 + j; }

// Bytes from the start of the header to d of a row (Q6_K, codes), and to its d and dmin (Q2_K).
__device__ __forceinline__ int32_t header_d_at(int32_t row) { return (row & 7) * 4 + (row >> 3) * 2; }
__device__ __forceinline__ int32_t header_pair_at(int32_t row) { return (row & 7) * 8 + (row >> 3) * 4; }

// Bytes from the start of the header to the values and the power of two of codes (codes.cuh).
constexpr int32_t kCodebookAt = 32, kPowerAt = 48;

// Q4_K and Q5_K have six bits of scale and six of min for each block of 32. The packed header of a row is d, dmin, then
// three words with a nibble for each block: low bits of scales, low bits of mins, high bits of both (scale in bits 0
// and 1, min in 2 and 3).
__device__ __forceinline__ int32_t file_six_bits(const uint8_t* s, int32_t block, int32_t field) {
  const int32_t low = block & 3;
  if (block < 4) return s[field * 4 + low] & 63;
  return (s[8 + low] >> field * 4 & 15) | (s[field * 4 + low] >> 6) << 4;
}

__device__ __forceinline__ int32_t packed_six_bits(const uint32_t* words, int32_t block, int32_t field) {
  return (words[field] >> block * 4 & 15) | (words[2] >> (block * 4 + field * 2) & 3) << 4;
}

// FileQuant is where the quants of an input are in a block of the file: byte and shift of the low bits, and of the high
// bits.
struct FileQuant {
  int32_t low_byte, low_shift, high_byte, high_shift;
};

template <int32_t T>
__device__ __forceinline__ FileQuant file_quant(int32_t i) {
  if constexpr (T == kQ8_0) return {2 + i, 0, 0, 0};
  if constexpr (T == kQ4_0 || T == kIQ4_NL) return {2 + (i & 15), (i >> 4) * 4, 0, 0};
  if constexpr (T == kMXFP4) return {1 + (i & 15), (i >> 4) * 4, 0, 0};
  if constexpr (T == kNVFP4) return {4 + (i >> 4) * 8 + (i & 7), (i >> 3 & 1) * 4, 0, 0};
  if constexpr (T == kQ4_1) return {4 + (i & 15), (i >> 4) * 4, 0, 0};
  if constexpr (T == kQ5_0) return {6 + (i & 15), (i >> 4) * 4, 2 + (i >> 3), i & 7};
  if constexpr (T == kQ5_1) return {8 + (i & 15), (i >> 4) * 4, 4 + (i >> 3), i & 7};
  if constexpr (T == kQ2_K) return {16 + (i >> 7) * 32 + (i & 31), (i >> 5 & 3) * 2, 0, 0};
  if constexpr (T == kQ4_K) return {16 + (i >> 6) * 32 + (i & 31), (i >> 5 & 1) * 4, 0, 0};
  if constexpr (T == kQ5_K) return {48 + (i >> 6) * 32 + (i & 31), (i >> 5 & 1) * 4, 16 + (i & 31), i >> 5};
  if constexpr (T == kQ6_K) {
    const int32_t part = i >> 5 & 3, upper = i >> 7, l = i & 31;
    return {upper * 64 + (part & 1) * 32 + l, (part >> 1) * 4, 128 + upper * 32 + l, part * 2};
  }
  return {0, 0, 0, 0};
}

// Returns twice one of the sixteen values of MXFP4 and NVFP4, and half of the power of two that multiplies them (E8M0).
__device__ __forceinline__ int32_t mxfp4_value(int32_t index) {
  constexpr int8_t values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  return values[index];
}
__device__ __forceinline__ float mxfp4_scale(uint32_t exponent) {
  return __uint_as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
}

// Returns half of the scale that a byte of NVFP4 stands for: E4M3 without its sign bit, which is ignored. ggml reads 0x7f, a NaN of
// E4M3, as 0.
__device__ __forceinline__ float nvfp4_scale(uint32_t byte) {
  return byte == 0x7f ? 0.0f : __uint_as_float((byte & 0x7f) << 20) * 0x1p119f;
}

// Returns one of IQ4_NL's sixteen values.
__device__ __forceinline__ int32_t iq4_nl_value(int32_t index) {
  constexpr int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return values[index];
}

}  // namespace mr::cuda
