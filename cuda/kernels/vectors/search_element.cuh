// search_element: loads elements of rows as floats, which represent them exactly, one at a time or eight at once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "millrace/vectors.h"

namespace mr::cuda {

__device__ __forceinline__ float bf16_float(uint32_t bits) { return __uint_as_float(bits << 16); }

__device__ __forceinline__ float f16_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

template <int32_t type>
__device__ __forceinline__ float load_element(const void* rows, int64_t i) {
  if constexpr (type == MR_VECTOR_F32) return static_cast<const float*>(rows)[i];
  else if constexpr (type == MR_VECTOR_F16) return f16_float(static_cast<const uint16_t*>(rows)[i]);
  else if constexpr (type == MR_VECTOR_BF16) return bf16_float(static_cast<const uint16_t*>(rows)[i]);
  else if constexpr (type == MR_VECTOR_U8) return static_cast<float>(static_cast<const uint8_t*>(rows)[i]);
  else return static_cast<float>(static_cast<const int8_t*>(rows)[i]);
}

__device__ __forceinline__ float load_element(const void* rows, int32_t type, int64_t i) {
  switch (type) {
    case MR_VECTOR_F32: return load_element<MR_VECTOR_F32>(rows, i);
    case MR_VECTOR_F16: return load_element<MR_VECTOR_F16>(rows, i);
    case MR_VECTOR_BF16: return load_element<MR_VECTOR_BF16>(rows, i);
    case MR_VECTOR_U8: return load_element<MR_VECTOR_U8>(rows, i);
    default: return load_element<MR_VECTOR_I8>(rows, i);
  }
}

// Piece is eight elements as they are in memory.
struct Piece {
  uint4 low, high;  // high: of float32 alone
};

// vector: they are aligned to their total size. columns (1 .. 8): elements that exist; the others count as zeros.
__device__ __forceinline__ Piece load_piece(const void* rows, int32_t type, int64_t i, int32_t columns, bool vector) {
  Piece p{make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
  if (vector && columns == 8) {
    if (type == MR_VECTOR_F32) {
      const uint4* const at = reinterpret_cast<const uint4*>(static_cast<const float*>(rows) + i);
      p.low = at[0];
      p.high = at[1];
    } else if (type == MR_VECTOR_F16 || type == MR_VECTOR_BF16) {
      p.low = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(rows) + i);
    } else {
      const uint2 v = *reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(rows) + i);
      p.low.x = v.x;
      p.low.y = v.y;
    }
    return p;
  }
  uint32_t word[8] = {};
#pragma unroll
  for (int32_t j = 0; j < 8; ++j) {
    if (j >= columns) continue;
    if (type == MR_VECTOR_F32) {
      word[j] = static_cast<const uint32_t*>(rows)[i + j];
    } else if (type == MR_VECTOR_F16 || type == MR_VECTOR_BF16) {
      word[j / 2] |= uint32_t{static_cast<const uint16_t*>(rows)[i + j]} << (j % 2 * 16);
    } else {
      word[j / 4] |= uint32_t{static_cast<const uint8_t*>(rows)[i + j]} << (j % 4 * 8);
    }
  }
  p.low = make_uint4(word[0], word[1], word[2], word[3]);
  p.high = make_uint4(word[4], word[5], word[6], word[7]);
  return p;
}

__device__ __forceinline__ void piece_floats(const Piece& p, int32_t type, float (&v)[8]) {
  const uint32_t word[8] = {p.low.x, p.low.y, p.low.z, p.low.w, p.high.x, p.high.y, p.high.z, p.high.w};
#pragma unroll
  for (int32_t j = 0; j < 8; ++j) {
    if (type == MR_VECTOR_F32) v[j] = __uint_as_float(word[j]);
    else if (type == MR_VECTOR_F16) v[j] = f16_float(static_cast<uint16_t>(word[j / 2] >> (j % 2 * 16)));
    else if (type == MR_VECTOR_BF16) v[j] = j % 2 == 0 ? bf16_float(word[j / 2]) : __uint_as_float(word[j / 2] & 0xffff0000u);
    else if (type == MR_VECTOR_U8) v[j] = static_cast<float>(word[j / 4] >> (j % 4 * 8) & 0xffu);
    else v[j] = static_cast<float>(static_cast<int32_t>(word[j / 4] << (24 - j % 4 * 8)) >> 24);
  }
}

// Loads eight float32 values, of which `columns` exist.
__device__ __forceinline__ void load_floats(const float* at, int32_t columns, bool vector, float (&v)[8]) {
  if (vector && columns == 8) {
    const float4 a = reinterpret_cast<const float4*>(at)[0], b = reinterpret_cast<const float4*>(at)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    return;
  }
#pragma unroll
  for (int32_t j = 0; j < 8; ++j) v[j] = j < columns ? at[j] : 0.0f;
}

// Two floats rounded to bf16, the first in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float a, float b) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return bits;
}

// Removes the first bf16 term of eight floats from v and returns it.
__device__ __forceinline__ uint4 take_term(float (&v)[8]) {
  uint32_t word[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    word[i] = pack_bf16(v[2 * i], v[2 * i + 1]);
    v[2 * i] = v[2 * i] - bf16_float(word[i] & 0xffffu);
    v[2 * i + 1] = v[2 * i + 1] - __uint_as_float(word[i] & 0xffff0000u);
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

}  // namespace mr::cuda
