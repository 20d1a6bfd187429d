// Attention over a paged cache against a double reference, and its bits against other batches, block ids and chunks.
#include <algorithm>
#include <cstdlib>

#include "attention.h"
#include "b2_check.h"
#include "vecops.h"

using namespace mr;
using namespace mr::cpu;

namespace {

float round_to(int32_t type, float x) {  // through the stored type, by arithmetic of its own
  if (type == MR_KV_F32) return x;
  int exponent;
  std::frexp(x, &exponent);
  const int bits = type == MR_KV_F16 ? 11 : 8;
  const int lowest = type == MR_KV_F16 ? -24 : -133;
  const int unit = std::max(exponent - bits, lowest);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -unit)), unit));
}

// A sequence of `keys` tokens in a cache whose other bytes are NaN.
struct Sequence {
  KvLayout layout;
  int32_t keys, blocks;
  std::vector<int32_t> table;
  std::vector<uint8_t> k, v;
  std::vector<float> key, value;  // as stored: (keys, kv_heads, head_dim)

  Sequence(Isa isa, KvLayout l, int32_t keys, uint64_t seed, uint64_t order) : layout(l), keys(keys) {
    check::Numbers numbers(seed), shuffle(order);
    const int32_t needed = (keys + l.block_size - 1) / l.block_size;
    blocks = needed + 3;
    std::vector<int32_t> ids(static_cast<size_t>(blocks));
    for (int32_t i = 0; i < blocks; ++i) ids[static_cast<size_t>(i)] = i;
    for (int32_t i = blocks - 1; i > 0; --i) std::swap(ids[static_cast<size_t>(i)], ids[static_cast<size_t>(shuffle.below(i + 1))]);
    table.assign(ids.begin(), ids.begin() + needed);
    k.assign(static_cast<size_t>(blocks * l.block_stride()), 0xff);
    v = k;
    const size_t n = static_cast<size_t>(keys) * static_cast<size_t>(l.kv_heads) * static_cast<size_t>(l.head_dim);
    key.resize(n);
    value.resize(n);
    for (size_t i = 0; i < n; ++i) {
      key[i] = numbers.normal();
      value[i] = numbers.normal();
    }
    for (int32_t t = 0; t < keys; ++t)
      for (int32_t h = 0; h < l.kv_heads; ++h) {
        const size_t at = (static_cast<size_t>(t) * static_cast<size_t>(l.kv_heads) + static_cast<size_t>(h)) * static_cast<size_t>(l.head_dim);
        const int32_t block = table[static_cast<size_t>(t / l.block_size)], offset = t % l.block_size;
        if (l.latent != 0) vec_ops(isa).kv_store(nullptr, key.data() + at, l, block, offset, h, k.data(), k.data());
        else vec_ops(isa).kv_store(key.data() + at, value.data() + at, l, block, offset, h, k.data(), v.data());
      }
    if (l.latent != 0) value = key;
    for (size_t i = 0; i < n; ++i) {
      key[i] = round_to(l.type, key[i]);
      value[i] = round_to(l.type, value[i]);
    }
  }
};

struct Rows {
  std::vector<float> q, out;
  std::vector<const float *> q_rows;
  std::vector<float *> out_rows;
  std::vector<int32_t> visible;
};

void attend(Isa isa, const Sequence& s, Rows& r, int32_t head, int32_t first, int32_t count, float scale) {
  std::vector<float> space(static_cast<size_t>(attention_scratch(count, s.layout.padded_value())) + 16 + 64);
  float* scratch = reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(space.data()) + 63) / 64 * 64);
  float* guard = scratch + attention_scratch(count, s.layout.padded_value());
  for (int i = 0; i < 32; ++i) guard[i] = 77;
  AttentionArgs a{};
  a.q = r.q_rows.data() + first;
  a.out = r.out_rows.data() + first;
  a.visible = r.visible.data() + first;
  a.rows = count;
  a.scale = scale;
  a.layout = s.layout;
  a.kv_head = head;
  a.blocks = s.table.data();
  a.keys = s.k.data();
  a.values = s.layout.latent != 0 ? s.k.data() : s.v.data();
  a.scratch = scratch;
  vec_ops(isa).attend(a);
  for (int i = 0; i < 32; ++i) CHECK(guard[i] == 77, "%s: scratch overrun", name(isa));
}

