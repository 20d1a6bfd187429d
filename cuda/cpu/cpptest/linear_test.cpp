// Checks the weight products of every path this processor runs against float64, and their promises bit for bit.
// Usage: linear_test [path]. Prints one line a check group and the first failures; exits 1 if anything failed.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <limits>
#include <random>
#include <vector>

#include "../linear.h"
#include "../measure.h"
#include "reference.h"

using namespace mr;
using namespace mr::cpu;

namespace {

int failures = 0;

#define CHECK(ok, ...) \
  do { \
    if (!(ok)) { \
      if (++failures <= 20) { fprintf(stderr, "FAIL %s:%d: ", __FILE__, __LINE__); fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); } \
    } \
  } while (0)

struct Type { const char* name; int32_t id; int64_t block; };
constexpr Type types[] = {{"f32", type_f32, 1}, {"f16", type_f16, 1}, {"bf16", type_bf16, 1}, {"q8_0", type_q8_0, 32},
                          {"q4_0", type_q4_0, 32}, {"q4_1", type_q4_1, 32}, {"q5_0", type_q5_0, 32}, {"q5_1", type_q5_1, 32},
                          {"q4_k", type_q4_k, 256}, {"q5_k", type_q5_k, 256}, {"q6_k", type_q6_k, 256}, {"iq4_nl", type_iq4_nl, 32},
                          {"q2_k", type_q2_k, 256}, {"q3_k", type_q3_k, 256}, {"iq4_xs", type_iq4_xs, 256},
                          {"iq3_xxs", type_iq3_xxs, 256}, {"iq3_s", type_iq3_s, 256}, {"iq2_xxs", type_iq2_xxs, 256},
                          {"iq2_xs", type_iq2_xs, 256}, {"iq2_s", type_iq2_s, 256}, {"mxfp4", type_mxfp4, 32}, {"nvfp4", type_nvfp4, 64}};
constexpr int type_count = sizeof types / sizeof types[0];

constexpr float guard = -123456.75f;

std::mt19937 random_bits(7);
float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(random_bits); }

// 64-byte aligned bytes with guard bytes on both sides.
struct Bytes {
  std::vector<uint8_t> all;
  uint8_t* data;
  uint64_t size;
  explicit Bytes(uint64_t n) : all(n + 256, 0xa5), size(n) {
    data = reinterpret_cast<uint8_t*>((reinterpret_cast<uint64_t>(all.data()) + 127) / 64 * 64);
  }
  bool intact() const {
    for (const uint8_t* p = all.data(); p < data; ++p) if (*p != 0xa5) return false;
    for (const uint8_t* p = data + size; p < all.data() + all.size(); ++p) if (*p != 0xa5) return false;
    return true;
  }
};

struct Packed {
  std::vector<uint8_t> file;
  Bytes bytes;
  Matrix m;
  Packed(const Type& t, int64_t in, int64_t out, std::vector<uint8_t> f)
      : file(std::move(f)), bytes(packed_size(t.id, in, out)), m{t.id, in, out, bytes.data, bytes.size} {
    for (int64_t row = 0; row < out; row += 16) { // one panel a call
      pack_rows(m, file.data() + uint64_t(row) * (file.size() / uint64_t(out)), row, out - row < 16 ? out - row : 16);
    }
  }
};

