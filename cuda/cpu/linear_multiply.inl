// Products of quantised and of float weights over a path's kernels: wide_int8(tokens) and wide_f32(tokens), how many panels
// they take at once when a product has that many tokens, and dot_int8(mode, panels, width, Dot) and dot_f32(type, panels,
// width, Dot) for that many; and nibbles_as_they_lie(tokens): whether Q4_K's quants are then taken without being spread.

MR_INLINE int64_t bias_offset(int32_t type) {
  switch (type) {
    case type_q8_0: case type_iq4_nl: case type_iq4_xs: case type_iq3_xxs: case type_iq3_s: case type_iq2_xxs:
      return __builtin_offsetof(ActBlock, bias128);
    case type_q4_0: return __builtin_offsetof(ActBlock, bias8);
    case type_q5_0: case type_mxfp4: return __builtin_offsetof(ActBlock, bias16);
    case type_q2_k: case type_q3_k: case type_q6_k: case type_iq2_xs: case type_iq2_s: case type_nvfp4:
      return __builtin_offsetof(ActBlock, bias32);
    default: return __builtin_offsetof(ActBlock, none);
  }
}

// Of a weight as a kernel wants it.
MR_INLINE int bits_of(int32_t type) {
  switch (type) {
    case type_q8_0: case type_iq4_nl: case type_iq4_xs: case type_iq3_xxs: case type_iq3_s: case type_iq2_xxs: return 8;
    case type_iq2_xs: case type_iq2_s: return 7;
    case type_q3_k: case type_q6_k: case type_nvfp4: return 6;
    case type_q5_0: case type_q5_1: case type_q5_k: case type_mxfp4: return 5;
    case type_q2_k: return 2;
    default: return 4;
  }
}

MR_INLINE Mode mode_of(int32_t type) {
  if (type == type_q8_0) return Mode::bytes;
  if (type == type_q2_k) return Mode::halves_mins;
  if (type == type_q3_k || type == type_q6_k || type == type_nvfp4) return Mode::halves;
  if (type == type_iq2_xs || type == type_iq2_s) return Mode::halves_wide;
  if (type == type_q4_1 || type == type_q5_1 || type == type_q4_k || type == type_q5_k) return Mode::mins;
  return Mode::plain;
}

void multiply_int8(const Matrix& m, const uint8_t* act, int64_t tokens, float* y, int64_t ldy, int64_t panel0,
                   int64_t panel1, const uint8_t* then) {
  const int32_t type = m.type;
  const Mode mode = type == type_q4_k && nibbles_as_they_lie(tokens) ? Mode::nibbles : mode_of(type);
  Expanded expanded[max_panels];
  const auto expand_panel = [&](Dot& a, int64_t i, const uint8_t* group) {
    a.w[i] = mode == Mode::bytes || mode == Mode::nibbles ? group : expand(type, group, a.n, expanded[i]);
    if (mode == Mode::nibbles) scales_q4_k(group, expanded[i]);
    if (mode == Mode::bytes) a.f16[i] = group + a.n * 512;
    a.d[i] = expanded[i].d[0];
    a.m[i] = expanded[i].m[0];
    a.bias = bias_offset(type);
    a.bits = bits_of(type);
  };
  each_tile(m, act, tokens, y, ldy, panel0, panel1, then, wide_int8(tokens), int8_tile, 32, int64_t(sizeof(ActBlock)),
            quant_group / 32, expand_panel, [&](int panels, int64_t width, const Dot& a) { dot_int8(mode, panels, width, a); });
}

void multiply_f32(const Matrix& m, const uint8_t* act, int64_t tokens, float* y, int64_t ldy, int64_t panel0,
                   int64_t panel1, const uint8_t* then) {
  const int32_t type = m.type;
  const auto expand_panel = [](Dot& a, int64_t i, const uint8_t* group) { a.w[i] = group; };
  each_tile(m, act, tokens, y, ldy, panel0, panel1, then, wide_f32(tokens), f32_tile, 1, int64_t(sizeof(float)), 1, expand_panel,
            [&](int panels, int64_t width, const Dot& a) { dot_f32(type, panels, width, a); });
}
