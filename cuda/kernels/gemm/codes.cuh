// codes: the types of which every weight is d * scale * c, with d for 256 inputs, a small integer scale for 16, and c one of
// at most sixteen integers. In device memory all of them have one layout, kCodes, and one set of GEMM kernels:
//
//   quants   a code of four bits for each weight, as the indices of IQ4_NL
//   scales   a signed byte for 16 inputs, as Q6_K has
//   header   d of 16 rows as f16; the sixteen values that codes stand for, each 128 above; a power of two, f32, that
//            multiplies d; 12 zero bytes
//
//   file type         code                                        values          scale (of inputs)         power
//   Q3_K              the quant                                   -4 .. 3         six bits, less 32 (16)    1
//   IQ4_XS            the index                                   of IQ4_NL       six bits, less 32 (32)    1
//   IQ3_S             sign above the digit of a lattice's entry   +-1 .. 15       1 + 2 * four bits (32)    1
//   IQ3_XXS           the same                                    +-4 .. 62       the same (32)             1/4
//   IQ2_S, IQ2_XS     the same; digits are of two bits            +-8, 25, 43     the same (16)             1/8
//   IQ2_XXS           the same                                    +-8, 25, 43     the same (32)             1/8
//
// In the file, an index into a lattice stands for the digits of 4 (IQ3) or 8 (IQ2) weights, and in the XXS and XS types
// seven bits for eight signs, an even number of which are set. Both ways back are unique: no lattice has an entry twice.
// Packed weights have more bits than the file, so memory can hold what no file has. That is damage. CodeBlock::byte then
// complements intact bits of the damaged value, so that the digest of the file cannot be restored.
#pragma once

#include <cstdint>

#include "cpu/lattices.h"
#include "kernels/gemm/packed_access.cuh"

namespace mr::cuda {

// Codebook is the content of a header: the values of the sixteen codes, each 128 above, and the power of two.
struct Codebook {
  uint32_t words[4] = {};
  float power = 1;

  constexpr void set(int32_t code, int32_t value) { words[code / 4] |= static_cast<uint32_t>(value + 128) << code % 4 * 8; }
};

constexpr Codebook codebook_of(int32_t type) {
  constexpr int32_t two_bits[3] = {8, 25, 43}, xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62};
  constexpr int32_t levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  Codebook book;
  for (int32_t code = 0; code < 16; ++code) {
    const int32_t digit = code & 7;
    int32_t value = 0;  // of codes that no file has
    if (type == kQ3_K) {
      book.set(code, code < 8 ? code - 4 : 0);
      continue;
    }
    if (type == kIQ4_XS) {
      book.set(code, levels[code]);
      continue;
    }
    if (type == kIQ3_S) value = 1 + 2 * digit;
    else if (type == kIQ3_XXS) value = xxs[digit];
    else if (digit < 3) value = two_bits[digit];
    book.set(code, code < 8 ? value : -value);
  }
  if (type == kIQ3_XXS) book.power = 0.25f;
  if (type == kIQ2_XXS || type == kIQ2_XS || type == kIQ2_S) book.power = 0.125f;
  return book;
}

template <int32_t T>
inline constexpr Codebook kCodebook = codebook_of(T);

// Returns the words of a type's header after d of the rows: 0 .. 7.
template <int32_t T>
__device__ __forceinline__ uint32_t header_word_of(int32_t word) {
  constexpr Codebook book = kCodebook<T>;
  return word < 4 ? word == 0 ? book.words[0] : word == 1 ? book.words[1] : word == 2 ? book.words[2] : book.words[3]
                  : word == 4 ? __float_as_uint(book.power) : 0;
}

template <int32_t T>
__device__ __forceinline__ int32_t value_of_code(int32_t code) {
  return static_cast<int32_t>(header_word_of<T>(code >> 2) >> (code & 3) * 8 & 255) - 128;
}

// A lattice as device code can read it.
template <int32_t n>
struct Lattice {
  uint16_t entries[n];

