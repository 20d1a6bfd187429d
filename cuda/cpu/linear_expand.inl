// A group of packed quants as a kernel wants them: one byte a weight, fp32 scales and mins for 16 rows. What is stored is
// spread out, never rounded: an f16 scale times a 6- or 8-bit integer is exact in fp32.
//
// A path provides: half16(p), 16 f16 as fp32; bytes16(p) and signed16(p), 16 bytes as fp32; table16(idx), the biased
// IQ4_NL values; and high_scaled: whether high nibbles may stay 16 times too large, their scale 16 times smaller.

struct alignas(64) Expanded {
  uint8_t w[quant_group * panel_rows]; // [block][input / 4][row][input % 4]
  float d[16][panel_rows];             // by 32 inputs; Q6_K by 16
  float m[8][panel_rows];              // by 32 inputs; what is added for each unit of sum(x)
};

MR_INLINE u8x64 low4(const u8x64& v) { return v & 15; }
MR_INLINE u8x64 high4(const u8x64& v) { return (u8x64)((u16x32)v >> 4) & 15; }

// Bit `from` of each byte, moved to bit `to`, under a mask of the bits wanted there.
template <int from, int to>
MR_INLINE u8x64 move_bits(const u8x64& v, uint8_t mask) {
  if constexpr (from > to) return (u8x64)((u16x32)v >> (from - to)) & mask;
  else if constexpr (from < to) return (u8x64)((u16x32)v << (to - from)) & mask;
  else return v & mask;
}

MR_INLINE void halves(const uint8_t* plane, int64_t n, float (*out)[panel_rows]) {
  for (int64_t b = 0; b < n; ++b) store_as(out[b], half16(plane + b * 32));
}

// Formats of 32 inputs a block. Nibble plane v holds inputs 4v..4v+3 low and 16+4v.. high.
template <int32_t type>
MR_INLINE void expand_simple(const uint8_t* group, int64_t n, Expanded& e) {
  const uint8_t* p = group;
  const uint8_t* bits = group + n * 256;
  for (int64_t b = 0; b < n; ++b, p += 256) {
    uint8_t* w = e.w + b * 512;
    u8x64 low[4], high[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const u8x64 both = load_as<u8x64>(p + 64 * v);
      low[v] = low4(both);
      high[v] = high4(both);
      if constexpr (type == type_iq4_nl) {
        low[v] = table16(low[v]);
        high[v] = table16(high[v]);
      }
    }
    if constexpr (type == type_q5_0 || type == type_q5_1) { // bit g of a byte belongs to inputs 4g..4g+3
      const u8x64 h = load_as<u8x64>(bits + b * 64);
      low[0] |= move_bits<0, 4>(h, 16);
      low[1] |= move_bits<1, 4>(h, 16);
      low[2] |= move_bits<2, 4>(h, 16);
      low[3] |= move_bits<3, 4>(h, 16);
      high[0] |= move_bits<4, 4>(h, 16);
      high[1] |= move_bits<5, 4>(h, 16);
      high[2] |= move_bits<6, 4>(h, 16);
      high[3] |= move_bits<7, 4>(h, 16);
    }
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      store_as(w + 64 * v, low[v]);
      store_as(w + 256 + 64 * v, high[v]);
    }
  }
  if constexpr (type == type_q5_0 || type == type_q5_1) p += n * 64;
  halves(p, n, e.d);
  if constexpr (type == type_q4_1 || type == type_q5_1) halves(p + n * 32, n, e.m);
}

// d * scale and -dmin * min of the eight 32-blocks of a K group. `odd` multiplies the scales of odd blocks.
MR_INLINE void scales_k(const uint8_t* packed, const uint8_t* d, float odd, Expanded& e) {
  const u8x64 a = load_as<u8x64>(packed), b = load_as<u8x64>(packed + 64), c = load_as<u8x64>(packed + 128);
  alignas(64) uint8_t scale[8][panel_rows], min[8][panel_rows];
  store_as(scale[0], a & 63);
  store_as(scale[4], low4(c) | move_bits<6, 4>(a, 0x30));
  store_as(min[0], b & 63);
  store_as(min[4], high4(c) | move_bits<6, 4>(b, 0x30));
  const f32x16 even_d = half16(d), odd_d = even_d * odd, minus_dmin = -half16(d + 32);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    store_as(e.d[j], (j % 2 == 0 ? even_d : odd_d) * bytes16(scale[j]));
    store_as(e.m[j], minus_dmin * bytes16(min[j]));
  }
}

