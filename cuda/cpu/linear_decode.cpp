// Blocks of one row, from file bytes to fp32: the plain statement of what each format means.
#include <string.h>

#include "lattices.h"
#include "linear_format.h"
#include "linear_kernels.h"

#pragma GCC optimize("fp-contract=off")

namespace mr::cpu {

namespace {

float f16(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, 2);
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0u); // NaN stays NaN, made quiet
  } else if (exponent != 0) {
    bits = sign | (exponent + 112) << 23 | mantissa << 13;
  } else {
    const float v = float(mantissa) * 0x1p-24f;
    memcpy(&bits, &v, 4);
    bits |= sign;
  }
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

// Low nibbles are inputs 0..15, high ones 16..31.
int nibble(const uint8_t* q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }

int fifth(const uint8_t* p, int i) {
  uint32_t bits;
  memcpy(&bits, p, 4);
  return int(bits >> i & 1) << 4;
}

// Scale and min of 32-block j of a K block: 6 bits each, packed into 12 bytes.
void scale_min(const uint8_t* s, int j, int* scale, int* min) {
  if (j < 4) {
    *scale = s[j] & 63;
    *min = s[j + 4] & 63;
  } else {
    *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *min = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
  }
}

// Eight signs from seven bits: an even number of them are negative.
int sign(uint32_t seven, int i) {
  const uint32_t eight = seven | (uint32_t(__builtin_popcount(seven)) & 1) << 7;
  return (eight >> i & 1) != 0 ? -1 : 1;
}

// Magnitudes of weight i of 8 in IQ2, of 4 in IQ3.
int magnitude_2(uint32_t entry, int i) { return iq2_values[entry >> 2 * i & 3]; }
int magnitude_3(uint32_t entry, int i, const int8_t* values) { return values[entry >> 3 * i & 7]; }

uint32_t word_at(const uint8_t* p) { return uint32_t(p[0]) | uint32_t(p[1]) << 8 | uint32_t(p[2]) << 16 | uint32_t(p[3]) << 24; }

// The scale of d from four bits, and a weight.
float lattice_scale(float d, int nibble, float factor) { return d * float(2 * nibble + 1) * factor; }

void decode_lattice(int32_t type, const uint8_t* p, float* out) {
  const float d = f16(p);
  for (int i = 0; i < 256; ++i) {
    const int b = i / 32, eight = i / 8, four = i / 4;
    switch (type) {
      case type_iq2_xxs: {
        const uint32_t word = word_at(p + 6 + 8 * b);
        out[i] = lattice_scale(d, int(word >> 28), 0.125f) * float(magnitude_2(lattice_2xxs[p[2 + 8 * b + eight % 4]], i % 8) * sign(word >> eight % 4 * 7 & 127, i % 8));
        break;
      }
      case type_iq2_xs: {
        const uint32_t word = uint32_t(p[2 + 2 * eight]) | uint32_t(p[3 + 2 * eight]) << 8;
        out[i] = lattice_scale(d, p[66 + b] >> i / 16 % 2 * 4 & 15, 0.125f) * float(magnitude_2(lattice_2xs[word & 511], i % 8) * sign(word >> 9, i % 8));
        break;
      }
      case type_iq2_s: {
        const uint32_t index = p[2 + eight] | (p[66 + b] >> eight % 4 * 2 & 3u) << 8;
        const int v = magnitude_2(lattice_2s[index], i % 8);
        out[i] = lattice_scale(d, p[74 + b] >> i / 16 % 2 * 4 & 15, 0.125f) * float((p[34 + eight] >> i % 8 & 1) != 0 ? -v : v);
        break;
      }
      case type_iq3_xxs: {
        const uint32_t word = word_at(p + 66 + 4 * b);
        out[i] = lattice_scale(d, int(word >> 28), 0.25f) * float(magnitude_3(lattice_3xxs[p[2 + four]], i % 4, iq3_xxs_values) * sign(word >> eight % 4 * 7 & 127, i % 8));
        break;
      }
      default: { // IQ3_S
        const uint32_t index = p[2 + four] | (p[66 + b] >> four % 8 & 1u) << 8;
        const int v = magnitude_3(lattice_3s[index], i % 4, iq3_s_values);
        out[i] = lattice_scale(d, p[106 + b / 2] >> b % 2 * 4 & 15, 1.0f) * float((p[74 + eight] >> i % 8 & 1) != 0 ? -v : v);
        break;
      }
    }
  }
}

