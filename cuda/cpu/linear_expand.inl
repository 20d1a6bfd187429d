// A group of packed quants as a kernel wants them: one byte a weight, fp32 scales and mins for 16 rows. What is stored is
// spread out, never rounded: an f16 scale times a 6- or 8-bit integer is exact in fp32.
//
// A path provides, for as many rows as a vector has lanes: halves_at(p), f16 as fp32; bytes_at(p) and signed_at(p), bytes as fp32; then
// table_of(index), the biased IQ4_NL values; and high_scaled: whether high nibbles may stay 16 times too large, their scale 16 times
// smaller.

struct alignas(64) Expanded {
  uint8_t w[quant_group * panel_rows]; // [block][input / 4][row][input % 4]
  float d[16][panel_rows];             // by 32 inputs; Q6_K by 16
  float m[8][panel_rows];              // by 32 inputs; what is added for each unit of sum(x)
};

MR_INLINE u8v low4(const u8v& v) { return v & 15; }
MR_INLINE u8v high4(const u8v& v) { return (u8v)((u16v)v >> 4) & 15; }

// Bit `from` of each byte, moved to bit `to`, under a mask of the bits wanted there.
template <int from, int to>
MR_INLINE u8v move_bits(const u8v& v, uint8_t mask) {
  if constexpr (from > to) return (u8v)((u16v)v >> (from - to)) & mask;
  else if constexpr (from < to) return (u8v)((u16v)v << (to - from)) & mask;
  else return v & mask;
}

MR_INLINE void halves(const uint8_t* plane, int64_t n, float (*out)[panel_rows]) {
  for (int64_t b = 0; b < n; ++b) {
#pragma GCC unroll 4
    for (int i = 0; i < panel_vectors; ++i) store_as(out[b] + i * lanes, halves_at(plane + b * 32 + i * lanes * 2));
  }
}

// Formats of 32 inputs a block. Nibble plane v holds inputs 4v..4v+3 low and 16+4v.. high.
template <int32_t type>
MR_INLINE void expand_simple(const uint8_t* group, int64_t n, Expanded& e) {
  constexpr bool fifths = type == type_q5_0 || type == type_q5_1; // bit g of a byte belongs to inputs 4g..4g+3
  const uint8_t* p = group;
  const uint8_t* bits = group + n * 256;
  for (int64_t b = 0; b < n; ++b, p += 256) {
    for (int at = 0; at < 64; at += vector_bytes) {
      u8v low[4], high[4];
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const u8v both = load_as<u8v>(p + 64 * v + at);
        low[v] = low4(both);
        high[v] = high4(both);
        if constexpr (type == type_iq4_nl) {
          low[v] = table_of(low[v]);
          high[v] = table_of(high[v]);
        }
      }
      if constexpr (fifths) {
        const u8v h = load_as<u8v>(bits + b * 64 + at);
        low[0] |= move_bits<0, 4>(h, 16);
        low[1] |= move_bits<1, 4>(h, 16);
        low[2] |= move_bits<2, 4>(h, 16);
        low[3] |= move_bits<3, 4>(h, 16);
        high[0] |= move_bits<4, 4>(h, 16);
        high[1] |= move_bits<5, 4>(h, 16);
        high[2] |= move_bits<6, 4>(h, 16);
        high[3] |= move_bits<7, 4>(h, 16);
      }
      uint8_t* w = e.w + b * 512 + at;
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        store_as(w + 64 * v, low[v]);
        store_as(w + 256 + 64 * v, high[v]);
      }
    }
  }
  if constexpr (fifths) p += n * 64;
  halves(p, n, e.d);
  if constexpr (type == type_q4_1 || type == type_q5_1) halves(p + n * 32, n, e.m);
}

// d * scale and -dmin * min of the eight 32-blocks of a K group. `odd` multiplies the scales of odd blocks.
MR_INLINE void scales_k(const uint8_t* packed, const uint8_t* d, float odd, Expanded& e) {
  alignas(64) uint8_t scale[8][panel_rows], min[8][panel_rows];
  for (int at = 0; at < 64; at += vector_bytes) {
    const u8v a = load_as<u8v>(packed + at), b = load_as<u8v>(packed + 64 + at), c = load_as<u8v>(packed + 128 + at);
    store_as(scale[0] + at, a & 63);
    store_as(scale[4] + at, low4(c) | move_bits<6, 4>(a, 0x30));
    store_as(min[0] + at, b & 63);
    store_as(min[4] + at, high4(c) | move_bits<6, 4>(b, 0x30));
  }
  for (int at = 0; at < panel_rows; at += lanes) {
    const f32v even_d = halves_at(d + at * 2), odd_d = even_d * odd, minus_dmin = -halves_at(d + 32 + at * 2);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      store_as(e.d[j] + at, (j % 2 == 0 ? even_d : odd_d) * bytes_at(scale[j] + at));
      store_as(e.m[j] + at, minus_dmin * bytes_at(min[j] + at));
    }
  }
}

MR_INLINE void scales_q4_k(const uint8_t* group, Expanded& e) {
  scales_k(group + 2048, group + 2048 + 192, high_scaled ? 0.0625f : 1.0f, e);
}

MR_INLINE void expand_q4_k(const uint8_t* group, Expanded& e) {
  for (int pair = 0; pair < 4; ++pair) { // low nibbles are block 2*pair, high ones block 2*pair+1
    uint8_t* w = e.w + pair * 1024;
#pragma GCC unroll 8
    for (int at = 0; at < 512; at += vector_bytes) {
      const u8v both = load_as<u8v>(group + pair * 512 + at);
      store_as(w + at, low4(both));
      store_as(w + 512 + at, high_scaled ? both & 0xf0 : high4(both));
    }
  }
  scales_q4_k(group, e);
}

template <int pair>
MR_INLINE void expand_q5_k_pair(const uint8_t* group, Expanded& e) {
  uint8_t* w = e.w + pair * 1024;
  for (int at = 0; at < 512; at += vector_bytes) { // bit j of a byte of the second plane belongs to block j
    const u8v both = load_as<u8v>(group + pair * 512 + at), h = load_as<u8v>(group + 2048 + at);
    store_as(w + at, low4(both) | move_bits<2 * pair, 4>(h, 16));
    store_as(w + 512 + at, high4(both) | move_bits<2 * pair + 1, 4>(h, 16));
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
    for (int at = 0; at < 512; at += vector_bytes) {
      const u8v a = load_as<u8v>(low + at), b = load_as<u8v>(low + 512 + at), h = load_as<u8v>(high + at);
      store_as(w + at, low4(a) | move_bits<0, 4>(h, 0x30));
      store_as(w + 512 + at, low4(b) | move_bits<2, 4>(h, 0x30));
      store_as(w + 1024 + at, high4(a) | move_bits<4, 4>(h, 0x30));
      store_as(w + 1536 + at, high4(b) | move_bits<6, 4>(h, 0x30));
    }
  }
  for (int at = 0; at < panel_rows; at += lanes) {
    const f32v d = halves_at(group + 3072 + 256 + at * 2);
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) store_as(e.d[j] + at, d * signed_at(group + 3072 + j * 16 + at));
  }
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