MR_INLINE void scales_q4_k(const uint8_t* group, Expanded& e) {
  scales_k(group + 2048, group + 2048 + 192, high_scaled ? 0.0625f : 1.0f, e);
}

MR_INLINE void expand_q4_k(const uint8_t* group, Expanded& e) {
  for (int pair = 0; pair < 4; ++pair) { // low nibbles are block 2*pair, high ones block 2*pair+1
    uint8_t* w = e.w + pair * 1024;
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) {
      const u8x64 both = load_as<u8x64>(group + pair * 512 + v * 64);
      store_as(w + v * 64, low4(both));
      store_as(w + 512 + v * 64, high_scaled ? both & 0xf0 : high4(both));
    }
  }
  scales_q4_k(group, e);
}

template <int pair>
MR_INLINE void expand_q5_k_pair(const uint8_t* group, Expanded& e) {
  uint8_t* w = e.w + pair * 1024;
  for (int v = 0; v < 8; ++v) { // bit j of a byte of the second plane belongs to block j
    const u8x64 both = load_as<u8x64>(group + pair * 512 + v * 64), h = load_as<u8x64>(group + 2048 + v * 64);
    store_as(w + v * 64, low4(both) | move_bits<2 * pair, 4>(h, 16));
    store_as(w + 512 + v * 64, high4(both) | move_bits<2 * pair + 1, 4>(h, 16));
  }
}

MR_INLINE void expand_q5_k(const uint8_t* group, Expanded& e) {
  expand_q5_k_pair<0>(group, e);
  expand_q5_k_pair<1>(group, e);
  expand_q5_k_pair<2>(group, e);
  expand_q5_k_pair<3>(group, e);
  scales_k(group + 2048 + 512, group + 2048 + 512 + 192, 1.0f, e);
}

MR_INLINE void expand_q6_k(const uint8_t* group, Expanded& e) {
  for (int half = 0; half < 2; ++half) { // 128 inputs: blocks 0 and 2 share bytes, 1 and 3 too
    const uint8_t* low = group + half * 1024;
    const uint8_t* high = group + 2048 + half * 512;
    uint8_t* w = e.w + half * 2048;
    for (int v = 0; v < 8; ++v) {
      const u8x64 a = load_as<u8x64>(low + v * 64), b = load_as<u8x64>(low + 512 + v * 64);
      const u8x64 h = load_as<u8x64>(high + v * 64);
      store_as(w + v * 64, low4(a) | move_bits<0, 4>(h, 0x30));
      store_as(w + 512 + v * 64, low4(b) | move_bits<2, 4>(h, 0x30));
      store_as(w + 1024 + v * 64, high4(a) | move_bits<4, 4>(h, 0x30));
      store_as(w + 1536 + v * 64, high4(b) | move_bits<6, 4>(h, 0x30));
    }
  }
  const f32x16 d = half16(group + 3072 + 256);
  for (int j = 0; j < 16; ++j) store_as(e.d[j], d * signed16(group + 3072 + j * 16));
}

// Expands a group of n 32-blocks and returns its quants: in place for Q8_0, else e.w.
MR_INLINE const uint8_t* expand(int32_t type, const uint8_t* group, int64_t n, Expanded& e) {
  switch (type) {
    case type_q8_0: halves(group + n * 512, n, e.d); return group;
    case type_q4_0: expand_simple<type_q4_0>(group, n, e); break;
    case type_q4_1: expand_simple<type_q4_1>(group, n, e); break;
    case type_q5_0: expand_simple<type_q5_0>(group, n, e); break;
    case type_q5_1: expand_simple<type_q5_1>(group, n, e); break;
    case type_iq4_nl: expand_simple<type_iq4_nl>(group, n, e); break;
    case type_q4_k: expand_q4_k(group, e); break;
    case type_q5_k: expand_q5_k(group, e); break;
    case type_q6_k: expand_q6_k(group, e); break;
    default: break; // callers hold a supported quantised matrix
  }
  return e.w;
}
