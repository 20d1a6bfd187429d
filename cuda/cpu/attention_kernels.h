// attention_kernels: cache writes and attention of VecOps for the path of the file that includes it.
#pragma once

#include "attention.h"
#include "attention_merge.h"
#include "millrace/engine.h"
#include "prefetch.h"
#include "vecops_simd.h"

namespace mr::cpu {
namespace {

// Rows whose scores against two vectors of keys (2 chains each), or four vectors of values, stay in registers.
constexpr int kRowsAtOnce = W == 16 ? 6 : 3;
constexpr int kTileRows = 4 * kRowsAtOnce;

int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

template <class Stored>
void kv_store_as(const float* key, const float* value, const KvLayout& l, int32_t block, int32_t offset,
                 int32_t kv_head, uint8_t* keys, uint8_t* values) {
  typedef typename Stored::Element Element;
  const int64_t head = block * l.block_stride() + kv_head * l.head_stride();
  Element* k = reinterpret_cast<Element *>(keys + head) + offset;
  uint8_t* v = values + head + static_cast<int64_t>(offset) * l.padded_dim * static_cast<int64_t>(sizeof(Element));
  for (int32_t d = 0; key != nullptr && d < l.head_dim; d += W) {
    const int32_t n = l.head_dim - d;
    Element lanes[W];
    Stored::store(reinterpret_cast<uint8_t *>(lanes), n >= W ? load(key + d) : load_some(key + d, n, 0));
    for (int32_t i = 0; i < W && i < n; ++i) k[static_cast<int64_t>(d + i) * l.block_size] = lanes[i];
  }
  for (int32_t d = 0; value != nullptr && d < l.padded_dim; d += W) {
    const int32_t n = l.head_dim - d;
    Stored::store(v + static_cast<int64_t>(d) * static_cast<int64_t>(sizeof(Element)),
                  n >= W ? load(value + d) : load_some(value + d, n, 0));
  }
}

void kv_store(const float* key, const float* value, const KvLayout& l, int32_t block, int32_t offset, int32_t kv_head,
              uint8_t* keys, uint8_t* values) {
  switch (l.type) {
    case MR_KV_F16: kv_store_as<StoredF16>(key, value, l, block, offset, kv_head, keys, values); break;
    case MR_KV_BF16: kv_store_as<StoredBF16>(key, value, l, block, offset, kv_head, keys, values); break;
    default: kv_store_as<StoredF32>(key, value, l, block, offset, kv_head, keys, values); break;
  }
}

// Scores of R rows against the 2 W keys at k0 and k1 (W each, `stride` bytes from dim to dim), into out rows of
// attention_chunk floats, second vector behind the first. As many lines from ask0 and ask1 on, as far apart, are asked for
// in passing.
template <class Stored, int R>
MR_INLINE void score_rows(const float* const* q, int32_t dims, const uint8_t* k0, const uint8_t* k1, int64_t stride,
                          float scale, const uint8_t* ask0, const uint8_t* ask1, float* out) {
  VF sum[R][2][2] = {};  // row, parity of the dim, key vector
  const float* row[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) row[r] = q[r];
  int32_t d = 0;
  for (; d + 2 <= dims; d += 2) {
#pragma GCC unroll 2
    for (int parity = 0; parity < 2; ++parity) {
      const VF x0 = Stored::load(k0), x1 = Stored::load(k1);
      prefetch(ask0);
      prefetch(ask1);
      k0 += stride, k1 += stride, ask0 += stride, ask1 += stride;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const VF b = splat(row[r][d + parity]);
        sum[r][parity][0] = fma(b, x0, sum[r][parity][0]);
        sum[r][parity][1] = fma(b, x1, sum[r][parity][1]);
      }
    }
  }
  if (d < dims) {
    const VF x0 = Stored::load(k0), x1 = Stored::load(k1);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const VF b = splat(row[r][d]);
      sum[r][0][0] = fma(b, x0, sum[r][0][0]);
      sum[r][0][1] = fma(b, x1, sum[r][0][1]);
    }
  }
  const VF s = splat(scale);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    store(out + r * attention_chunk, (sum[r][0][0] + sum[r][1][0]) * s);
    store(out + r * attention_chunk + W, (sum[r][0][1] + sum[r][1][1]) * s);
  }
}

