// Products in plain C++: every processor runs them, and they are the shortest statement of the other paths' results.
#pragma GCC optimize("fp-contract=off")

#include <stdint.h>

#include <utility>

#include "linear_format.h"
#include "linear_kernels.h"

namespace mr::cpu {

namespace {

constexpr int lanes = 4;

#include "linear_vector.inl"

constexpr bool high_scaled = true; // sums are 32 bits wide

MR_INLINE void store_block(int8_t* p, const i32v (&q)[8], int32_t (&sums)[2]) {
  sums[0] = sums[1] = 0;
  for (int i = 0; i < 32; ++i) sums[i / 16] += p[i] = int8_t(q[i / lanes][i % lanes]);
}

MR_INLINE float half_at(const uint8_t* p) {
  const uint32_t h = load_as<uint16_t>(p), sign = (h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
  uint32_t bits;
  if (exponent == 31) {
    bits = 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0u);
  } else if (exponent != 0) {
    bits = (exponent + 112) << 23 | mantissa << 13;
  } else {
    const float v = float(mantissa) * 0x1p-24f;
    __builtin_memcpy(&bits, &v, 4);
  }
  bits |= sign;
  return load_as<float>(&bits);
}

MR_INLINE f32v halves_at(const uint8_t* p) { return f32v{half_at(p), half_at(p + 2), half_at(p + 4), half_at(p + 6)}; }
MR_INLINE f32v bytes_at(const uint8_t* p) { return f32v{float(p[0]), float(p[1]), float(p[2]), float(p[3])}; }
MR_INLINE f32v signed_at(const uint8_t* p) {
  return f32v{float(int8_t(p[0])), float(int8_t(p[1])), float(int8_t(p[2])), float(int8_t(p[3]))};
}

MR_INLINE u8v table_of(const int8_t (&values)[16], int bias, const u8v& index) {
  u8v v;
  for (int i = 0; i < vector_bytes; ++i) v[i] = uint8_t(values[index[i]] + bias);
  return v;
}

#include "linear_prepare.inl"
#include "linear_expand.inl"
#include "linear_dot.inl"

MR_INLINE int64_t wide_int8(int64_t) { return 1; }
MR_INLINE int64_t wide_f32(int64_t) { return 1; }
MR_INLINE bool nibbles_as_they_lie(int64_t) { return false; }

// A number of each row of a panel.
typedef float f32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));

MR_INLINE f32x16 halves_of_panel(const uint8_t* p) {
  f32x16 v;
  for (int r = 0; r < panel_rows; ++r) v[r] = half_at(p + r * 2);
  return v;
}

MR_INLINE f32x16 load_sum(const Dot& a, int64_t c) {
  return a.first ? f32x16{} : load_as<f32x16>(a.sums[0] + c * panel_rows);
}

MR_INLINE void store_sum(const Dot& a, int64_t c, const f32x16& v) {
  if (!a.last) return store_as(a.sums[0] + c * panel_rows, v);
  for (int64_t r = 0; r < a.rows[0]; ++r) a.y[0][c * a.ldy + r] = v[r];
}

// Dot products of 16 rows with `steps` groups of four inputs.
MR_INLINE void dot_rows(const uint8_t* w, const int8_t* x, int steps, int32_t start, float* out) {
  int32_t dot[panel_rows];
  for (int r = 0; r < panel_rows; ++r) dot[r] = start;
  for (int g = 0; g < steps; ++g, w += 64, x += 4) {
    for (int r = 0; r < panel_rows; ++r) {
      dot[r] += w[4 * r] * x[0] + w[4 * r + 1] * x[1] + w[4 * r + 2] * x[2] + w[4 * r + 3] * x[3];
    }
  }
  for (int r = 0; r < panel_rows; ++r) out[r] = float(dot[r]);
}

void dot_int8(Mode mode, int, int64_t width, const Dot& a) {
  const int parts = parts_of(mode), steps = 8 / parts;
  for (int64_t c = 0; c < width; ++c) {
    f32x16 sum = load_sum(a, c);
    for (int64_t b = 0; b < a.n; ++b) {
      const uint8_t* act = a.act + (b * width + c) * int64_t(sizeof(ActBlock));
      const float d = load_as<float>(act + __builtin_offsetof(ActBlock, d)), s = load_as<float>(act + __builtin_offsetof(ActBlock, s));
      for (int part = 0; part < parts; ++part) {
        const f32x16 scale = mode == Mode::bytes ? halves_of_panel(a.f16[0] + b * 32)
                                                 : load_as<f32x16>(a.d[0] + (b * parts + part) * panel_rows);
        alignas(64) float dot[panel_rows];
        dot_rows(a.w[0] + b * 512 + part * steps * 64, reinterpret_cast<const int8_t*>(act) + part * steps * 4, steps,
                 mode == Mode::halves_mins ? 0 : load_as<int32_t>(act + a.bias + part * 4) * (mode == Mode::halves_wide ? 2 : 1), dot);
        sum += load_as<f32x16>(dot) * (scale * d);
        if (mode == Mode::halves_mins) {
          sum += load_as<f32x16>(a.m[0] + (b * parts + part) * panel_rows) * (float(load_as<int32_t>(act + a.bias + part * 4)) * d);
        }
      }
      if (mode == Mode::mins) sum += load_as<f32x16>(a.m[0] + b * panel_rows) * s;
    }
    store_sum(a, c, sum);
  }
}

MR_INLINE f32x16 weights_at(int32_t type, const uint8_t* w, int64_t k) {
  if (type == type_f32) return load_as<f32x16>(w + k * 64);
  if (type == type_f16) return halves_of_panel(w + k * 32);
  const u32x16 pair = load_as<u32x16>(w + k / 2 * 64);
  return (f32x16)(k % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

void dot_f32(int32_t type, int, int64_t width, const Dot& a) {
  f32x16 run[f32_tile];
  for (int64_t c = 0; c < width; ++c) run[c] = f32x16{};
  for (int64_t k = 0; k < a.n; ++k) {
    const f32x16 w = weights_at(type, a.w[0], k);
    for (int64_t c = 0; c < width; ++c) run[c] += w * load_as<float>(a.act + (k * width + c) * 4);
  }
  for (int64_t c = 0; c < width; ++c) store_sum(a, c, a.first ? run[c] : load_sum(a, c) + run[c]);
}

#include "linear_tiles.inl"
#include "linear_multiply.inl"

} // namespace

const Kernels kernels_portable[2] = {{prepare_f32, multiply_f32}, {prepare_int8, multiply_int8}};

} // namespace mr::cpu