std::vector<float> product(Isa isa, const Matrix& m, const float* x, int64_t ldx, int64_t tokens, int64_t ldy, int64_t split) {
  const Activation kind = activation_kind(isa, m.type);
  Bytes act(activation_size(kind, m.in, tokens));
  const int64_t middle = tokens / 2;
  prepare_activations(isa, kind, x, ldx, m.in, tokens, middle, tokens, act.data);
  prepare_activations(isa, kind, x, ldx, m.in, tokens, 0, middle, act.data);
  std::vector<float> y(size_t(ldy * (tokens + 2)), guard);
  const int64_t all = panels(m.out);
  for (int64_t p = 0; p < all; p += split) {
    multiply(isa, m, act.data, tokens, y.data() + ldy, ldy, p, p + split < all ? p + split : all, nullptr);
  }
  CHECK(act.intact(), "%s: activations written outside their %llu bytes", name(isa), (unsigned long long)act.size);
  for (int64_t t = -1; t <= tokens; ++t) {
    for (int64_t r = t >= 0 && t < tokens ? m.out : 0; r < ldy; ++r) {
      CHECK(y[size_t((t + 1) * ldy + r)] == guard, "%s type %d: y[%lld][%lld] is outside the product and was written", name(isa), m.type, (long long)t, (long long)r);
    }
  }
  return std::vector<float>(y.begin() + ldy, y.end());
}

bool same_bits(float a, float b) { return memcmp(&a, &b, 4) == 0; }

// Every element against float64.
void compare(Isa isa, const Type& t, const Packed& p, const std::vector<float>& x, int64_t tokens, const std::vector<float>& y, int64_t ldy, const char* what) {
  const int64_t in = p.m.in, out = p.m.out;
  std::vector<reference::Weight> w(static_cast<size_t>(in));
  std::vector<reference::Token> inputs;
  for (int64_t k = 0; k < tokens; ++k) inputs.push_back(reference::token(t.id, activation_kind(isa, t.id), x.data() + k * in, in));
  for (int64_t r = 0; r < out; ++r) {
    reference::decode_parts(t.id, p.file.data() + uint64_t(r) * (p.file.size() / uint64_t(out)), in, w.data());
    for (int64_t k = 0; k < tokens; ++k) {
      const reference::Product want = reference::multiply(t.id, w.data(), inputs[size_t(k)]);
      const float got = y[size_t(k * ldy + r)];
      CHECK(reference::close(got, want), "%s %s %s (%lld, %lld) token %lld of %lld row %lld: got %.9g, want %.9g within %.3g", name(isa), t.name, what,
            (long long)out, (long long)in, (long long)k, (long long)tokens, (long long)r, double(got), want.value, want.bound);
    }
  }
}

void check_shape(Isa isa, const Type& t, int64_t in, int64_t out, int64_t tokens) {
  Packed p(t, in, out, reference::random_file(t.id, in, out, random_bits));
  std::vector<float> x(size_t(in * tokens));
  for (float& v : x) v = uniform(-1, 1) * (random_bits() % 64 == 0 ? 30.0f : 1.0f);
  const int64_t ldy = out + 5;
  const std::vector<float> y = product(isa, p.m, x.data(), in, tokens, ldy, panels(out));
  compare(isa, t, p, x, tokens, y, ldy, "random");
  for (int64_t split : {int64_t(1), int64_t(3)}) {
    const std::vector<float> z = product(isa, p.m, x.data(), in, tokens, ldy, split);
    CHECK(memcmp(y.data(), z.data(), y.size() * 4) == 0, "%s %s (%lld, %lld): %lld panels a call change bits", name(isa), t.name, (long long)out, (long long)in, (long long)split);
  }
  for (int64_t k = 0; k < tokens; k += tokens > 16 ? 5 : 1) {
    const std::vector<float> one = product(isa, p.m, x.data() + k * in, in, 1, ldy, panels(out));
    CHECK(memcmp(one.data(), y.data() + k * ldy, size_t(out) * 4) == 0, "%s %s (%lld, %lld): token %lld alone and among %lld differ", name(isa), t.name, (long long)out, (long long)in, (long long)k, (long long)tokens);
  }
}

void check_shapes(Isa isa, const Type& t) {
  for (int64_t in : {t.block, 3 * t.block, int64_t(256), int64_t(1280)}) {
    for (int64_t out : {1, 15, 16, 17, 100}) {
      for (int64_t tokens : {1, 2, 3, 4, 6, 7, 8, 9, 16, 17, 31}) check_shape(isa, t, in, out, tokens);
    }
  }
  for (int64_t tokens : {1, 5, 36, 37, 64, 129}) check_shape(isa, t, 256, 100, tokens);
  check_shape(isa, t, 4096, 17, 9);
  check_shape(isa, t, 256, 17, 400); // more than one band of tokens
  if (t.block == 1) check_shape(isa, t, 259, 33, 13);
}

