#include "linear_codes.h"

#include <string.h>

#include "lattices.h"
#include "linear.h"

namespace mr::cpu {

namespace {

constexpr uint16_t no_index = 0xffff;

// Bytes from the digits of an entry of a lattice, and the other way round.
struct Digits {
  uint32_t pairs[256] = {};     // four digits of two bits
  uint32_t threes_3xxs[256] = {}, threes_3s[512] = {};
  uint64_t ones[256] = {};      // eight bits
  uint16_t number[256] = {};    // four digits of two bits as one in base three; no_index if one is 3

  constexpr Digits() {
    for (int v = 0; v < 256; ++v) {
      int in_base_3 = 0;
      bool valid = true;
      for (int i = 3; i >= 0; --i) {
        const int digit = v >> 2 * i & 3;
        pairs[v] |= uint32_t(digit) << 8 * i;
        in_base_3 = 3 * in_base_3 + digit;
        valid = valid && digit != 3;
      }
      number[v] = valid ? uint16_t(in_base_3) : no_index;
      for (int i = 0; i < 8; ++i) ones[v] |= uint64_t(v >> i & 1) << 8 * i;
    }
    for (int i = 0; i < 256; ++i) threes_3xxs[i] = spread(lattice_3xxs[i]);
    for (int i = 0; i < 512; ++i) threes_3s[i] = spread(lattice_3s[i]);
  }
  static constexpr uint32_t spread(uint16_t v) { return (v & 7u) | (v & 0x38u) << 5 | (v & 0x1c0u) << 10 | (v & 0xe00u) << 15; }
};
constexpr Digits digits;

// The index of four digits of three bits in a lattice.
struct Inverse3 {
  uint16_t index[4096] = {};
  template <int n>
  constexpr explicit Inverse3(const uint16_t (&lattice)[n]) {
    for (uint16_t& i : index) i = no_index;
    for (int i = 0; i < n; ++i) index[lattice[i]] = uint16_t(i);
  }
};
constexpr Inverse3 inverse_3xxs(lattice_3xxs), inverse_3s(lattice_3s);

// The index of eight digits in base three.
struct Inverse2 {
  uint16_t index[81 * 81] = {};
  template <int n>
  constexpr explicit Inverse2(const uint16_t (&lattice)[n]) {
    for (uint16_t& i : index) i = no_index;
    for (int i = 0; i < n; ++i) index[digits.number[lattice[i] >> 8] * 81 + digits.number[lattice[i] & 255]] = uint16_t(i);
  }
};
constexpr Inverse2 inverse_2xxs(lattice_2xxs), inverse_2xs(lattice_2xs), inverse_2s(lattice_2s);

template <class T>
T load(const uint8_t* p) {
  T v;
  memcpy(&v, p, sizeof v);
  return v;
}

template <class T>
void store(uint8_t* p, T v) {
  memcpy(p, &v, sizeof v);
}

// Seven bits stand for eight signs, an even number of which are set.
uint8_t signs_of(uint32_t seven) { return uint8_t(seven | (uint32_t(__builtin_popcount(seven)) & 1) << 7); }
bool even(uint8_t signs) { return __builtin_popcount(signs) % 2 == 0; }

constexpr uint64_t each_byte = 0x0101010101010101u;

// Bit 0 of each byte.
uint8_t ones_of(uint64_t v) { return uint8_t((v & each_byte) * 0x0102040810204080u >> 56); }

// Bits 0 to 2 of each byte.
uint32_t threes_of(uint32_t v) { return (v & 7u) | (v >> 5 & 0x38u) | (v >> 10 & 0x1c0u) | (v >> 15 & 0xe00u); }

// Bits 0 and 1 of each byte.
uint32_t pairs_of(uint64_t v) {
  v &= 3 * each_byte;
  v = (v | v >> 6) & 0x000f000f000f000fu;
  v = (v | v >> 12) & 0x000000ff000000ffu;
  return uint32_t((v | v >> 24) & 0xffffu);
}

uint32_t index_2(const Inverse2& inverse, uint32_t pairs) {
  const uint32_t low = digits.number[pairs & 255], high = digits.number[pairs >> 8];
  return low == no_index || high == no_index ? no_index : inverse.index[high * 81 + low];
}

// Codes of eight weights, a byte each.
uint64_t codes_3(const uint32_t* threes, uint32_t index0, uint32_t index1, uint8_t signs) {
  return (threes[index0] | uint64_t(threes[index1]) << 32) | digits.ones[signs] << 3;
}

uint64_t magnitudes_2(uint16_t entry) { return digits.pairs[entry & 255] | uint64_t(digits.pairs[entry >> 8]) << 32; }

// 32 codes as nibbles: the first 16 in the low halves.
void store_nibbles(uint8_t* p, const uint64_t (&codes)[4]) {
  store(p, codes[0] | codes[2] << 4);
  store(p + 8, codes[1] | codes[3] << 4);
}

void load_nibbles(const uint8_t* p, uint64_t (&codes)[4]) {
  for (int l = 0; l < 4; ++l) codes[l] = load<uint64_t>(p + l % 2 * 8) >> l / 2 * 4 & 15 * each_byte;
}

// Eight weights from place 8l of block b on.
void put_2(uint8_t* coded, int b, int l, uint16_t entry, uint8_t signs) {
  uint8_t *const pairs = coded + b / 4 * 32 + 8 * l, *const ones = coded + 64 + 8 * l;
  store(pairs, load<uint64_t>(pairs) | magnitudes_2(entry) << 2 * (b % 4));
  store(ones, load<uint64_t>(ones) | digits.ones[signs] << b);
}

void get_2(const uint8_t* coded, int b, int l, uint32_t* pairs, uint8_t* signs) {
  *pairs = pairs_of(load<uint64_t>(coded + b / 4 * 32 + 8 * l) >> 2 * (b % 4));
  *signs = ones_of(load<uint64_t>(coded + 64 + 8 * l) >> b);
}

// IQ3_XXS: half d, 64 indices, a word for each 32 weights: four times seven bits of signs, four bits of scale.
void code_3xxs(const uint8_t* file, uint8_t* coded) {
  uint8_t* const scales = coded + 128;
  memset(scales, 0, 4);
  for (int b = 0; b < 8; ++b) {
    const uint32_t word = load<uint32_t>(file + 66 + 4 * b);
    uint64_t codes[4];
    for (int l = 0; l < 4; ++l) {
      const uint8_t* const index = file + 2 + 8 * b + 2 * l;
      codes[l] = codes_3(digits.threes_3xxs, index[0], index[1], signs_of(word >> 7 * l & 127));
    }
    store_nibbles(coded + 16 * b, codes);
    scales[b / 2] |= uint8_t(word >> 28 << b % 2 * 4);
  }
  memcpy(coded + 132, file, 2);
}

bool uncode_3xxs(const uint8_t* coded, uint8_t* file) {
  bool valid = true;
  for (int b = 0; b < 8; ++b) {
    uint32_t word = uint32_t(coded[128 + b / 2] >> b % 2 * 4 & 15) << 28;
    uint64_t codes[4];
    load_nibbles(coded + 16 * b, codes);
    for (int l = 0; l < 4; ++l) {
      const uint8_t signs = ones_of(codes[l] >> 3);
      const uint16_t low = inverse_3xxs.index[threes_of(uint32_t(codes[l]))], high = inverse_3xxs.index[threes_of(uint32_t(codes[l] >> 32))];
      valid = valid && low != no_index && high != no_index && even(signs);
      word |= uint32_t(signs & 127) << 7 * l;
      file[2 + 8 * b + 2 * l] = uint8_t(low);
      file[2 + 8 * b + 2 * l + 1] = uint8_t(high);
    }
    store(file + 66 + 4 * b, word);
  }
  memcpy(file, coded + 132, 2);
  return valid;
}

// IQ3_S: half d, low eight bits of 64 indices, their ninth bits, 256 signs, eight scales of four bits.
void code_3s(const uint8_t* file, uint8_t* coded) {
  for (int b = 0; b < 8; ++b) {
    const uint32_t ninths = file[66 + b];
    uint64_t codes[4];
    for (int l = 0; l < 4; ++l) {
      const uint8_t* const index = file + 2 + 8 * b + 2 * l;
      codes[l] = codes_3(digits.threes_3s, index[0] | (ninths >> 2 * l & 1) << 8, index[1] | (ninths >> (2 * l + 1) & 1) << 8,
                         file[74 + 4 * b + l]);
    }
    store_nibbles(coded + 16 * b, codes);
  }
  memcpy(coded + 128, file + 106, 4);
  memcpy(coded + 132, file, 2);
}

bool uncode_3s(const uint8_t* coded, uint8_t* file) {
  bool valid = true;
  for (int b = 0; b < 8; ++b) {
    uint32_t ninths = 0;
    uint64_t codes[4];
    load_nibbles(coded + 16 * b, codes);
    for (int l = 0; l < 4; ++l) {
      const uint16_t low = inverse_3s.index[threes_of(uint32_t(codes[l]))], high = inverse_3s.index[threes_of(uint32_t(codes[l] >> 32))];
      valid = valid && low != no_index && high != no_index;
      ninths |= (low >> 8 & 1u) << 2 * l | (high >> 8 & 1u) << (2 * l + 1);
      file[2 + 8 * b + 2 * l] = uint8_t(low);
      file[2 + 8 * b + 2 * l + 1] = uint8_t(high);
      file[74 + 4 * b + l] = ones_of(codes[l] >> 3);
    }
    file[66 + b] = uint8_t(ninths);
  }
  memcpy(file + 106, coded + 128, 4);
  memcpy(file, coded + 132, 2);
  return valid;
}

// IQ2_XXS: half d, for each 32 weights four indices and a word as in IQ3_XXS.
void code_2xxs(const uint8_t* file, uint8_t* coded) {
  memset(coded, 0, 100);
  for (int b = 0; b < 8; ++b) {
    const uint8_t* const index = file + 2 + 8 * b;
    const uint32_t word = load<uint32_t>(index + 4);
    for (int l = 0; l < 4; ++l) put_2(coded, b, l, lattice_2xxs[index[l]], signs_of(word >> 7 * l & 127));
    coded[96 + b / 2] |= uint8_t(word >> 28 << b % 2 * 4);
  }
  memcpy(coded + 100, file, 2);
}

bool uncode_2xxs(const uint8_t* coded, uint8_t* file) {
  bool valid = true;
  for (int b = 0; b < 8; ++b) {
    uint32_t word = uint32_t(coded[96 + b / 2] >> b % 2 * 4 & 15) << 28;
    for (int l = 0; l < 4; ++l) {
      uint32_t pairs;
      uint8_t signs;
      get_2(coded, b, l, &pairs, &signs);
      const uint32_t index = index_2(inverse_2xxs, pairs);
      valid = valid && index != no_index && even(signs);
      word |= uint32_t(signs & 127) << 7 * l;
      file[2 + 8 * b + l] = uint8_t(index);
    }
    store(file + 2 + 8 * b + 4, word);
  }
  memcpy(file, coded + 100, 2);
  return valid;
}

// IQ2_XS: half d, 32 words of nine bits of index and seven of signs, 16 scales of four bits.
void code_2xs(const uint8_t* file, uint8_t* coded) {
  memset(coded, 0, 96);
  for (int i = 0; i < 32; ++i) {
    const uint32_t word = load<uint16_t>(file + 2 + 2 * i);
    put_2(coded, i / 4, i % 4, lattice_2xs[word & 511], signs_of(word >> 9));
  }
  memcpy(coded + 96, file + 66, 8);
  memcpy(coded + 104, file, 2);
}

bool uncode_2xs(const uint8_t* coded, uint8_t* file) {
  bool valid = true;
  for (int i = 0; i < 32; ++i) {
    uint32_t pairs;
    uint8_t signs;
    get_2(coded, i / 4, i % 4, &pairs, &signs);
    const uint32_t index = index_2(inverse_2xs, pairs);
    valid = valid && index != no_index && even(signs);
    store(file + 2 + 2 * i, uint16_t((index & 511) | uint32_t(signs & 127) << 9));
  }
  memcpy(file + 66, coded + 96, 8);
  memcpy(file, coded + 104, 2);
  return valid;
}

// IQ2_S: half d, low eight bits of 32 indices, 256 signs, their ninth and tenth bits, 16 scales of four bits.
void code_2s(const uint8_t* file, uint8_t* coded) {
  memset(coded, 0, 96);
  for (int i = 0; i < 32; ++i) {
    const uint32_t index = file[2 + i] | (file[66 + i / 4] >> i % 4 * 2 & 3u) << 8;
    put_2(coded, i / 4, i % 4, lattice_2s[index], file[34 + i]);
  }
  memcpy(coded + 96, file + 74, 8);
  memcpy(coded + 104, file, 2);
}

bool uncode_2s(const uint8_t* coded, uint8_t* file) {
  bool valid = true;
  memset(file + 66, 0, 8);
  for (int i = 0; i < 32; ++i) {
    uint32_t pairs;
    get_2(coded, i / 4, i % 4, &pairs, file + 34 + i);
    const uint32_t index = index_2(inverse_2s, pairs);
    valid = valid && index != no_index;
    file[2 + i] = uint8_t(index);
    file[66 + i / 4] |= uint8_t((index >> 8 & 3) << i % 4 * 2);
  }
  memcpy(file + 74, coded + 96, 8);
  memcpy(file, coded + 104, 2);
  return valid;
}

} // namespace

void code_block(int32_t type, const uint8_t* file, uint8_t* coded) {
  switch (type) {
    case type_iq3_xxs: return code_3xxs(file, coded);
    case type_iq3_s: return code_3s(file, coded);
    case type_iq2_xxs: return code_2xxs(file, coded);
    case type_iq2_xs: return code_2xs(file, coded);
    case type_iq2_s: return code_2s(file, coded);
    default: return; // callers hold a coded type
  }
}

bool uncode_block(int32_t type, const uint8_t* coded, uint8_t* file) {
  switch (type) {
    case type_iq3_xxs: return uncode_3xxs(coded, file);
    case type_iq3_s: return uncode_3s(coded, file);
    case type_iq2_xxs: return uncode_2xxs(coded, file);
    case type_iq2_xs: return uncode_2xs(coded, file);
    case type_iq2_s: return uncode_2s(coded, file);
    default: return false; // callers hold a coded type
  }
}

} // namespace mr::cpu