// Scores of R rows against K keys of a latent, `dims` dims each, into out rows of attention_chunk floats.
template <class Stored, int R, int K>
MR_INLINE void dot_rows(const float* const* q, int32_t dims, const uint8_t* const* keys, float scale, float* out) {
  constexpr int64_t vector = W * static_cast<int64_t>(sizeof(typename Stored::Element));
  VF sum[R][K] = {};
  const float* row[R];
  const uint8_t* key[K];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) row[r] = q[r];
#pragma GCC unroll 4
  for (int k = 0; k < K; ++k) key[k] = keys[k];
  for (int32_t d = 0; d < dims; d += W) {
    VF part[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) part[r] = load(row[r] + d);
#pragma GCC unroll 4
    for (int k = 0; k < K; ++k) {
      const VF x = Stored::load(key[k]);
      key[k] += vector;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r][k] = fma(part[r], x, sum[r][k]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int k = 0; k < K; ++k) out[r * attention_chunk + k] = fold_sum(sum[r][k]) * scale;
}

// acc[r][0 .. N*W) += sum over `tokens` tokens of p[r][token] * value vector; value rows are `stride` bytes apart. As many
// rows from ask on are asked for in passing.
template <class Stored, int R, int N>
MR_INLINE void weigh_rows(const float* p, int32_t tokens, const uint8_t* v, int64_t stride, const uint8_t* ask,
                          float* acc, int64_t acc_stride) {
  constexpr int64_t vector = W * static_cast<int64_t>(sizeof(typename Stored::Element));
  VF sum[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) sum[r][i] = load(acc + r * acc_stride + i * W);
  for (int32_t t = 0; t < tokens; ++t, v += stride, ask += stride) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      prefetch(ask + i * vector);
      const VF x = Stored::load(v + i * vector);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r][i] = fma(splat(p[r * attention_chunk + t]), x, sum[r][i]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) store(acc + r * acc_stride + i * W, sum[r][i]);
}

// Keys and values lie in blocks of a few kilobytes, and a processor's own prefetching does not follow from one to the next.
// So each is asked for while those before it are read: a chunk's keys, its values, and the keys behind them.
template <class Stored>
struct Attention {
  const AttentionArgs& a;
  const KvLayout& l;
  const int64_t head;  // byte offset of the kv head in a block
  const int64_t element = static_cast<int64_t>(sizeof(typename Stored::Element));

  explicit Attention(const AttentionArgs& args)
      : a(args), l(args.layout), head(args.kv_head * args.layout.head_stride()) {}

  int64_t at(int32_t token) const { return a.blocks[token / l.block_size] * l.block_stride() + head; }
  const uint8_t* key(int32_t token) const {
    return l.latent != 0 ? value(token) : a.keys + at(token) + token % l.block_size * element;
  }
  const uint8_t* value(int32_t token) const {
    return a.values + at(token) + token % l.block_size * l.padded_dim * element;
  }
  int32_t longest() const { return a.visible[a.rows - 1]; }

  // What a thread most likely reads behind the chunk at position base, `token` tokens into it: keys of the next chunk, or
  // from the first on those of the next head. Of the last head it is nothing new.
  const uint8_t* behind(int32_t base, int32_t token) const {
    if (base + attention_chunk < longest()) return key(least(base + attention_chunk + token, longest() - 1));
    return key(least(token, longest() - 1)) + (a.kv_head + 1 < l.kv_heads ? l.head_stride() : 0);
  }

  // Keys [from, count) of the chunk; from is a multiple of 2 W.
  template <int R>
  __attribute__((noinline)) void latent_scores(const float* const* q, int32_t base, int32_t from, int32_t count, float* out) const {
    constexpr int32_t keys = 4;
    int32_t t = from;
    for (; t + keys <= count; t += keys) {
      const uint8_t* const k[keys] = {key(base + t), key(base + t + 1), key(base + t + 2), key(base + t + 3)};
      dot_rows<Stored, R, keys>(q, l.padded_dim, k, a.scale, out + t);
    }
    for (; t < count; ++t) {
      const uint8_t* const k = key(base + t);
      dot_rows<Stored, R, 1>(q, l.padded_dim, &k, a.scale, out + t);
    }
  }