// Sums of the largest numbers fit each kernel's registers: for every width of a tile, and for a number of tokens at which
// groups are spread first.
void check_extremes(Isa isa, const Type& t) {
  const int64_t in = t.block == 1 ? 256 : 2 * t.block, out = 37;
  for (int kind = 0; kind < reference::extreme_kinds; ++kind) {
    Packed p(t, in, out, reference::extreme_file(t.id, in, out, kind, random_bits));
    for (int64_t tokens : {1, 2, 3, 4, 5, 6, 9, 37}) {
      for (float magnitude : {1.0f, 1e-30f, 1e-41f, 1e15f}) {
        std::vector<float> x(size_t(in * tokens));
        for (float& v : x) v = random_bits() % 2 == 0 ? magnitude : -magnitude * uniform(0.9f, 1);
        compare(isa, t, p, x, tokens, product(isa, p.m, x.data(), in, tokens, out, 2), out, "extreme");
      }
      for (float each : {1.0f, -1.0f}) { // the largest int8 sums there are
        std::vector<float> same(size_t(in * tokens), each);
        compare(isa, t, p, same, tokens, product(isa, p.m, same.data(), in, tokens, out, 2), out, "largest");
      }
      std::vector<float> zero(size_t(in * tokens), 0.0f);
      compare(isa, t, p, zero, tokens, product(isa, p.m, zero.data(), in, tokens, out, 2), out, "zero");
    }
  }
}

// Exact sums of blocks, added in one order by fused multiply-adds: on the paths that have those, the same bits. Scales are such
// that none comes near the smallest numbers, where a scale that is kept sixteen times smaller would round.
void check_same_as_vnni(Isa isa, const Type& t) {
  if (activation_kind(isa, t.id) != Activation::int8 || !runnable(Isa::avx512vnni)) return;
  for (int64_t in : {t.block, 3 * t.block, int64_t(1280)}) {
    for (int64_t out : {1, 16, 33, 100}) {
      for (int64_t tokens : {1, 7, 8, 9, 15, 16, 17, 24, 25, 33, 192, 201}) {
        Packed p(t, in, out, reference::random_file(t.id, in, out, random_bits));
        std::vector<float> x(size_t(in * tokens));
        for (float& v : x) v = uniform(-1, 1);
        const std::vector<float> got = product(isa, p.m, x.data(), in, tokens, out, 4);
        const std::vector<float> want = product(Isa::avx512vnni, p.m, x.data(), in, tokens, out, 4);
        CHECK(memcmp(got.data(), want.data(), got.size() * 4) == 0, "%s %s (%lld, %lld), %lld tokens: not the bits of avx512vnni", name(isa), t.name,
              (long long)out, (long long)in, (long long)tokens);
      }
    }
  }
}

// One bad input poisons its own token, in every row, and no other.
void check_not_finite(Isa isa, const Type& t) {
  const int64_t in = t.block == 1 ? 64 : 2 * t.block, out = 21, tokens = 8;
  Packed p(t, in, out, reference::random_file(t.id, in, out, random_bits));
  std::vector<float> x(size_t(in * tokens), 0.5f);
  const std::vector<float> before = product(isa, p.m, x.data(), in, tokens, out, 2);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    x[size_t(3 * in + in - 1)] = bad;
    const std::vector<float> y = product(isa, p.m, x.data(), in, tokens, out, 2);
    for (int64_t k = 0; k < tokens; ++k) {
      for (int64_t r = 0; r < out; ++r) {
        const float got = y[size_t(k * out + r)];
        if (k == 3) CHECK(!std::isfinite(got), "%s %s: row %lld of a token holding %g is %g", name(isa), t.name, (long long)r, double(bad), double(got));
        else CHECK(same_bits(got, before[size_t(k * out + r)]), "%s %s: another token's %g changed token %lld", name(isa), t.name, double(bad), (long long)k);
      }
    }
  }
}

