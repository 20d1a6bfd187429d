// The weight formats and their products in float64, written from the formats' definitions and from the numeric rules of
// ../linear.h alone: no code is shared with the engine. Also makes files of random and of extreme blocks.
#ifndef MILLRACE_CPU_CPPTEST_REFERENCE_H
#define MILLRACE_CPU_CPPTEST_REFERENCE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <random>
#include <vector>

#include "../lattices.h"
#include "../linear.h"

namespace reference {

using namespace mr;
using namespace mr::cpu;

struct Shape { int64_t block, bytes; int half_count; int64_t halves[2]; bool float_type; };

inline Shape shape(int32_t type) {
  switch (type) {
    case type_f32: return {1, 4, 0, {0, 0}, true};
    case type_f16: case type_bf16: return {1, 2, 0, {0, 0}, true};
    case type_q8_0: return {32, 34, 1, {0, 0}, false};
    case type_q4_0: case type_iq4_nl: return {32, 18, 1, {0, 0}, false};
    case type_mxfp4: return {32, 17, 0, {0, 0}, false};
    case type_nvfp4: return {64, 36, 0, {0, 0}, false};
    case type_q4_1: return {32, 20, 2, {0, 2}, false};
    case type_q5_0: return {32, 22, 1, {0, 0}, false};
    case type_q5_1: return {32, 24, 2, {0, 2}, false};
    case type_q2_k: return {256, 84, 2, {80, 82}, false};
    case type_q3_k: return {256, 110, 1, {108, 0}, false};
    case type_iq4_xs: return {256, 136, 1, {0, 0}, false};
    case type_iq2_xxs: return {256, 66, 1, {0, 0}, false};
    case type_iq2_xs: return {256, 74, 1, {0, 0}, false};
    case type_iq2_s: return {256, 82, 1, {0, 0}, false};
    case type_iq3_xxs: return {256, 98, 1, {0, 0}, false};
    case type_iq3_s: return {256, 110, 1, {0, 0}, false};
    case type_q4_k: return {256, 144, 2, {0, 2}, false};
    case type_q5_k: return {256, 176, 2, {0, 2}, false};
    default: return {256, 210, 1, {208, 0}, false};
  }
}

inline double half_value(const uint8_t* p) {
  const int h = p[0] | p[1] << 8, e = h >> 10 & 31, m = h & 1023;
  const double magnitude = e == 0 ? ldexp(m, -24) : e == 31 ? (m == 0 ? INFINITY : NAN) : ldexp(1024 + m, e - 25);
  return h & 0x8000 ? -magnitude : magnitude;
}

// The weight is scaled + shift; shift is what formats with mins add. It is multiplied by x, or by x rounded like the rest.
struct Weight { double scaled, shift; bool rounded = false; };

inline bool negative(uint32_t seven, int i) {
  int ones = 0;
  for (int bit = 0; bit < 7; ++bit) ones += seven >> bit & 1;
  return i < 7 ? (seven >> i & 1) != 0 : ones % 2 == 1;
}

inline double lattice_weight(int32_t type, const uint8_t* p, int i) {
  static const int twos[4] = {8, 25, 43, -1000}, threes[8] = {4, 12, 20, 28, 36, 44, 52, 62};
  const int block = i / 32, l = i % 32 / 8, j = i % 8;
  uint32_t word = 0;
  double d = half_value(p), v = 0;
  bool minus = false;
  switch (type) {
    case type_iq2_xxs:
      memcpy(&word, p + 2 + 8 * block + 4, 4);
      d *= (0.5 + (word >> 28)) * 0.25;
      v = twos[lattice_2xxs[p[2 + 8 * block + l]] >> 2 * j & 3];
      minus = negative(word >> 7 * l & 127, j);
      break;
    case type_iq2_xs:
      word = uint32_t(p[2 + 2 * (4 * block + l)] | p[3 + 2 * (4 * block + l)] << 8);
      d *= (0.5 + (l < 2 ? p[66 + block] % 16 : p[66 + block] / 16)) * 0.25;
      v = twos[lattice_2xs[word % 512] >> 2 * j & 3];
      minus = negative(word / 512, j);
      break;
    case type_iq2_s:
      d *= (0.5 + (l < 2 ? p[74 + block] % 16 : p[74 + block] / 16)) * 0.25;
      v = twos[lattice_2s[p[2 + 4 * block + l] + 256 * (p[66 + block] >> 2 * l & 3)] >> 2 * j & 3];
      minus = (p[34 + 4 * block + l] >> j & 1) != 0;
      break;
    case type_iq3_xxs:
      memcpy(&word, p + 66 + 4 * block, 4);
      d *= (0.5 + (word >> 28)) * 0.5;
      v = threes[lattice_3xxs[p[2 + 8 * block + 2 * l + j / 4]] >> 3 * (j % 4) & 7];
      minus = negative(word >> 7 * l & 127, j);
      break;
    default: // IQ3_S
      d *= 1 + 2 * (block % 2 == 0 ? p[106 + block / 2] % 16 : p[106 + block / 2] / 16);
      v = 1 + 2 * (lattice_3s[p[2 + 8 * block + 2 * l + j / 4] + 256 * (p[66 + block] >> (2 * l + j / 4) & 1)] >> 3 * (j % 4) & 7);
      minus = (p[74 + 4 * block + l] >> j & 1) != 0;
  }
  return minus ? -d * v : d * v;
}

inline Weight weight(int32_t type, const uint8_t* p, int i) {
  static const int table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  const auto four = [&](int at) { return p[at + i % 16] >> (i < 16 ? 0 : 4) & 15; };
  const auto five = [&](int at, int bits) { return four(at) + 16 * (p[bits + i / 8] >> (i % 8) & 1); };
  switch (type) {
    case type_f32: { float v; memcpy(&v, p, 4); return {v, 0}; }
    case type_f16: return {half_value(p), 0};
    case type_bf16: { const uint32_t b = uint32_t(p[0] | p[1] << 8) << 16; float v; memcpy(&v, &b, 4); return {v, 0}; }
    case type_q8_0: return {half_value(p) * (p[2 + i] < 128 ? p[2 + i] : p[2 + i] - 256), 0};
    case type_q4_0: return {half_value(p) * (four(2) - 8), 0};
    case type_iq4_nl: return {half_value(p) * table[four(2)], 0};
    case type_mxfp4: {
      static const double magnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      const double v = ldexp(magnitudes[four(1) % 8], p[0] - 127);
      return {four(1) < 8 ? v : -v, 0};
    }
    case type_nvfp4: {
      static const double magnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      const int scale = p[i / 16], exponent = scale / 8 % 16, both = p[4 + i / 16 * 8 + i % 8], q = i % 16 < 8 ? both % 16 : both / 16;
      const double d = scale == 127 ? 0 : exponent == 0 ? ldexp(scale % 8, -9) : ldexp(8 + scale % 8, exponent - 10);
      return {(q < 8 ? d : -d) * magnitudes[q % 8], 0};
    }
    case type_q4_1: return {half_value(p) * four(4), half_value(p + 2)};
    case type_q5_0: return {half_value(p) * (five(6, 2) - 16), 0};
    case type_q5_1: return {half_value(p) * five(8, 4), half_value(p + 2)};
    case type_q2_k: {
      const int q = p[16 + i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3;
      return {half_value(p + 80) * (p[i / 16] % 16) * q, -half_value(p + 82) * (p[i / 16] / 16), true};
    }
    case type_q3_k: {
      const int j = i / 16, low = j < 8 ? p[96 + j] % 16 : p[96 + j - 8] / 16, high = p[104 + j % 4] >> 2 * (j / 4) & 3;
      const int q = (p[32 + i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3) - ((p[i % 32] & 1 << i / 32) != 0 ? 0 : 4);
      return {half_value(p + 108) * (low + 16 * high - 32) * q, 0};
    }
    case type_iq4_xs: {
      const int j = i / 32, high = (p[2] | p[3] << 8) >> 2 * j & 3, low = p[4 + j / 2] >> 4 * (j % 2) & 15;
      const int byte = p[8 + 16 * j + i % 16];
      return {half_value(p) * (low + 16 * high - 32) * table[i % 32 < 16 ? byte % 16 : byte / 16], 0};
    }
    case type_iq2_xxs:
    case type_iq2_xs:
    case type_iq2_s:
    case type_iq3_xxs:
    case type_iq3_s: return {lattice_weight(type, p, i), 0};
    case type_q4_k:
    case type_q5_k: {
      const uint8_t* s = p + 4;
      const int j = i / 32, low = j % 4;
      // Six bits each: blocks 0..3 plain, blocks 4..7 four bits here and two in the tops of the first eight bytes.
      const int scale = j < 4 ? s[low] % 64 : s[8 + low] % 16 + s[low] / 64 * 16;
      const int min = j < 4 ? s[4 + low] % 64 : s[8 + low] / 16 + s[4 + low] / 64 * 16;
      const int byte = p[(type == type_q4_k ? 16 : 48) + j / 2 * 32 + i % 32];
      int q = j % 2 == 0 ? byte % 16 : byte / 16;
      if (type == type_q5_k && (p[16 + i % 32] & 1 << j) != 0) q += 16;
      return {half_value(p) * scale * q, -half_value(p + 2) * min};
    }
    default: { // Q6_K
      const int part = i % 128 / 32, l = i % 32, upper = i / 128;
      const int byte = p[upper * 64 + (part & 1) * 32 + l];
      const int q = (part < 2 ? byte % 16 : byte / 16) + 16 * (p[128 + upper * 32 + l] >> 2 * part & 3) - 32;
      const int scale = p[192 + i / 16] < 128 ? p[192 + i / 16] : p[192 + i / 16] - 256;
      return {half_value(p + 208) * scale * q, 0};
    }
  }
}

inline void decode_parts(int32_t type, const uint8_t* file, int64_t in, Weight* out) {
  const Shape s = shape(type);
  for (int64_t k = 0; k < in; ++k) out[k] = weight(type, file + k / s.block * s.bytes, int(k % s.block));
}

inline void decode_row(int32_t type, const uint8_t* file, int64_t in, double* out) {
  std::vector<Weight> w(static_cast<size_t>(in));
  decode_parts(type, file, in, w.data());
  for (int64_t k = 0; k < in; ++k) out[k] = w[size_t(k)].scaled + w[size_t(k)].shift;
}

// Activations of one token as the rules want them.
struct Token {
  std::vector<double> x, rounded; // rounded = d * q in quantised products, to bf16 in those of bf16, else x
  std::vector<double> quantum;    // the distance of the numbers x is rounded to: d of its block, of bf16; 0 when it is not
  double least = 0;               // below which products of bf16 count as zero
};

// x to the nearest bf16, ties to even, with the distance between bf16 numbers there.
inline double to_bf16(double x, double* quantum) {
  if (fabs(x) < 0x1p-126) { // zero and what counts as zero
    *quantum = 2 * fabs(x);
    return 0;
  }
  int exponent;
  frexp(x, &exponent);
  *quantum = ldexp(1, exponent - 8);
  return nearbyint(x / *quantum) * *quantum;
}

inline Token token(int32_t type, Activation kind, const float* x, int64_t in) {
  Token t;
  for (int64_t k = 0; k < in; ++k) t.x.push_back(double(x[k]));
  t.rounded = t.x;
  t.quantum.assign(size_t(in), 0);
  if (kind == Activation::bf16) {
    t.least = 0x1p-126;
    for (size_t k = 0; k < size_t(in); ++k) t.rounded[k] = to_bf16(t.x[k], &t.quantum[k]);
  }
  if (shape(type).float_type) return t;
  for (int64_t b = 0; b < in; b += 32) {
    float amax = 0;
    for (int i = 0; i < 32; ++i) amax = fmaxf(amax, fabsf(x[b + i]));
    const float d = amax / 127.0f, up = amax < 0x1p-100f ? 0x1p64f : 1.0f, factor = amax > 0 ? 127.0f / (amax * up) : 0.0f;
    for (int i = 0; i < 32; ++i) {
      const float scaled = x[b + i] * up * factor;
      t.rounded[size_t(b + i)] = double(d) * nearbyint(double(scaled));
      t.quantum[size_t(b + i)] = double(d);
    }
  }
  return t;
}

struct Product { double value, bound; };

// The product of a row and a token. The bound is that of fp32 sums: each of the additions may lose half a unit of the sum
// of magnitudes so far, and below the normal numbers an absolute 2^-149 times the largest integer sum. A token whose int8
// form is further than half a quantum from x makes the bound NaN, which nothing passes.
inline Product multiply(int32_t type, const Weight* w, const Token& t) {
  const Shape s = shape(type);
  double value = 0, exact = 0, magnitude = 0, loss = 0;
  const size_t in = t.x.size();
  for (size_t k = 0; k < in; ++k) {
    const double shifted = w[k].shift * (w[k].rounded ? t.rounded[k] : t.x[k]);
    value += w[k].scaled * t.rounded[k] + shifted;
    exact += (w[k].scaled + w[k].shift) * t.x[k];
    magnitude += fabs(w[k].scaled * t.rounded[k]) + fabs(shifted);
    loss += (fabs(w[k].scaled) + (w[k].rounded ? fabs(w[k].shift) : 0)) * (0.501 * t.quantum[k] + (s.float_type ? 0 : 127 * 0x1p-149));
  }
  const double n = double(in), steps = s.float_type ? 128 + n / 128 : n / 16 + 40, tiny = n * (t.least + (s.float_type ? 1 : 0x1p15) * 0x1p-148);
  Product p{value, steps * 0x1p-23 * magnitude + tiny};
  if (!(fabs(value - exact) <= loss + 1e-9 * magnitude)) p.bound = NAN;
  return p;
}

// Equal, or ordered and within a finite bound: NaN never passes.
inline bool close(float got, Product want) {
  uint32_t bits;
  memcpy(&bits, &got, 4);
  if ((bits & 0x7f800000u) == 0x7f800000u) return false; // by its bits, so that no compiler flag can blind this
  const double err = fabs(double(got) - want.value);
  return std::isfinite(want.bound) && err <= want.bound;
}

// The largest magnitude random_file gives a weight, for absolute bounds on single weights.
inline double largest(int32_t type) { return shape(type).float_type ? 1 : 0.02 * 127 * 63; }

inline void put_half(uint8_t* p, uint16_t h) { p[0] = uint8_t(h); p[1] = uint8_t(h >> 8); }

inline std::vector<uint8_t> random_file(int32_t type, int64_t in, int64_t out, std::mt19937& random) {
  const Shape s = shape(type);
  std::vector<uint8_t> file(file_size(type, in, out));
  for (uint8_t& b : file) b = uint8_t(random());
  for (size_t at = 0; at < file.size(); at += size_t(s.bytes)) {
    uint8_t* p = file.data() + at;
    const float v = std::uniform_real_distribution<float>(-1, 1)(random);
    uint32_t bits;
    memcpy(&bits, &v, 4);
    if (type == type_f32) memcpy(p, &v, 4);
    if (type == type_bf16) put_half(p, uint16_t(bits >> 16));
    if (type == type_f16) put_half(p, uint16_t((random() & 0x8000) | random() % 0x3c00)); // below 1, subnormals too
    if (type == type_mxfp4) *p = uint8_t(110 + random() % 14);
    for (int i = 0; type == type_nvfp4 && i < 4; ++i) p[i] = uint8_t(random() % 40);
    for (int i = 0; i < s.half_count; ++i) put_half(p + s.halves[i], uint16_t((random() & 0x8000) | (0x1c00 + random() % 0x800)));
  }
  return file;
}

constexpr int extreme_kinds = 7;

inline std::vector<uint8_t> extreme_file(int32_t type, int64_t in, int64_t out, int kind, std::mt19937& random) {
  const Shape s = shape(type);
  static const uint16_t scales[extreme_kinds] = {0x3c00 /* 1 */, 0, 0xbc00 /* -1 */, 0x0001 /* 2^-24 */, 0x7bff /* 65504 */, 0xfbff, 0x83ff};
  static const int fills[extreme_kinds] = {0xff, -1, 0x00, -1, 0xff, 0x80, 0x7f}; // -1: random
  static const uint8_t exponents[extreme_kinds] = {127, 0, 127, 103, 142, 142, 103}, nvfp4_scales[extreme_kinds] = {0x38, 0, 0x38, 1, 0x7e, 0xfe, 0x7f};
  std::vector<uint8_t> file = random_file(type, in, out, random);
  for (size_t at = 0; at < file.size(); at += size_t(s.bytes)) {
    uint8_t* p = file.data() + at;
    if (s.float_type) {
      const float v = kind == 4 ? 1e15f : kind == 5 ? -1e15f : float(half_value(reinterpret_cast<const uint8_t*>(&scales[kind])));
      uint32_t bits;
      memcpy(&bits, &v, 4);
      if (type == type_f32) memcpy(p, &v, 4);
      else put_half(p, type == type_bf16 ? uint16_t(bits >> 16) : scales[kind]);
      continue;
    }
    if (fills[kind] >= 0) memset(p, fills[kind], size_t(s.bytes));
    if (type == type_mxfp4) *p = exponents[kind];
    if (type == type_nvfp4) memset(p, nvfp4_scales[kind], 4);
    for (int i = 0; i < s.half_count; ++i) put_half(p + s.halves[i], scales[kind]);
  }
  return file;
}

} // namespace reference

#endif