void decode_block(int32_t type, const uint8_t* p, float* out) {
  switch (type) {
    case type_f32: memcpy(out, p, 4); return;
    case type_f16: out[0] = f16(p); return;
    case type_bf16: {
      const uint32_t bits = uint32_t(p[0]) << 16 | uint32_t(p[1]) << 24;
      memcpy(out, &bits, 4);
      return;
    }
    case type_q8_0:
      for (int i = 0; i < 32; ++i) out[i] = float(int8_t(p[2 + i])) * f16(p);
      return;
    case type_q4_0:
      for (int i = 0; i < 32; ++i) out[i] = float(nibble(p + 2, i) - 8) * f16(p);
      return;
    case type_iq4_nl:
      for (int i = 0; i < 32; ++i) out[i] = float(iq4_nl_values[nibble(p + 2, i)]) * f16(p);
      return;
    case type_mxfp4:
      for (int i = 0; i < 32; ++i) out[i] = float(mxfp4_values[nibble(p + 1, i)]) * mxfp4_scales.of[p[0]];
      return;
    case type_nvfp4:
      for (int i = 0; i < 64; ++i) {
        const uint8_t both = p[4 + i / 16 * 8 + i % 8];
        out[i] = float(mxfp4_values[i % 16 < 8 ? both & 15 : both >> 4]) * nvfp4_scales.of[p[i / 16]];
      }
      return;
    case type_q4_1:
      for (int i = 0; i < 32; ++i) out[i] = float(nibble(p + 4, i)) * f16(p) + f16(p + 2);
      return;
    case type_q5_0:
      for (int i = 0; i < 32; ++i) out[i] = float((nibble(p + 6, i) | fifth(p + 2, i)) - 16) * f16(p);
      return;
    case type_q5_1:
      for (int i = 0; i < 32; ++i) out[i] = float(nibble(p + 8, i) | fifth(p + 4, i)) * f16(p) + f16(p + 2);
      return;
    case type_q2_k:
      for (int i = 0; i < 256; ++i) {
        const uint8_t both = p[i / 16];
        const float d = f16(p + 80) * float(both & 15), m = f16(p + 82) * float(both >> 4);
        out[i] = d * float(p[16 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) - m;
      }
      return;
    case type_q3_k:
      for (int i = 0; i < 256; ++i) {
        const int j = i / 16, scale = (p[96 + j % 8] >> j / 8 * 4 & 15) | (p[104 + j % 4] >> j / 4 * 2 & 3) << 4;
        const int v = (p[32 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) | (p[i % 32] >> i / 32 & 1) << 2;
        out[i] = f16(p + 108) * float(scale - 32) * float(v - 4);
      }
      return;
    case type_q4_k:
    case type_q5_k:
      for (int j = 0; j < 8; ++j) {
        const uint8_t* q = p + (type == type_q4_k ? 16 : 48) + j / 2 * 32;
        int scale, min;
        scale_min(p + 4, j, &scale, &min);
        const float d = f16(p) * float(scale), m = f16(p + 2) * float(min);
        for (int i = 0; i < 32; ++i) {
          int v = j % 2 == 0 ? q[i] & 15 : q[i] >> 4;
          if (type == type_q5_k) v |= (p[16 + i] >> j & 1) << 4;
          out[32 * j + i] = d * float(v) - m;
        }
      }
      return;
    case type_q6_k:
      for (int i = 0; i < 256; ++i) {
        const int half = i / 128, j = i / 32 % 4, l = i % 32;
        const uint8_t low = p[64 * half + 32 * (j % 2) + l], high = p[128 + 32 * half + l];
        const int v = ((j < 2 ? low & 15 : low >> 4) | (high >> (2 * j) & 3) << 4) - 32;
        out[i] = f16(p + 208) * float(int8_t(p[192 + i / 16])) * float(v);
      }
      return;
    case type_iq4_xs:
      for (int i = 0; i < 256; ++i) {
        const int j = i / 32, scale = (p[4 + j / 2] >> j % 2 * 4 & 15) | (p[2 + j / 4] >> j % 4 * 2 & 3) << 4;
        out[i] = f16(p) * float(scale - 32) * float(iq4_nl_values[nibble(p + 8 + 16 * j, i % 32)]);
      }
      return;
    case type_iq2_xxs: case type_iq2_xs: case type_iq2_s: case type_iq3_xxs: case type_iq3_s: return decode_lattice(type, p, out);
    default: return; // callers hold a supported matrix
  }
}

} // namespace

void decode_rows(int32_t type, const uint8_t* file_rows, int64_t in, int64_t n, float* out) {
  decode_blocks(type, file_rows, n * (in / find_format(type)->block), out);
}

void decode_blocks(int32_t type, const uint8_t* file, int64_t count, float* out) {
  const Format& f = *find_format(type);
  for (int64_t b = 0; b < count; ++b) decode_block(type, file + b * f.block_bytes, out + b * f.block);
}

} // namespace mr::cpu