// Of the bytes in memory above those of the file.
double largest_growth(int32_t type) {
  switch (type) {
    case type_iq3_xxs: return 1.39;
    case type_iq3_s: return 1.24;
    case type_iq2_xxs: return 1.58;
    case type_iq2_xs: return 1.47;
    case type_iq2_s: return 1.32;
    default: return 1.03;
  }
}

// Packing and back is the identity on every byte pattern, by rows in any split, and dequantised rows are the reference's.
void check_packing(const Type& t) {
  for (int64_t in : {t.block, 3 * t.block, 9 * t.block, int64_t(1280)}) {
    for (int64_t out : {1, 15, 16, 17, 100}) {
      std::vector<uint8_t> file(file_size(t.id, in, out));
      for (uint8_t& b : file) b = uint8_t(random_bits());
      Packed p(t, in, out, file);
      CHECK(p.bytes.intact(), "%s: packing wrote outside its %llu bytes", t.name, (unsigned long long)p.bytes.size);
      std::vector<uint8_t> back(file.size() + 8, 0x5a);
      const int64_t first = out > 32 ? 32 : 0; // in two calls
      CHECK(unpack_rows(p.m, first, out - first, back.data() + file.size() / uint64_t(out) * uint64_t(first)) &&
            unpack_rows(p.m, 0, first, back.data()), "%s: unpacking reports damage", t.name);
      CHECK(memcmp(back.data(), file.data(), file.size()) == 0, "%s (%lld, %lld): unpacked bytes differ", t.name, (long long)out, (long long)in);
      for (size_t i = file.size(); i < back.size(); ++i) CHECK(back[i] == 0x5a, "%s: unpacking wrote past the end", t.name);
      Packed q(t, in, out, reference::random_file(t.id, in, out, random_bits));
      std::vector<float> row(size_t(in) + 1, guard);
      std::vector<double> want(static_cast<size_t>(in));
      for (int64_t r = 0; r < out; ++r) {
        dequantize_row(q.m, r, row.data());
        reference::decode_row(t.id, q.file.data() + uint64_t(r) * (q.file.size() / uint64_t(out)), in, want.data());
        for (size_t i = 0; i < size_t(in); ++i) {
          const double err = fabs(double(row[i]) - want[i]);
          CHECK(err <= 2e-7 * fabs(want[i]) + 2e-7 * reference::largest(t.id), "%s row %lld input %zu: dequantised %.9g, want %.9g", t.name, (long long)r, i, double(row[i]), want[i]);
        }
        CHECK(row[size_t(in)] == guard, "%s: dequantising wrote past the row", t.name);
      }
    }
  }
  const double growth = double(packed_size(t.id, 4096, 4096)) / double(file_size(t.id, 4096, 4096));
  CHECK(growth >= 1 && growth <= largest_growth(t.id), "%s grows by %.4f when packed", t.name, growth);
}

void check_sizes() {
  CHECK(!supported(type_q4_k, 128) && supported(type_q4_k, 512), "Q4_K takes multiples of 256");
  CHECK(!supported(type_q8_0, 0) && !supported(type_q8_0, -32) && !supported(type_q8_0, 33), "Q8_0 takes multiples of 32");
  CHECK(!supported(9, 256) && !supported(-1, 256) && file_size(9, 256, 1) == 0, "other types are unknown");
  CHECK(file_size(type_q6_k, 512, 3) == 1260, "Q6_K file bytes");
  CHECK(file_size(type_f32, INT64_MAX / 2, 4) == 0 && packed_size(type_f32, INT64_MAX / 2, 1) == 0, "sizes beyond 2^62 are refused");
  CHECK(packed_size(type_q8_0, 32, INT64_MAX) == 0, "as many rows as there are numbers are refused");
}

