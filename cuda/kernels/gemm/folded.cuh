// folded: products of Q4_K and Q5_K blocks of 256 inputs in decode kernels, where one scale multiplies the whole sum.
//
// A block's six-bit scales are multiplied into its quants: the results are integers below 2048, exact in f16. The
// tensor cores sum the 256 products of a row and a token, and d multiplies that sum once instead of eight times. Mins
// likewise: the sums of x over the eight blocks of 32, as three bf16 terms that keep every bit, are multiplied by the
// six-bit mins in two more steps, and -dmin multiplies the result. Quants enter as f16 subnormals, with their bits
// where a word has them: in row g a unit is 2^-24, in row g + 8 it is 2^-20. Scales are 32 times too large, and d
// corrects both.
#pragma once

#include "kernels/gemm/fragment.cuh"

namespace mr::cuda {

template <int32_t T>
constexpr bool kFolds = Format<T>::six_bits;

// A slot is the position of one block of 32 in the steps of mins: slot 2t is block t, slot 2t + 1 is block t + 4.
__device__ __forceinline__ int32_t index_of_slot(int32_t slot) { return slot / 2 + slot % 2 * 4; }

// FoldedHeader is a lane's part of the headers of rows g and g + 8, from a block's first unit to its last.
struct FoldedHeader {
  uint32_t scales[2][4];  // 32 times the scales of indices i and i + 4, f16
  uint32_t mins[2];       // of slots 2t and 2t + 1, bf16
  float d[2], dmin[2];    // dmin is negative

  __device__ __forceinline__ void load(uint32_t address, int32_t lane) {
    const int32_t t = lane & 3;
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
      const uint4 v = load_shared16(address + ((lane >> 2) + r * 8) * 16);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const uint32_t low = and_or(v.y >> 4 * i, twice(0x0fu), twice(0x7800u));  // on top of 2^15
        scales[r][i] = minus(and_or(i == 0 ? v.w << 4 : v.w >> (4 * i - 4), twice(0x30u), low), twice(0x7800u));
      }
      const uint32_t low = and_or(v.z >> 4 * t, twice(0x0fu), twice(0x4300u));  // on top of 128
      mins[r] = less_128(and_or(v.w >> 4 * t << 2, twice(0x30u), low));
      const float2 dd = half_pair(v.x);
      d[r] = dd.x * (r == 0 ? 0x1p19f : 0x1p15f);
      dmin[r] = -dd.y;
    }
  }

  // Two packed bf16 numbers less 128.
  __device__ __forceinline__ static uint32_t less_128(uint32_t v) {
    return bits_of(__hsub2(*reinterpret_cast<__nv_bfloat162*>(&v), __float2bfloat162_rn(128.0f)));
  }

  // Returns the scale of row g + 8r for block `index`, or for index + 4 if `upper`, in both halves of the word.
  template <int32_t index>
  __device__ __forceinline__ uint32_t scale(int32_t r, bool upper) const {
    return __byte_perm(scales[r][index & 3], 0, (index >= 4) != upper ? 0x3232u : 0x1010u);
  }

  // Adds a block's products, and its mins times the input sums, to a lane's four sums of eight tokens.
  __device__ __forceinline__ void add_with_mins(float (&sums)[4], const float (&products)[4], const uint32_t (&input_sums)[3]) const {
    const uint32_t a[4] = {mins[0], mins[1], mins[0], mins[1]};
    float c[4] = {0, 0, 0, 0};
    mma16816<__nv_bfloat16>(c, a, input_sums[0], input_sums[1]);
    mma16816<__nv_bfloat16>(c, a, input_sums[2], 0);
    add(sums, products, c);
  }

  // Adds a block's products and its products of mins to a lane's four sums of eight tokens.
  __device__ __forceinline__ void add(float* sums, const float* products, const float* min_products) const {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      sums[i] = fmaf(dmin[i / 2], min_products[i], fmaf(d[i / 2], products[i], sums[i]));
    }
  }
};

