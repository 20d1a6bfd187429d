// ops/weights: loads four neighbouring weights of a row as f32 from the bytes of their file, for the plain f32
// products. Each weight is the value of its format, rounded once, by the operations of dequantised embedding rows
// (gemm/repack.cu). A row of F32, F16 or BF16 whose length is not a multiple of four is read one weight at a time.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/gemm/codes.cuh"

namespace mr::cuda {

__device__ __forceinline__ float file_half(const uint8_t* p) {  // 2-byte aligned
  return __half2float(__ushort_as_half(*reinterpret_cast<const unsigned short*>(p)));
}

// Returns the low and high bits of input i of a block.
template <int32_t T>
__device__ __forceinline__ int32_t file_quants(const uint8_t* block, int32_t i) {
  const FileQuant q = file_quant<T>(i);
  if constexpr (Format<T>::pairs) {
    return block[q.low_byte] >> q.low_shift & 3;
  } else if constexpr (!Format<T>::nibbles) {
    return static_cast<int8_t>(block[q.low_byte]);
  } else if constexpr (Format<T>::high_bits == 0) {
    return block[q.low_byte] >> q.low_shift & 15;
  } else {
    return (block[q.low_byte] >> q.low_shift & 15) | (block[q.high_byte] >> q.high_shift & ((1 << Format<T>::high_bits) - 1)) << 4;
  }
}

// Returns inputs i .. i+3 of a block of a quantised format; i must be a multiple of 4.
template <int32_t T>
__device__ __forceinline__ float4 block_weights(const uint8_t* block, int32_t i) {
  float w[4];
#pragma unroll
  for (int32_t j = 0; j < 4; ++j) {
    if constexpr (Format<T>::f.codes) {
      typedef CodedFile<T> File;
      constexpr float power = kCodebook<T>.power;
      const float scale = static_cast<float>(File::scale(block, i / 16));
      w[j] = file_half(block + File::d_at) * power * scale * static_cast<float>(value_of_code<T>(File::code(block, i + j)));
      continue;
    }
    const int32_t q = file_quants<T>(block, i + j);
    if constexpr (T == kQ2_K) {
      const float scale = file_half(block + 80) * static_cast<float>(block[i / 16] & 15);
      w[j] = fmaf(scale, static_cast<float>(q), -(file_half(block + 82) * static_cast<float>(block[i / 16] >> 4)));
    } else if constexpr (T == kQ6_K) {
      const float scale = static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
      w[j] = file_half(block + 208) * scale * static_cast<float>(q - 32);
    } else if constexpr (Format<T>::superblock) {
      const float scale = file_half(block) * static_cast<float>(file_six_bits(block + 4, i / 32, 0));
      const float min = file_half(block + 2) * static_cast<float>(file_six_bits(block + 4, i / 32, 1));
      w[j] = fmaf(scale, static_cast<float>(q), -min);
    } else if constexpr (Format<T>::has_min) {
      w[j] = fmaf(file_half(block), static_cast<float>(q), file_half(block + 2));
    } else if constexpr (T == kNVFP4) {
      w[j] = nvfp4_scale(block[i / 16]) * static_cast<float>(mxfp4_value(q));
    } else if constexpr (T == kMXFP4) {
      w[j] = mxfp4_scale(block[0]) * static_cast<float>(mxfp4_value(q));
    } else if constexpr (T == kIQ4_NL) {
      w[j] = file_half(block) * static_cast<float>(iq4_nl_value(q));
    } else {
      constexpr int32_t zero = T == kQ8_0 ? 0 : T == kQ5_0 ? 16 : 8;
      w[j] = file_half(block) * static_cast<float>(q - zero);
    }
  }
  return make_float4(w[0], w[1], w[2], w[3]);
}

// Loads one weight of F32, F16 or BF16, aligned as its type.
template <int32_t T>
__device__ __forceinline__ float number_weight(const uint8_t* row, int64_t k) {
  if constexpr (T == kF32) {
    return __ldg(reinterpret_cast<const float*>(row) + k);
  } else if constexpr (T == kF16) {
    return file_half(row + 2 * k);
  } else {
    return __uint_as_float(static_cast<uint32_t>(*reinterpret_cast<const unsigned short*>(row + 2 * k)) << 16);
  }
}

// Loads weights k .. k+3 of a row of `inner`, zeros from inner on; k must be a multiple of 4. `whole`: so is inner, and
// rows are aligned to four weights.
template <int32_t T, bool whole>
__device__ __forceinline__ float4 row_weights(const uint8_t* row, int64_t k, int64_t inner) {
  if (k >= inner) return make_float4(0, 0, 0, 0);
  if constexpr (!Format<T>::is_float) {
    constexpr int32_t block = Format<T>::f.block, bytes = Format<T>::f.block_bytes;
    return block_weights<T>(row + k / block * bytes, static_cast<int32_t>(k % block));
  } else if constexpr (!whole) {
    return make_float4(number_weight<T>(row, k), k + 1 < inner ? number_weight<T>(row, k + 1) : 0.0f,
                       k + 2 < inner ? number_weight<T>(row, k + 2) : 0.0f, k + 3 < inner ? number_weight<T>(row, k + 3) : 0.0f);
  } else if constexpr (T == kF32) {
    return __ldg(reinterpret_cast<const float4*>(reinterpret_cast<const float*>(row) + k));
  } else {
    const uint2 pairs = __ldg(reinterpret_cast<const uint2*>(row + 2 * k));
    if constexpr (T == kF16) {
      const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&pairs.x));
      const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&pairs.y));
      return make_float4(low.x, low.y, high.x, high.y);
    } else {
      return make_float4(__uint_as_float(pairs.x << 16), __uint_as_float(pairs.x & 0xffff0000u),
                         __uint_as_float(pairs.y << 16), __uint_as_float(pairs.y & 0xffff0000u));
    }
  }
}