// A flipped bit of the codes of a block, or of a scale, gives other file bytes or is reported.
void check_damage(const Type& t) {
  Packed p(t, 256, 16, reference::random_file(t.id, 256, 16, random_bits));
  std::vector<uint8_t> back(p.file.size());
  const int64_t bytes = int64_t(largest_growth(t.id) > 1.03 ? 16 * 102 : p.file.size());
  for (int64_t bit = 0; bit < bytes * 8; bit += 1 + int64_t(random_bits() % 64)) {
    p.bytes.data[bit / 8] ^= uint8_t(1 << bit % 8);
    CHECK(!unpack_rows(p.m, 0, 16, back.data()) || back != p.file, "%s: flipped bit %lld is not found", t.name, (long long)bit);
    p.bytes.data[bit / 8] ^= uint8_t(1 << bit % 8);
  }
  CHECK(unpack_rows(p.m, 0, 16, back.data()) && back == p.file, "%s: flipped back", t.name);
}

// The comparison itself must refuse NaN, whatever flags this file was compiled with.
void check_comparison() {
  const volatile float zero = 0;
  CHECK(!reference::close(zero / zero, {1, 1}), "NaN passed as close to 1");
  CHECK(!reference::close(1 / zero, {1, 1e30}), "infinity passed as close to 1");
  CHECK(!reference::close(1, {double(zero / zero), 1}), "1 passed as close to NaN");
  CHECK(!reference::close(1.5f, {1, 0.25}) && reference::close(1.25f, {1, 0.25}), "the bound is not the bound");
}

void check_isa() {
  Isa isa = Isa::portable;
  for (Isa i : {Isa::portable, Isa::avx2, Isa::avx512vnni, Isa::avx512bf16, Isa::amx}) CHECK(from_name(name(i), &isa) && isa == i, "%s is not its own name", name(i));
  CHECK(!from_name("avx", &isa) && !from_name("", &isa) && !from_name(nullptr, &isa) && isa == Isa::amx, "unknown names are refused");
  CHECK(runnable(Isa::portable) && runnable(detect()), "the chosen path runs");
}

void check_measures(Isa isa) {
  Bytes data(1 << 16);
  memset(data.data, 0, data.size);
  CHECK(read_stream(isa, data.data, data.size) == 0, "%s reads zeros", name(isa));
  for (uint64_t at : {uint64_t(0), uint64_t(31), data.size / 4, data.size / 2 + 77, data.size - 1}) {
    data.data[at] = 0x40;
    CHECK(read_stream(isa, data.data, data.size) != 0, "%s leaves out byte %llu", name(isa), (unsigned long long)at);
    data.data[at] = 0;
  }
  float sink = 0;
  CHECK(int8_rounds(isa, 1000, &sink) >= 1000 && f32_rounds(isa, 1000, &sink) >= 1000 && bf16_rounds(isa, 1000, &sink) >= 1000, "%s counts its operations", name(isa));
}

} // namespace

int main(int argc, char** argv) {
  check_comparison();
  check_isa();
  check_sizes();
  for (const Type& t : types) {
    check_packing(t);
    check_damage(t);
  }
  printf("packing: %d types, %d failures\n", type_count, failures);
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512vnni, Isa::avx512bf16, Isa::amx}) {
    if (argc > 1 && strcmp(argv[1], name(isa)) != 0) continue;
    if (!runnable(isa)) { printf("%s: this processor has no such path\n", name(isa)); continue; }
    const int before = failures;
    check_measures(isa);
    for (const Type& t : types) {
      check_shapes(isa, t);
      check_extremes(isa, t);
      if (isa == Isa::amx || isa == Isa::avx512bf16 || isa == Isa::avx2) check_same_as_vnni(isa, t);
      check_not_finite(isa, t);
    }
    printf("%s: %d types, %d failures\n", name(isa), type_count, failures - before);
  }
  return failures == 0 ? 0 : 1;
}