  template <int R>
  __attribute__((noinline)) void scores(const float* const* q, int32_t base, int32_t from, int32_t count, float* out) const {
    if (l.latent != 0) return latent_scores<R>(q, base, from, count, out);
    const int64_t stride = l.block_size * element;
    const auto second = [&](int32_t first) { return first + W < count ? first + W : first; };
    // The values' first two blocks, or every line of the first one where those are `stride` bytes apart.
    const uint8_t* const v0 = value(base + from);
    const uint8_t* const v1 = stride > 64 ? v0 + 64 : count > from + l.block_size ? value(base + from + l.block_size) : v0;
    for (int32_t t = from; t < count; t += 2 * W) {
      const int32_t next = t + 2 * W;
      const bool more = next < count;
      score_rows<Stored, R>(q, l.head_dim, key(base + t), key(base + second(t)), stride, a.scale,
                            more ? key(base + next) : v0, more ? key(base + second(next)) : v1, out + t);
    }
  }

  // Tokens [from, to) of the chunk that begins at position base.
  template <int R>
  __attribute__((noinline)) void weigh(const float* p, int32_t base, int32_t from, int32_t to, float* acc) const {
    const int64_t stride = l.padded_dim * element, acc_stride = l.padded_value();
    for (int32_t t = from, tokens; t < to; t += tokens) {
      tokens = least(l.block_size - (base + t) % l.block_size, to - t);
      const int32_t ahead = t + 2 * l.block_size;
      const uint8_t* v = value(base + t);
      const uint8_t* ask = ahead < to ? value(base + ahead) : behind(base, ahead - to);
      for (int32_t d = 0, width; d < acc_stride; d += width, v += width * element, ask += width * element) {
        const int32_t vectors = (static_cast<int32_t>(acc_stride) - d) / W;
        float* const out = acc + d;
        width = (vectors >= 4 ? 4 : vectors >= 2 ? 2 : 1) * W;
        if (vectors >= 4) weigh_rows<Stored, R, 4>(p + t, tokens, v, stride, ask, out, acc_stride);
        else if (vectors >= 2) weigh_rows<Stored, R, 2>(p + t, tokens, v, stride, ask, out, acc_stride);
        else weigh_rows<Stored, R, 1>(p + t, tokens, v, stride, ask, out, acc_stride);
      }
    }
  }

  void scores_of(int rows, const float* const* q, int32_t base, int32_t from, int32_t count, float* out) const {
    switch (rows) {
      case 1: return scores<1>(q, base, from, count, out);
      case 2: return scores<2>(q, base, from, count, out);
      case 3: return scores<3>(q, base, from, count, out);
#if MR_VEC_WIDTH == 16
      case 4: return scores<4>(q, base, from, count, out);
      case 5: return scores<5>(q, base, from, count, out);
      default: return scores<6>(q, base, from, count, out);
#endif
    }
  }

  void weigh_of(int rows, const float* p, int32_t base, int32_t from, int32_t to, float* acc) const {
    if (from >= to) return;
    switch (rows) {
      case 1: return weigh<1>(p, base, from, to, acc);
      case 2: return weigh<2>(p, base, from, to, acc);
      case 3: return weigh<3>(p, base, from, to, acc);
#if MR_VEC_WIDTH == 16
      case 4: return weigh<4>(p, base, from, to, acc);
      case 5: return weigh<5>(p, base, from, to, acc);
      default: return weigh<6>(p, base, from, to, acc);
#endif
    }
  }

  // Caps scores [from, count), which are whole vectors from a multiple of W on.
  void cap(float* s, int32_t from, int32_t count) const {
    for (int32_t i = from; i < count; i += W) store(s + i, cap_of(load(s + i), a.cap, 1.0f / a.cap));
  }

  // Turns scores [low, count) into exp(score - maximum), with zeros from the whole vector before to the whole vector after; gives
  // maximum and sum. `from` is a multiple of W, at most low.
  static void exponentials(float* s, int32_t from, int32_t low, int32_t count, float* maximum, float* sum) {
    const VF none = splat(-__builtin_inff());
    for (int32_t i = from; i < low; ++i) s[i] = -__builtin_inff();
    for (int32_t i = count; i % W != 0; ++i) s[i] = -__builtin_inff();
    VF top = none;
    for (int32_t i = from; i < count; i += W) top = greater_of(load(s + i), top);
    *maximum = fold_max(top);
    const VF base = splat(*maximum == -__builtin_inff() ? 0.0f : *maximum);
    VF total = {};
    for (int32_t i = from; i < count; i += W) {
      const VF e = exp(load(s + i) - base);
      store(s + i, e);
      total += e;
    }
    *sum = fold_sum(total);
  }

