// A group of packed quants as a kernel wants them: one byte a weight, fp32 scales and mins for 16 rows. What is stored is
// spread out, never rounded: an f16 scale times a 6- or 8-bit integer is exact in fp32.
//
// A path provides, for as many rows as a vector has lanes: halves_at(p), f16 as fp32; bytes_at(p) and signed_at(p), bytes as fp32; then
// table_of(values, bias, index), the values at the indices plus bias; and high_scaled: whether high nibbles may stay 16 times too large, their scale 16 times
// smaller.

struct alignas(64) Expanded {
  uint8_t w[quant_group * panel_rows]; // [block][input / 4][row][input % 4]
  float d[16][panel_rows];             // by 32 inputs; by 16 in types with a scale for 16
  float m[16][panel_rows];             // by 32 inputs; what is added for each unit of sum(x). Q2_K by 16: for each of bias32
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

// A byte of each of the 16 rows.
typedef uint8_t RowBytes __attribute__((vector_size(panel_rows)));
typedef uint16_t RowWords __attribute__((vector_size(panel_rows)));

// The bits of each byte from bit `from` on, under a mask.
MR_INLINE RowBytes row_bits(const uint8_t* p, int from, uint8_t mask) {
  return (RowBytes)(load_as<RowWords>(p) >> (uint16_t)from) & mask;
}

MR_INLINE void halves(const uint8_t* plane, int64_t n, float (*out)[panel_rows]) {
  for (int64_t b = 0; b < n; ++b) {
#pragma GCC unroll 4
    for (int i = 0; i < panel_vectors; ++i) store_as(out[b] + i * lanes, halves_at(plane + b * 32 + i * lanes * 2));
  }
}

// Spreads the indices in nibbles of a group of a block into values, biased by 128.
MR_INLINE void expand_levels(const int8_t (&values)[16], const uint8_t* p, Expanded& e) {
  for (int at = 0; at < 2048; at += 256) {
    for (int v = 0; v < 256; v += vector_bytes) {
      const u8v both = load_as<u8v>(p + at + v);
      store_as(e.w + 2 * at + v, table_of(values, 128, low4(both)));
      store_as(e.w + 2 * at + 256 + v, table_of(values, 128, high4(both)));
    }
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
          low[v] = table_of(iq4_nl_values, 128, low[v]);
          high[v] = table_of(iq4_nl_values, 128, high[v]);
        }
        if constexpr (type == type_mxfp4) {
          low[v] = table_of(mxfp4_values, 16, low[v]);
          high[v] = table_of(mxfp4_values, 16, high[v]);
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
  if constexpr (type == type_mxfp4) {
    for (int64_t i = 0; i < n * panel_rows; ++i) e.d[i / panel_rows][i % panel_rows] = mxfp4_scales.of[p[i]];
    return;
  }
  halves(p, n, e.d);
  if constexpr (type == type_q4_1 || type == type_q5_1) halves(p + n * 32, n, e.m);
}

// A block of 64 has four scales. Cell c of its nibbles holds inputs 16(c/2) + 4(c%2) .. + 3 low, and those eight later high.
MR_INLINE void expand_nvfp4(const uint8_t* group, int64_t n, Expanded& e) {
  for (int64_t c = 0; c < 4 * n; ++c) {
    uint8_t* const w = e.w + (c / 2 * 4 + c % 2) * 64;
    for (int at = 0; at < 64; at += vector_bytes) {
      const u8v both = load_as<u8v>(group + 64 * c + at);
      store_as(w + at, table_of(mxfp4_values, 32, low4(both)));
      store_as(w + 128 + at, table_of(mxfp4_values, 32, high4(both)));
    }
  }
  const uint8_t* const p = group + n * 256;
  for (int64_t i = 0; i < 2 * n * panel_rows; ++i) e.d[i / panel_rows][i % panel_rows] = nvfp4_scales.of[p[i]];
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

// Blocks 0 to 3 of a half of Q2_K and Q3_K share bytes: two bits each, from the lowest up.
template <int block>
MR_INLINE void expand_q2_k_block(const uint8_t* group, Expanded& e) {
  for (int at = 0; at < 512; at += vector_bytes)
    store_as(e.w + block * 512 + at, move_bits<block % 4 * 2, 0>(load_as<u8v>(group + block / 4 * 512 + at), 3));
}

// The sum of 16 int8 is kept as bias32, which is -32 times as large: mins are 32 times smaller, and so positive.
MR_INLINE void expand_q2_k(const uint8_t* group, Expanded& e) {
  expand_q2_k_block<0>(group, e);
  expand_q2_k_block<1>(group, e);
  expand_q2_k_block<2>(group, e);
  expand_q2_k_block<3>(group, e);
  expand_q2_k_block<4>(group, e);
  expand_q2_k_block<5>(group, e);
  expand_q2_k_block<6>(group, e);
  expand_q2_k_block<7>(group, e);
  const uint8_t* const packed = group + 1024;
  for (int j = 0; j < 16; ++j) {
    alignas(16) uint8_t scale[panel_rows], min[panel_rows];
    store_as(scale, row_bits(packed + j * panel_rows, 0, 15));
    store_as(min, row_bits(packed + j * panel_rows, 4, 15));
    for (int at = 0; at < panel_rows; at += lanes) {
      store_as(e.d[j] + at, halves_at(packed + 256 + at * 2) * bytes_at(scale + at));
      store_as(e.m[j] + at, halves_at(packed + 288 + at * 2) * 0.03125f * bytes_at(min + at));
    }
  }
}

// Quants of -4 .. 3, stored biased by 4; Mode::halves takes out 32.
template <int block>
MR_INLINE void expand_q3_k_block(const uint8_t* group, Expanded& e) {
  for (int at = 0; at < 512; at += vector_bytes) {
    const u8v low = move_bits<block % 4 * 2, 0>(load_as<u8v>(group + block / 4 * 512 + at), 3);
    store_as(e.w + block * 512 + at, (low | move_bits<block, 2>(load_as<u8v>(group + 1024 + at), 4)) + 28);
  }
}

// Scales of six bits, biased by 32: four bits in the low halves of the first eight bytes and then in the high ones; two bits in
// the last four bytes, from the lowest up.
MR_INLINE void expand_q3_k(const uint8_t* group, Expanded& e) {
  expand_q3_k_block<0>(group, e);
  expand_q3_k_block<1>(group, e);
  expand_q3_k_block<2>(group, e);
  expand_q3_k_block<3>(group, e);
  expand_q3_k_block<4>(group, e);
  expand_q3_k_block<5>(group, e);
  expand_q3_k_block<6>(group, e);
  expand_q3_k_block<7>(group, e);
  const uint8_t* const packed = group + 1024 + 512;
  for (int j = 0; j < 16; ++j) {
    alignas(16) uint8_t scale[panel_rows];
    store_as(scale, row_bits(packed + j % 8 * panel_rows, j / 8 * 4, 15) |
                        row_bits(packed + (8 + j % 4) * panel_rows, j / 4 * 2, 3) << (uint8_t)4);
    for (int at = 0; at < panel_rows; at += lanes)
      store_as(e.d[j] + at, halves_at(packed + 192 + at * 2) * (bytes_at(scale + at) - 32.0f));
  }
}

// Scales of six bits, biased by 32: nibbles, then two bits each of the eight in a word, from the lowest up.
MR_INLINE void expand_iq4_xs(const uint8_t* group, Expanded& e) {
  expand_levels(iq4_nl_values, group, e);
  const uint8_t* const low = group + 2048;
  const uint8_t* const high = low + 64;
  for (int j = 0; j < 8; ++j) {
    alignas(16) uint8_t scale[panel_rows];
    store_as(scale, row_bits(low + j / 2 * panel_rows, j % 2 * 4, 15) | row_bits(high + j / 4 * panel_rows, j % 4 * 2, 3) << (uint8_t)4);
    for (int at = 0; at < panel_rows; at += lanes)
      store_as(e.d[j] + at, halves_at(high + 32 + at * 2) * (bytes_at(scale + at) - 32.0f));
  }
}

// Scales of four bits, which stand for (s + 1/2) times twice `factor`.
template <int count>
MR_INLINE void scales_of_nibbles(const uint8_t* packed, float factor, Expanded& e) {
  const uint8_t* const d = packed + count / 2 * panel_rows;
  for (int j = 0; j < count; ++j) {
    alignas(16) uint8_t scale[panel_rows];
    store_as(scale, row_bits(packed + j / 2 * panel_rows, j % 2 * 4, 15) * (uint8_t)2 + (uint8_t)1);
    for (int at = 0; at < panel_rows; at += lanes) store_as(e.d[j] + at, halves_at(d + at * 2) * factor * bytes_at(scale + at));
  }
}

MR_INLINE void expand_iq3(const int8_t (&values)[16], float factor, const uint8_t* group, Expanded& e) {
  expand_levels(values, group, e);
  scales_of_nibbles<8>(group + 2048, factor, e);
}

template <int block, int bias>
MR_INLINE void expand_iq2_block(const uint8_t* group, Expanded& e) {
  for (int at = 0; at < 512; at += vector_bytes) {
    const u8v magnitude = move_bits<block % 4 * 2, 0>(load_as<u8v>(group + block / 4 * 512 + at), 3);
    const u8v code = magnitude | move_bits<block, 2>(load_as<u8v>(group + 1024 + at), 4);
    store_as(e.w + block * 512 + at, table_of(iq2_values, bias, code));
  }
}

template <int scales, int bias>
MR_INLINE void expand_iq2(const uint8_t* group, Expanded& e) {
  expand_iq2_block<0, bias>(group, e);
  expand_iq2_block<1, bias>(group, e);
  expand_iq2_block<2, bias>(group, e);
  expand_iq2_block<3, bias>(group, e);
  expand_iq2_block<4, bias>(group, e);
  expand_iq2_block<5, bias>(group, e);
  expand_iq2_block<6, bias>(group, e);
  expand_iq2_block<7, bias>(group, e);
  scales_of_nibbles<scales>(group + 1024 + 512, 0.125f, e);
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
    case type_mxfp4: expand_simple<type_mxfp4>(group, n, e); break;
    case type_nvfp4: expand_nvfp4(group, n, e); break;
    case type_q2_k: expand_q2_k(group, e); break;
    case type_q3_k: expand_q3_k(group, e); break;
    case type_q4_k: expand_q4_k(group, e); break;
    case type_q5_k: expand_q5_k(group, e); break;
    case type_q6_k: expand_q6_k(group, e); break;
    case type_iq4_xs: expand_iq4_xs(group, e); break;
    case type_iq3_xxs: expand_iq3(iq3_xxs_values, 0.25f, group, e); break;
    case type_iq3_s: expand_iq3(iq3_s_values, 1.0f, group, e); break;
    case type_iq2_xxs: expand_iq2<8, 128>(group, e); break;
    case type_iq2_xs: case type_iq2_s: expand_iq2<16, 64>(group, e); break;
    default: break; // callers hold a supported quantised matrix
  }
  return e.w;
}
