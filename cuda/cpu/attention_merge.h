// attention_merge: how the chunks of attention become one, for the path of the file that includes it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attention.h"
#include "vecops_simd.h"

namespace mr::cpu {
namespace {

// What a row has seen of one chunk, or of all up to one: a record of attention_record floats.
struct ChunkRecord {
  float* sum;     // (rows, padded_value): values weighted by exp(score - top)
  float* top;     // (rows): the greatest score
  float* weight;  // (rows): sum of exp(score - top)

  ChunkRecord(float* record, int32_t rows, int64_t padded_dim)
      : sum(record), top(sum + rows * padded_dim), weight(top + rows) {}
};

float decay(float from, float to) {  // exp(from - to), 0 when nothing was seen yet
  if (from == -__builtin_inff()) return 0;
  return exp(splat(from - to))[0];
}

// Rows [begin, end) of `all` take those of `one`, the chunk behind what they have seen.
void merge_chunk(const ChunkRecord& all, const ChunkRecord& one, int32_t begin, int32_t end, int64_t dim) {
  for (int32_t r = begin; r < end; ++r) {
    const float m = one.top[r];
    const float merged = m > all.top[r] ? m : all.top[r];
    const float old_share = decay(all.top[r], merged), new_share = decay(m, merged);
    all.weight[r] = all.weight[r] * old_share + one.weight[r] * new_share;
    const VF x = splat(old_share), y = splat(new_share);
    float* const sum = all.sum + r * dim;
    const float* const part = one.sum + r * dim;
    for (int64_t d = 0; d < dim; d += W) store(sum + d, load(sum + d) * x + load(part + d) * y);
    all.top[r] = merged;
  }
}

// Rows [begin, end) of `all` begin with those of `one`.
void begin_rows(const ChunkRecord& all, const ChunkRecord& one, int32_t begin, int32_t end, int64_t dim) {
  if (begin >= end) return;
  __builtin_memcpy(all.sum + begin * dim, one.sum + begin * dim, static_cast<size_t>((end - begin) * dim) * sizeof(float));
  for (int32_t r = begin; r < end; ++r) {
    all.top[r] = one.top[r];
    all.weight[r] = one.weight[r];
  }
}

// Takes the sink of each row into account, as a last chunk whose value is nothing.
void merge_sinks(const AttentionArgs& a, const ChunkRecord& all) {
  for (int32_t r = 0; r < a.rows; ++r) {
    const float sink = a.sinks[r % a.group], merged = sink > all.top[r] ? sink : all.top[r];
    const float share = decay(all.top[r], merged);
    all.weight[r] = all.weight[r] * share + decay(sink, merged);
    all.top[r] = merged;
    float* const sum = all.sum + r * a.layout.padded_value();
    for (int64_t d = 0; d < a.layout.padded_value(); d += W) store(sum + d, load(sum + d) * splat(share));
  }
}

// The rows' outputs, when `all` has seen all of theirs.
void give_rows(const AttentionArgs& a, const ChunkRecord& all) {
  const int64_t dim = a.layout.padded_value();
  const int32_t width = a.layout.value_dim();
  if (a.sinks != nullptr) merge_sinks(a, all);
  for (int32_t r = 0; r < a.rows; ++r) {
    const VF divisor = splat(all.weight[r] == 0 ? 1.0f : all.weight[r]);
    int32_t d = 0;
    for (; d + W <= width; d += W) store(a.out[r] + d, load(all.sum + r * dim + d) / divisor);
    if (d < width) store_some(a.out[r] + d, width - d, load(all.sum + r * dim + d) / divisor);
  }
}

void merge_chunks(const AttentionArgs& args, int32_t from, int32_t to, float* records, float* state) {
  const int64_t dim = args.layout.padded_value(), size = attention_record(args.rows, dim);
  const ChunkRecord all(state, args.rows, dim);
  int32_t begin = 0, before = 0;
  for (int32_t c = from; c < to; ++c, records += size) {
    while (args.visible[begin] <= c * attention_chunk) ++begin;
    while (before < args.rows && args.first_chunk(before) < c) ++before;
    int32_t end = before;
    while (end < args.rows && args.first_chunk(end) == c) ++end;
    const ChunkRecord one(records, args.rows, dim);
    if (begin < before) merge_chunk(all, one, begin, before, dim);
    begin_rows(all, one, before, end, dim);
  }
  if (to == attention_chunks(args.visible[args.rows - 1])) give_rows(args, all);
}

}  // namespace
}  // namespace mr::cpu