  // What rows [begin, end), all of which see some of it, see of the chunk at position base.
  void chunk(int32_t base, int32_t begin, int32_t end, const ChunkRecord& out) const {
    const int64_t dim = l.padded_value();
    const int32_t rows = end - begin, groups = (rows + kRowsAtOnce - 1) / kRowsAtOnce;
    const auto seen = [&](int32_t r) { return least(a.visible[r] - base, attention_chunk); };
    const auto low = [&](int32_t r) {
      const int32_t n = a.first_key(r) - base;
      return n < 0 ? 0 : n;
    };
    for (int32_t g = 0; g < groups; ++g) {
      const int32_t r0 = begin + rows * g / groups, r1 = begin + rows * (g + 1) / groups;
      const int32_t from = low(r0) / (2 * W) * (2 * W);
      float* p = a.scratch + r0 * attention_chunk;
      float* sum = out.sum + r0 * dim;
      scores_of(r1 - r0, a.q + r0, base, from, seen(r1 - 1), p);
      __builtin_memset(sum, 0, static_cast<size_t>((r1 - r0) * dim) * sizeof(float));
      for (int32_t r = r0; r < r1; ++r) {
        float* const s = a.scratch + r * attention_chunk;
        if (a.cap != 0) cap(s, from, seen(r));
        exponentials(s, from, low(r), seen(r), out.top + r, out.weight + r);
      }
      // Keys that all rows of the group see are weighed together, those before and after them row by row.
      const int32_t common = low(r1 - 1), shared = seen(r0) > common ? seen(r0) : common;
      for (int32_t r = r0; r < r1; ++r)
        weigh_of(1, a.scratch + r * attention_chunk, base, low(r), least(common, seen(r)), sum + (r - r0) * dim);
      weigh_of(r1 - r0, p, base, common, seen(r0), sum);
      for (int32_t r = r0; r < r1; ++r)
        weigh_of(1, a.scratch + r * attention_chunk, base, shared, seen(r), sum + (r - r0) * dim);
    }
  }

  // Rows whose first key is in chunk c or before it.
  int32_t begun(int32_t c) const {
    int32_t end = a.rows;
    while (a.first_chunk(end - 1) > c) --end;
    return end;
  }

  void run() const {
    float* const records = a.scratch + a.rows * attention_chunk;
    const int64_t dim = l.padded_value();
    const ChunkRecord all(records, a.rows, dim);
    const ChunkRecord one(records + attention_record(a.rows, dim), a.rows, dim);
    int32_t begin = 0, before = 0;
    for (int32_t c = a.first_chunk(0); c * attention_chunk < longest(); ++c) {
      while (a.visible[begin] <= c * attention_chunk) ++begin;
      const int32_t end = begun(c);
      const bool first = before <= begin;  // of every row that sees this chunk
      chunk(c * attention_chunk, begin, end, first ? all : one);
      if (!first) {
        merge_chunk(all, one, begin, before, dim);
        begin_rows(all, one, before, end, dim);
      }
      before = end;
    }
    give_rows(a, all);
  }

  void run_chunks(int32_t from, int32_t to, float* records) const {
    int32_t begin = 0;
    const int64_t dim = l.padded_value();
    for (int32_t c = from; c < to; ++c, records += attention_record(a.rows, dim)) {
      while (a.visible[begin] <= c * attention_chunk) ++begin;
      const int32_t end = begun(c);
      if (begin < end) chunk(c * attention_chunk, begin, end, ChunkRecord(records, a.rows, dim));
    }
  }
};

void attend(const AttentionArgs& args) {
  switch (args.layout.type) {
    case MR_KV_F16: Attention<StoredF16>(args).run(); break;
    case MR_KV_BF16: Attention<StoredBF16>(args).run(); break;
    default: Attention<StoredF32>(args).run(); break;
  }
}

void attend_chunks(const AttentionArgs& args, int32_t from, int32_t to, float* records) {
  switch (args.layout.type) {
    case MR_KV_F16: Attention<StoredF16>(args).run_chunks(from, to, records); break;
    case MR_KV_BF16: Attention<StoredBF16>(args).run_chunks(from, to, records); break;
    default: Attention<StoredF32>(args).run_chunks(from, to, records); break;
  }
}

}  // namespace
}  // namespace mr::cpu