  constexpr explicit Lattice(const uint16_t (&of)[n]) : entries() {
    for (int32_t i = 0; i < n; ++i) entries[i] = of[i];
  }
};
static __device__ const Lattice<256> kLattice3XXS(lattice_3xxs), kLattice2XXS(lattice_2xxs);
static __device__ const Lattice<512> kLattice3S(lattice_3s), kLattice2XS(lattice_2xs);
static __device__ const Lattice<1024> kLattice2S(lattice_2s);

// LatticeOf is the lattice of a file type: entries of `each` digits of `bits` bits.
template <int32_t T>
struct LatticeOf {
  static constexpr bool threes = T == kIQ3_XXS || T == kIQ3_S;
  static constexpr int32_t bits = threes ? 3 : 2, each = threes ? 4 : 8;
  static constexpr int32_t size = T == kIQ2_S ? 1024 : T == kIQ3_S || T == kIQ2_XS ? 512 : 256;

  __device__ __forceinline__ static const uint16_t* entries() {
    if constexpr (T == kIQ3_XXS) return kLattice3XXS.entries;
    else if constexpr (T == kIQ3_S) return kLattice3S.entries;
    else if constexpr (T == kIQ2_XXS) return kLattice2XXS.entries;
    else if constexpr (T == kIQ2_XS) return kLattice2XS.entries;
    else return kLattice2S.entries;
  }
  __device__ __forceinline__ static int32_t digit(int32_t index, int32_t i) {
    return entries()[index] >> i % each * bits & ((1 << bits) - 1);
  }
  // Returns the index of an entry, or -1 if the lattice has none such. Entries ascend.
  __device__ __forceinline__ static int32_t find(int32_t entry) {
    const uint16_t* const all = entries();
    int32_t index = 0;
    for (int32_t step = size / 2; step > 0; step /= 2) index += all[index + step] <= entry ? step : 0;
    return all[index] == entry ? index : -1;
  }
};

// Seven bits stand for eight signs.
__device__ __forceinline__ uint32_t even_signs(uint32_t seven) { return seven | (__popc(seven) & 1) << 7; }

// CodedFile is where a block of a file has what the codes are made of. Bytes are offsets within the block.
template <int32_t T>
struct CodedFile {
  static constexpr bool lattice = T != kQ3_K && T != kIQ4_XS;
  static constexpr bool words = T == kIQ3_XXS || T == kIQ2_XXS;  // a word has the signs and the scale of 32 inputs
  static constexpr int32_t d_at = T == kQ3_K ? 108 : 0;
  static constexpr int32_t scale_inputs = T == kQ3_K || T == kIQ2_XS || T == kIQ2_S ? 16 : 32;
  static constexpr int32_t signs_at = T == kIQ3_S ? 74 : 34;  // a byte for eight inputs: IQ3_S, IQ2_S
  static constexpr int32_t tops_at = 66;                      // the high bits of indices: IQ3_S, IQ2_S
  static constexpr int32_t nibbles_at = T == kIQ3_S ? 106 : T == kIQ2_XS ? 66 : 74;  // scales: IQ3_S, IQ2_XS, IQ2_S

  __device__ __forceinline__ static constexpr int32_t word_at(int32_t block) { return T == kIQ3_XXS ? 66 + 4 * block : 6 + 8 * block; }
  __device__ __forceinline__ static uint32_t word(const uint8_t* p, int32_t block) {
    const uint8_t* const w = p + word_at(block);
    return w[0] | w[1] << 8 | w[2] << 16 | static_cast<uint32_t>(w[3]) << 24;
  }
  __device__ __forceinline__ static int32_t nibble(const uint8_t* p, int32_t i) { return p[i / 2] >> i % 2 * 4 & 15; }