void shape(Isa isa, int32_t type, int32_t dim, int32_t block, int32_t group, int32_t keys, int32_t tokens, int32_t latent = 0) {
  const KvLayout layout{type, block, 2, dim, pad_dim(dim), latent};
  const int32_t value_dim = layout.value_dim();
  const uint64_t seed = static_cast<uint64_t>(dim * 131 + keys);
  const Sequence s(isa, layout, keys, seed, 1), shuffled(isa, layout, keys, seed, 2);
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  const int32_t rows = tokens * group, head = 1;
  Rows r;
  check::Numbers numbers(seed + 5);
  const int32_t pitch = (latent == 0 ? dim : layout.padded_dim) + 3;
  r.q.resize(static_cast<size_t>(rows * pitch));
  r.out.assign(r.q.size(), 55);
  for (int32_t i = 0; i < rows * pitch; ++i) r.q[static_cast<size_t>(i)] = i % pitch < dim ? 2 * numbers.normal() : 0;
  for (int32_t i = 0; i < rows; ++i) {
    r.q_rows.push_back(r.q.data() + i * pitch);
    r.out_rows.push_back(r.out.data() + i * pitch);
    r.visible.push_back(keys - tokens + i / group + 1);
  }
  attend(isa, s, r, head, 0, rows, scale);
  for (int32_t i = 0; i < rows; ++i) {
    std::vector<double> score(static_cast<size_t>(r.visible[static_cast<size_t>(i)]));
    double top = -INFINITY, sum = 0;
    for (size_t t = 0; t < score.size(); ++t) {
      double dot = 0;
      for (int32_t d = 0; d < dim; ++d)
        dot += static_cast<double>(r.q_rows[static_cast<size_t>(i)][d]) *
               static_cast<double>(s.key[(t * 2 + static_cast<size_t>(head)) * static_cast<size_t>(dim) + static_cast<size_t>(d)]);
      score[t] = dot * static_cast<double>(scale);
      top = std::max(top, score[t]);
    }
    for (double& x : score) sum += x = std::exp(x - top);
    for (int32_t d = 0; d < value_dim; ++d) {
      double want = 0;
      for (size_t t = 0; t < score.size(); ++t)
        want += score[t] / sum * static_cast<double>(s.value[(t * 2 + static_cast<size_t>(head)) * static_cast<size_t>(dim) + static_cast<size_t>(d)]);
      const double got = r.out_rows[static_cast<size_t>(i)][d];
      CHECK(check::close(got, want, 5e-6, 5e-6), "%s type %d dim %d latent %d block %d group %d keys %d row %d d %d: %g, wanted %g",
            name(isa), type, dim, latent, block, group, keys, i, d, got, want);
    }
    for (int32_t d = value_dim; d < pitch; ++d)
      CHECK(r.out_rows[static_cast<size_t>(i)][d] == 55, "%s: wrote beyond a row", name(isa));
    if (check::failures > 10) std::exit(check::report("attention"));
  }
  // One row at a time, over other blocks: the same bits.
  const std::vector<float> together = r.out;
  std::fill(r.out.begin(), r.out.end(), 55.0f);
  for (int32_t i = 0; i < rows; ++i) attend(isa, shuffled, r, head, i, 1, scale);
  CHECK(std::memcmp(together.data(), r.out.data(), r.out.size() * 4) == 0,
        "%s type %d dim %d latent %d block %d group %d keys %d: rows alone have other bits", name(isa), type, dim, latent, block, group,
        keys);
}

void all(Isa isa) {
  for (const int32_t type : {MR_KV_F32, MR_KV_F16, MR_KV_BF16})
    for (const int32_t block : {16, 32})
      for (const int32_t dim : {2, 34, 64, 66, 80, 96, 128, 256})
        for (const int32_t keys : {1, 15, 16, 17, 33, 255, 256, 257, 600})
          shape(isa, type, dim, block, keys % 2 == 0 ? 1 : 3, keys, std::min(keys, dim == 64 ? 11 : 3));
  for (const int32_t group : {1, 2, 4, 5, 7, 8}) shape(isa, MR_KV_F32, 64, 16, group, 2100, 9);
  for (const int32_t type : {MR_KV_F32, MR_KV_F16, MR_KV_BF16})
    for (const int32_t keys : {1, 3, 4, 17, 255, 256, 257, 600}) {
      shape(isa, type, 576, keys % 2 == 0 ? 16 : 32, 5, keys, std::min(keys, 3), 512);
      shape(isa, type, 39, 16, 3, keys, std::min(keys, 5), 31);
      shape(isa, type, 2, 16, 1, keys, 1, 1);
    }
}

void odd_values(Isa isa) {
  const VecOps& ops = vec_ops(isa);
  const KvLayout layout{MR_KV_F16, 16, 1, 16, 16};
  std::vector<uint16_t> k(256), v(256);
  const float in[16] = {65504, 65519, 65520, 1e9f, -1e9f, 0, -0.0f, 5.9604645e-8f, 2.9802322e-8f, 2.9802325e-8f, 6.1e-5f,
                        6.09756e-5f, 1.0004883f, 1.0014648f, -2.5f, INFINITY};
  const uint16_t want[16] = {0x7bff, 0x7bff, 0x7c00, 0x7c00, 0xfc00, 0, 0x8000, 1, 0, 1, 0x03ff, 0x03ff, 0x3c00, 0x3c02, 0xc100, 0x7c00};
  ops.kv_store(in, in, layout, 0, 0, 0, reinterpret_cast<uint8_t *>(k.data()), reinterpret_cast<uint8_t *>(v.data()));
  for (int i = 0; i < 16; ++i) {
    CHECK(v[static_cast<size_t>(i)] == want[i], "%s: f16 of %g is %04x, wanted %04x", name(isa), static_cast<double>(in[i]), v[static_cast<size_t>(i)], want[i]);
    CHECK(k[static_cast<size_t>(16 * i)] == want[i], "%s: f16 key differs from the value", name(isa));
  }
}

}  // namespace

int main() {
  check::each_isa(odd_values);
  check::each_isa(all);
  return check::report("attention");
}
