// vecops: the vector operations of a step, one table of functions for each path. All f32 unless stated.
//
// Bits: for one path every function is a pure function of its arguments: sums run over lanes and then over the lanes of
// the last vector in a fixed order that depends on the length alone. Results do not depend on whether denormals are
// flushed where inputs and outputs are normal numbers.
#pragma once

#include <stdint.h>

#include "attention.h"
#include "isa.h"
#include "millrace/engine.h"

namespace mr::cpu {

// The gated delta rule of one head at `count` positions, one after another. Rows of positions lie `stride` floats apart, those of
// out `out_stride`. At each: S = decay S; S = S + k (beta (v - k^T S))^T; out = q^T S.
struct DeltaArgs {
  float* s;                      // (key_dim, value_dim)
  int32_t key_dim, value_dim;
  int64_t count, stride, out_stride;
  const float *q, *k, *v;        // of the first position
  const float *decay, *beta;     // (count)
  float* out;
};

struct VecOps {
  // out[i] = a[i] * (1 / sqrt(mean(a^2) + eps)) * weight[i]; a null weight is ones; out may be a.
  void (*rms_norm)(const float* a, const float* weight, float eps, int64_t n, float* out);
  // out = exp(a - max) / sum; a row of -inf gives zeros, one with NaN gives NaN; out may be a.
  void (*softmax)(const float* a, int64_t n, float* out);
  // out = a / (1 + exp(-a)), and that times b; out may be an input.
  void (*silu)(const float* a, int64_t n, float* out);
  void (*swiglu)(const float* a, const float* b, int64_t n, float* out);
  // out = gelu(a) * b, where gelu(a) = a / (1 + exp(-2 sqrt(2/pi) (a + 0.044715 a^3))); out may be an input.
  void (*geglu)(const float* a, const float* b, int64_t n, float* out);
  // out = y / (1 + exp(-1.702 y)) * (1 + max(-7, min(b, 7))) of y = min(a, 7); out may be an input.
  void (*clamped_glu)(const float* a, const float* b, int64_t n, float* out);
  // out = limit * tanh(a / limit), at most 1e-6 * limit off; out may be a.
  void (*cap)(const float* a, float limit, int64_t n, float* out);
  void (*add)(const float* a, const float* b, int64_t n, float* out);
  void (*mul)(const float* a, const float* b, int64_t n, float* out);
  void (*scale)(const float* a, float factor, int64_t n, float* out);
  void (*exp)(const float* a, int64_t n, float* out);  // at most 1.01 ulp; 0 below -87.3
  // Rotates the first `dims` values of one head in place; `turns` comes from rope_turns of the same style.
  void (*rope)(float* head, const float* turns, int32_t dims, int32_t style);

  // out[i] = sum over j < count, ascending, of taps[j * n + i] * rows[j][i]; a null row is zeros.
  void (*convolve)(const float* const* rows, const float* taps, int32_t count, int64_t n, float* out);
  // out = a * factor / sqrt(sum of squares + 1e-6); out may be a.
  void (*unit)(const float* a, float factor, int64_t n, float* out);
  void (*delta)(const DeltaArgs& args);

  // Stores a key head and a value head (head_dim values each; null: not this one) into the cache at one token of a block:
  // see KvLayout. A latent is stored as a value head.
  void (*kv_store)(const float* key, const float* value, const KvLayout& layout, int32_t block, int32_t offset,
                   int32_t kv_head, uint8_t* keys, uint8_t* values);
  // Causal attention of up to attention_rows(group) rows that share one kv head.
  void (*attend)(const AttentionArgs& args);
  // The same in two parts, so that several threads can compute the chunks. attend_chunks writes a record of attention_record
  // floats for each row and each of chunks [from, to); a row that sees no key of a chunk gets any record. The second function
  // merges the records into `state`, which is also a record, from chunk 0 on and in order. With the last chunk that any row
  // sees, it writes the rows' outputs.
  void (*attend_chunks)(const AttentionArgs& args, int32_t from, int32_t to, float* records);
  void (*merge_chunks)(const AttentionArgs& args, int32_t from, int32_t to, float* records, float* state);
  int32_t attention_tile;  // rows that one call of attend works on best

  // The greatest value (-inf when n is 0); NaN when any value is NaN.
  float (*greatest)(const float* x, int64_t n);
  // The first index >= from with x > bound (n if none).
  int64_t (*find_greater)(const float* x, int64_t from, int64_t n, float bound);
  // The first index with x >= bound (n if none).
  int64_t (*find_at_least)(const float* x, int64_t n, float bound);
  // sum of exp(x - top); terms in f32, sum in double.
  double (*sum_exp)(const float* x, int64_t n, float top);
  int64_t (*count_greater)(const float* x, int64_t n, float bound);
  int64_t (*count_equal)(const float* x, int64_t n, float value);
  // weights[i] = exp((x[i] - top) / temperature); x == top gives 1.
  void (*weights)(const float* x, int64_t n, float top, float temperature, float* weights);
  // Sum of mass(w) over weights >= floor, where mass(w) = w * 2^40 rounded to nearest even; weights in [0, 1].
  uint64_t (*mass_at_least)(const float* weights, int64_t n, float floor);
  // out[i] = bit i of words ? x[i] : -inf; x may be out.
  void (*mask)(const float* x, const uint32_t* words, int64_t n, float* out);
};

// The table of a path that this processor can run.
const VecOps& vec_ops(Isa isa);

// The unit of the fixed-point masses, and one weight's mass: what mass_at_least sums.
constexpr double mass_unit = 1099511627776.0;  // 2^40
inline uint64_t mass(float weight) {
  constexpr double round = 4503599627370496.0;  // 2^52: the sum rounds to an integer, ties to even
  return static_cast<uint64_t>((static_cast<double>(weight) * mass_unit + round) - round);
}

// What rope needs at one position, rope_floats(dims) floats: the cosines and sines of position * frequency[i], times magnitude, in the
// order its style reads them. frequencies has dims/2 entries.
constexpr int64_t rope_floats(int32_t dims) { return 2 * static_cast<int64_t>(dims); }
void rope_turns(const double* frequencies, int32_t dims, int32_t style, int64_t position, float magnitude, float* turns);
// frequencies[i] = base^(-2i/dims) / scale / divisors[i]; divisors may be null.
void rope_frequencies(int32_t dims, float base, float scale, const double* divisors, double* frequencies);

}  // namespace mr::cpu
