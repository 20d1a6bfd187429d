// Blocks of one row, from file bytes to fp32: the plain statement of what each format means.
#include <string.h>

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
    case type_q4_1:
      for (int i = 0; i < 32; ++i) out[i] = float(nibble(p + 4, i)) * f16(p) + f16(p + 2);
      return;
    case type_q5_0:
      for (int i = 0; i < 32; ++i) out[i] = float((nibble(p + 6, i) | fifth(p + 2, i)) - 16) * f16(p);
      return;
    case type_q5_1:
      for (int i = 0; i < 32; ++i) out[i] = float(nibble(p + 8, i) | fifth(p + 4, i)) * f16(p) + f16(p + 2);
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