// Makes the A fragment of step 0..3 of a unit; scale_g and scale_g8 are the scales of rows g and g + 8.
template <int32_t T, int32_t step>
__device__ __forceinline__ void folded_fragment(const UnitQuants<T>& quants, uint32_t scale_g, uint32_t scale_g8,
                                                uint32_t (&a)[4]) {
  const uint32_t w = step == 0 ? quants.words.x : step == 1 ? quants.words.y : step == 2 ? quants.words.z : quants.words.w;
  const uint32_t words[2] = {w, w >> 8};
#pragma unroll
  for (int32_t i = 0; i < 2; ++i) {
    uint32_t g = words[i] & twice(0x0fu), g8 = words[i] & twice(0xf0u);
    if constexpr (Format<T>::high_bits == 1) {
      const uint32_t high = quants.high[0];
      if (i == 0) {
        g = and_or(shift_left<4 - step * 4>(high), twice(0x10u), g);
        g8 = and_or(shift_left<7 - step * 4>(high), twice(0x100u), g8);
      } else {
        g = and_or(shift_left<2 - step * 4>(high), twice(0x10u), g);
        g8 = and_or(shift_left<5 - step * 4>(high), twice(0x100u), g8);
      }
    }
    a[i * 2] = times(g, scale_g);
    a[i * 2 + 1] = times(g8, scale_g8);
  }
}

// Makes the A fragments of the four steps of unit u or, if `upper`, of unit u + 2, whose quants these are.
template <int32_t T, int32_t u>
__device__ __forceinline__ void folded_unit(const FoldedHeader& header, const UnitQuants<T>& quants, bool upper,
                                            uint32_t (&a)[4][4]) {
  uint32_t g = header.scale<u * 2>(0, upper), g8 = header.scale<u * 2>(1, upper);
  folded_fragment<T, 0>(quants, g, g8, a[0]);
  folded_fragment<T, 1>(quants, g, g8, a[1]);
  g = header.scale<u * 2 + 1>(0, upper);
  g8 = header.scale<u * 2 + 1>(1, upper);
  folded_fragment<T, 2>(quants, g, g8, a[2]);
  folded_fragment<T, 3>(quants, g, g8, a[3]);
}

// Adds the products of unit u of a packed block.
template <int32_t T, int32_t u>
__device__ __forceinline__ void multiply_block_unit(float (&products)[4], const FoldedHeader& header, uint32_t block,
                                                    const uint32_t (&x)[2][4], int32_t lane) {
  UnitQuants<T> quants;
  quants.begin(block + Format<T>::quants_at(u), block + Format<T>::high_at(u), lane);
  uint32_t a[4][4];
  folded_unit<T, u>(header, quants, false, a);
#pragma unroll
  for (int32_t step = 0; step < 4; ++step) mma16816<__half>(products, a[step], x[step / 2][step % 2 * 2], x[step / 2][step % 2 * 2 + 1]);
}

// Adds the products of a packed block in shared memory and of eight tokens to a lane's four sums. x: the inputs, as load_matrices returns
// each 32 of them; input_sums: of the same inputs.
template <int32_t T>
__device__ __forceinline__ void multiply_folded_block(float (&sums)[4], uint32_t block, const uint32_t (&x)[4][2][4],
                                                      const uint32_t (&input_sums)[3], int32_t lane) {
  FoldedHeader header;
  header.load(block + Format<T>::header_plane, lane);
  float products[4] = {0, 0, 0, 0};
  multiply_block_unit<T, 0>(products, header, block, x[0], lane);
  multiply_block_unit<T, 1>(products, header, block, x[1], lane);
  multiply_block_unit<T, 2>(products, header, block, x[2], lane);
  multiply_block_unit<T, 3>(products, header, block, x[3], lane);
  header.add_with_mins(sums, products, input_sums);
}

// InputSums are the sums of x over the eight blocks of 32 of a block, for eight tokens.
struct InputSums {
  float halves[4];  // of token g: slots 2t and 2t + 1, without and with eight inputs of every sixteen

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& h : halves) h = 0;
  }

  // Adds the 32 inputs of block `index`: x as load_matrices returns it, eight tokens by four times eight inputs.
  __device__ __forceinline__ void add(const uint32_t (&x)[4], int32_t index, int32_t lane) {
    const uint32_t own = index_of_slot(lane >> 2) == index ? twice(0x3c00u) : 0;
    mma16816<__half>(halves, x, own, own);
  }

  // Returns the bf16 terms of slots 2t (low half) and 2t + 1. Each term holds the rounding error of the one before.
  __device__ __forceinline__ void split(uint32_t (&input_sums)[3]) const {
    float low = halves[0] + halves[2], high = halves[1] + halves[3];
#pragma unroll
    for (uint32_t& piece : input_sums) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
      piece = bits_of(pair);
      low -= __low2float(pair);
      high -= __high2float(pair);
    }
  }
};

}  // namespace mr::cuda
