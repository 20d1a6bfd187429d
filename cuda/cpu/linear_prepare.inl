// Activations of one path: int8 blocks with their sums, and tiled fp32. A path provides store_block(p, q, sums), which stores 32 integers
// of -127 .. 127 as bytes and gives the sums of the first and of the last 16.

constexpr int block_vectors = 32 / lanes;

// Quantises 32 inputs. Rounding is to nearest even by adding 1.5 * 2^23, whose low mantissa bits then hold the integer.
MR_INLINE void quantize_block(const float* x, ActBlock* out) {
  constexpr float magic = 0x1.8p23f;
  constexpr int32_t magic_bits = 0x4b400000, infinity_bits = 0x7f800000;
  f32v v[block_vectors];
  i32v magnitudes[block_vectors], q[block_vectors];
#pragma GCC unroll 8
  for (int i = 0; i < block_vectors; ++i) {
    v[i] = load_as<f32v>(x + i * lanes);
    magnitudes[i] = (i32v)v[i] & 0x7fffffff;
    q[i] = i32v{};
  }
  // As integers, magnitudes order like the floats they are, with infinity and then NaN above all numbers.
  const int32_t top = fold(magnitudes, [](const i32v& a, const i32v& b) __attribute__((always_inline)) { return a > b ? a : b; });
  float amax;
  __builtin_memcpy(&amax, &top, 4);
  out->none = 0;
  out->s = fold(v, [](const f32v& a, const f32v& b) __attribute__((always_inline)) { return a + b; });
  if (top >= infinity_bits) {
    out->d = __builtin_nanf("");
  } else {
    // Below 2^-100 the factor 127/amax would overflow: x is scaled up by 2^64 first, which is exact.
    const float up = amax < 0x1p-100f ? 0x1p64f : 1.0f;
    const float factor = amax > 0 ? 127.0f / (amax * up) : 0.0f;
    out->d = amax / 127.0f;
#pragma GCC unroll 8
    for (int i = 0; i < block_vectors; ++i) q[i] = (i32v)(v[i] * up * factor + magic) - magic_bits;
  }
  int32_t sums[2];
  store_block(out->q, q, sums);
  out->bias8 = -8 * (sums[0] + sums[1]);
  out->bias16 = -16 * (sums[0] + sums[1]);
  out->bias128 = -128 * (sums[0] + sums[1]);
  out->bias32[0] = -32 * sums[0];
  out->bias32[1] = -32 * sums[1];
}

[[maybe_unused]] void prepare_int8(const float* x, int64_t ldx, int64_t in, int64_t tokens, int64_t t0, int64_t t1, uint8_t* act) {
  ActBlock* blocks = reinterpret_cast<ActBlock*>(act);
  for (int64_t t = t0; t < t1; ++t) {
    const Tile tile = tile_of(int8_tile, tokens, t);
    for (int64_t k = 0; k < in; k += quant_group) {
      const int64_t n = min_of(quant_group, in - k) / 32;
      ActBlock* out = blocks + k / 32 * tokens + tile.first * n + (t - tile.first);
      for (int64_t b = 0; b < n; ++b) quantize_block(x + t * ldx + k + 32 * b, out + b * tile.width);
    }
  }
}

[[maybe_unused]] void prepare_f32(const float* x, int64_t ldx, int64_t in, int64_t tokens, int64_t t0, int64_t t1, uint8_t* act) {
  float* inputs = reinterpret_cast<float*>(act);
  for (int64_t t = t0; t < t1; ++t) {
    const Tile tile = tile_of(f32_tile, tokens, t);
    for (int64_t k = 0; k < in; k += float_group) {
      const int64_t n = min_of(float_group, in - k);
      float* out = inputs + k * tokens + tile.first * n + (t - tile.first);
      const float* from = x + t * ldx + k;
      for (int64_t i = 0; i < n; ++i) out[i * tile.width] = from[i];
    }
  }
}