  // Returns the index of input i's entry.
  __device__ __forceinline__ static int32_t index(const uint8_t* p, int32_t i) {
    if constexpr (T == kIQ3_XXS) return p[2 + i / 4];
    else if constexpr (T == kIQ3_S) return p[2 + i / 4] | (p[tops_at + i / 32] >> i / 4 % 8 & 1) << 8;
    else if constexpr (T == kIQ2_XXS) return p[2 + i / 32 * 8 + i % 32 / 8];
    else if constexpr (T == kIQ2_XS) return p[2 + i / 8 * 2] | (p[3 + i / 8 * 2] & 1) << 8;
    else return p[2 + i / 8] | (p[tops_at + i / 32] >> i / 8 % 4 * 2 & 3) << 8;
  }
  // Returns the signs of the eight inputs that input i is among.
  __device__ __forceinline__ static uint32_t signs(const uint8_t* p, int32_t i) {
    if constexpr (words) return even_signs(word(p, i / 32) >> i % 32 / 8 * 7 & 127);
    else if constexpr (T == kIQ2_XS) return even_signs(p[3 + i / 8 * 2] >> 1);
    else return p[signs_at + i / 8];
  }

  __device__ __forceinline__ static int32_t code(const uint8_t* p, int32_t i) {
    if constexpr (T == kQ3_K) return (p[32 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) | (p[i % 32] >> i / 32 & 1) << 2;
    else if constexpr (T == kIQ4_XS) return p[8 + i / 32 * 16 + i % 16] >> i % 32 / 16 * 4 & 15;
    else return LatticeOf<T>::digit(index(p, i), i) | (signs(p, i) >> i % 8 & 1) << 3;
  }
  // Returns the scale of inputs 16j .. 16j + 15.
  __device__ __forceinline__ static int32_t scale(const uint8_t* p, int32_t j) {
    if constexpr (T == kQ3_K) return ((p[96 + j % 8] >> j / 8 * 4 & 15) | (p[104 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
    else if constexpr (T == kIQ4_XS) return (nibble(p + 4, j / 2) | (p[2 + j / 8] >> j / 2 % 4 * 2 & 3) << 4) - 32;
    else if constexpr (words) return 1 + 2 * static_cast<int32_t>(word(p, j / 2) >> 28);
    else return 1 + 2 * nibble(p + nibbles_at, j * 16 / scale_inputs);
  }
};

// CodeBlock restores a block of a file from its packed form. Packed must have code(i) of input i and scale(j) of inputs 16j
// .. 16j + 15.
template <int32_t T, class Packed>
struct CodeBlock {
  using File = CodedFile<T>;
  using Of = LatticeOf<T>;
  const Packed& packed;

  // Returns the bits of the scale with index b as the file has them: of 16 or 32 inputs. Damaged: the complement.
  __device__ __forceinline__ uint32_t scale_bits(int32_t b) const {
    constexpr int32_t copies = File::scale_inputs / 16;
    const int32_t scale = packed.scale(b * copies);
    const bool same = copies == 1 || packed.scale(b * copies + 1) == scale;
    if constexpr (File::lattice) {
      return (scale >> 1 & 15) ^ (same && (scale & ~31) == 0 && (scale & 1) != 0 ? 0 : 15);
    } else {
      return ((scale + 32) & 63) ^ (same && scale >= -32 && scale < 32 ? 0 : 63);
    }
  }

  // Returns the index of the entry of inputs i .. i + Of::each - 1, or -1 if there is none.
  __device__ __forceinline__ int32_t index(int32_t i) const {
    int32_t entry = 0;
    bool digits = true;
    for (int32_t n = 0; n < Of::each; ++n) {
      const int32_t digit = packed.code(i + n) & 7;
      digits = digits && digit >> Of::bits == 0;
      entry |= digit << n * Of::bits;
    }
    return digits ? Of::find(entry & 0xffff) : -1;
  }
  // Returns some bits of an index.
  __device__ __forceinline__ uint32_t index_bits(int32_t i, int32_t from, uint32_t mask) const {
    return static_cast<uint32_t>(index(i)) >> from & mask;
  }

  // Returns the signs of inputs i .. i + 7; if their entries or, of an even number, the signs are damaged, the complement.
  __device__ __forceinline__ uint32_t signs(int32_t i) const {
    uint32_t out = 0;
    for (int32_t n = 0; n < 8; ++n) out |= static_cast<uint32_t>(packed.code(i + n) >> 3 & 1) << n;
    bool intact = true;
    for (int32_t n = 0; n < 8; n += Of::each) intact = intact && index(i + n) >= 0;
    if constexpr (File::words || T == kIQ2_XS) intact = intact && __popc(out) % 2 == 0;
    return intact ? out : out ^ 255;
  }
  __device__ __forceinline__ uint32_t word(int32_t block) const {
    uint32_t out = scale_bits(block) << 28;
    for (int32_t n = 0; n < 4; ++n) out |= (signs(block * 32 + n * 8) & 127) << n * 7;
    return out;
  }

  // Returns two bits of the quant of input i of Q3_K.
  __device__ __forceinline__ uint32_t pair(int32_t i) const {
    const int32_t code = packed.code(i);
    return (code & 3) ^ (code < 8 ? 0 : 3);
  }

  // Returns a byte of the block that is not of d.
  __device__ __forceinline__ uint32_t byte(int32_t at) const {
    if constexpr (T == kQ3_K) {
      uint32_t out = 0;
      if (at < 32) {
        for (int32_t n = 0; n < 8; ++n) out |= static_cast<uint32_t>(packed.code(n * 32 + at) >> 2 & 1) << n;
      } else if (at < 96) {
        for (int32_t n = 0; n < 4; ++n) out |= pair((at - 32) / 32 * 128 + n * 32 + at % 32) << n * 2;
      } else if (at < 104) {
        out = (scale_bits(at - 96) & 15) | (scale_bits(at - 88) & 15) << 4;
      } else {
        for (int32_t n = 0; n < 4; ++n) out |= scale_bits(at - 104 + n * 4) >> 4 << n * 2;
      }
      return out;
    } else if constexpr (T == kIQ4_XS) {
      uint32_t out = 0;
      if (at < 4) {
        for (int32_t n = 0; n < 4; ++n) out |= scale_bits((at - 2) * 4 + n) >> 4 << n * 2;
        return out;
      }
      if (at < 8) return (scale_bits(at * 2 - 8) & 15) | (scale_bits(at * 2 - 7) & 15) << 4;
      const int32_t i = (at - 8) / 16 * 32 + (at - 8) % 16;
      return static_cast<uint32_t>(packed.code(i) | packed.code(i + 16) << 4);
    } else if constexpr (File::words) {
      const int32_t block = T == kIQ3_XXS ? (at - 66) / 4 : (at - 2) / 8, within = at - File::word_at(block);
      if (T == kIQ3_XXS && at < 66) return index_bits((at - 2) * 4, 0, 255);
      if (T == kIQ2_XXS && within < 0) return index_bits(block * 32 + (within + 4) * 8, 0, 255);
      return word(block) >> within * 8 & 255;
    } else if constexpr (T == kIQ2_XS) {
      if (at >= File::nibbles_at) return nibbles(at);
      const int32_t i = (at - 2) / 2 * 8;
      return at % 2 == 0 ? index_bits(i, 0, 255) : index_bits(i, 8, 1) | (signs(i) & 127) << 1;
    } else {
      if (at >= File::nibbles_at) return nibbles(at);
      if (at >= File::signs_at && at < File::signs_at + 32) return signs((at - File::signs_at) * 8);
      if (at < File::tops_at) return index_bits((at - 2) * Of::each, 0, 255);
      constexpr int32_t bits = T == kIQ3_S ? 1 : 2;
      uint32_t out = 0;
      for (int32_t n = 0; n < 8 / bits; ++n) out |= index_bits((at - File::tops_at) * 32 + n * Of::each, 8, (1 << bits) - 1) << n * bits;
      return out;
    }
  }

 private:
  __device__ __forceinline__ uint32_t nibbles(int32_t at) const {
    const int32_t b = (at - File::nibbles_at) * 2;
    return scale_bits(b) | scale_bits(b + 1) << 4;
  }
};

}  // namespace mr::cuda