// Stands for a type, other than F32, that is known only at run time.
constexpr int32_t kAnyType = -1;

// Calls f(type, whole), both as types with a `value`, for rows of `inner` weights of a type of weight_format.
template <class F>
__device__ __forceinline__ void with_weights(int32_t type, int64_t inner, F&& f) {
  const bool whole = inner % 4 == 0;
  switch (type) {
#define MR_NUMBERS(T)                                                                               \
  case T:                                                                                           \
    if (whole) f(std::integral_constant<int32_t, T>{}, std::integral_constant<bool, true>{});      \
    else f(std::integral_constant<int32_t, T>{}, std::integral_constant<bool, false>{});           \
    return;
#define MR_BLOCKS(T) \
  case T: return f(std::integral_constant<int32_t, T>{}, std::integral_constant<bool, true>{});
    MR_NUMBERS(kF32) MR_NUMBERS(kF16) MR_NUMBERS(kBF16)
    MR_BLOCKS(kQ8_0) MR_BLOCKS(kQ4_0) MR_BLOCKS(kQ4_1) MR_BLOCKS(kQ5_0) MR_BLOCKS(kQ5_1)
    MR_BLOCKS(kQ4_K) MR_BLOCKS(kQ5_K) MR_BLOCKS(kQ6_K) MR_BLOCKS(kIQ4_NL) MR_BLOCKS(kMXFP4) MR_BLOCKS(kNVFP4)
    MR_BLOCKS(kQ2_K) MR_BLOCKS(kQ3_K) MR_BLOCKS(kIQ4_XS)
    MR_BLOCKS(kIQ3_S) MR_BLOCKS(kIQ3_XXS) MR_BLOCKS(kIQ2_S) MR_BLOCKS(kIQ2_XS) MR_BLOCKS(kIQ2_XXS)
#undef MR_NUMBERS
#undef MR_BLOCKS
  }
}

// row_weights, of which T may be kAnyType; `type` is the type.
template <int32_t T, bool whole>
__device__ __forceinline__ float4 weights_of_row(int32_t type, const uint8_t* row, int64_t k, int64_t inner) {
  if constexpr (T == kAnyType) {
    float4 out;
    with_weights(type, inner, [&](auto t, auto w) { out = row_weights<t.value, w.value>(row, k, inner); });
    return out;
  } else {
    return row_weights<T, whole>(row, k, inner);
  }
}

}  // namespace mr::cuda
