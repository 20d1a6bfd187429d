// Vector operations against double references, on every path, with odd lengths and guard words.
#include <algorithm>
#include <functional>

#include "b2_check.h"
#include "mathfn.h"
#include "vecops.h"

using namespace mr;
using namespace mr::cpu;
using check::Guarded;

namespace {

const int64_t kLengths[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 255, 768, 1000, 4096};

void elementwise(Isa isa) {
  const VecOps& ops = vec_ops(isa);
  for (const int64_t n : kLengths) {
    check::Numbers numbers(static_cast<uint64_t>(n));
    Guarded a(n), b(n), out(n);
    for (int64_t i = 0; i < n; ++i) {
      a[i] = 3 * numbers.normal();
      b[i] = numbers.normal();
    }
    const auto expect = [&](const char* what, double relative, const std::function<double(double, double)>& want) {
      for (int64_t i = 0; i < n; ++i)
        CHECK(check::close(out[i], want(a[i], b[i]), 1e-30, relative), "%s %s n=%d i=%d: %g, wanted %g", name(isa),
              what, static_cast<int>(n), static_cast<int>(i), static_cast<double>(out[i]), want(a[i], b[i]));
      CHECK(out.intact() && a.intact() && b.intact(), "%s %s n=%d: wrote outside", name(isa), what, static_cast<int>(n));
    };
    ops.add(a.data(), b.data(), n, out.data());
    expect("add", 6e-8, [](double x, double y) { return x + y; });
    ops.mul(a.data(), b.data(), n, out.data());
    expect("mul", 6e-8, [](double x, double y) { return x * y; });
    ops.scale(a.data(), 0.37f, n, out.data());
    expect("scale", 6e-8, [](double x, double) { return x * static_cast<double>(0.37f); });
    ops.silu(a.data(), n, out.data());
    expect("silu", 4e-7, [](double x, double) { return x / (1 + std::exp(-x)); });
    ops.swiglu(a.data(), b.data(), n, out.data());
    expect("swiglu", 4e-7, [](double x, double y) { return x / (1 + std::exp(-x)) * y; });

    double square = 0;
    for (int64_t i = 0; i < n; ++i) square += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    const double factor = 1 / std::sqrt(square / static_cast<double>(n) + static_cast<double>(1e-5f));
    ops.rms_norm(a.data(), b.data(), 1e-5f, n, out.data());
    expect("rms_norm", 1e-6, [factor](double x, double y) { return x * factor * y; });

    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; ++i) top = std::max(top, static_cast<double>(a[i]));
    for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(a[i]) - top);
    ops.softmax(a.data(), n, out.data());
    expect("softmax", 2e-6, [top, sum](double x, double) { return std::exp(x - top) / sum; });
    std::vector<float> before(out.data(), out.data() + n);
    ops.softmax(a.data(), n, a.data());
    CHECK(std::memcmp(before.data(), a.data(), static_cast<size_t>(n) * 4) == 0, "%s softmax in place", name(isa));
    for (int64_t i = 0; i < n; ++i) a[i] = -INFINITY;
    ops.softmax(a.data(), n, out.data());
    for (int64_t i = 0; i < n; ++i) CHECK(out[i] == 0, "%s softmax of -inf", name(isa));
    a[n / 2] = NAN;
    ops.softmax(a.data(), n, out.data());
    CHECK(std::isnan(out[n / 2]), "%s softmax of NaN", name(isa));
  }
}

void passes(Isa isa) {
  const VecOps& ops = vec_ops(isa);
  for (const int64_t n : kLengths) {
    check::Numbers numbers(static_cast<uint64_t>(n) + 99);
    Guarded x(n), w(n);
    for (int64_t i = 0; i < n; ++i) x[i] = std::round(4 * numbers.normal());
    float top = x[0];
    for (int64_t i = 0; i < n; ++i) top = std::max(top, x[i]);
    CHECK(ops.greatest(x.data(), n) == top, "%s greatest n=%d", name(isa), static_cast<int>(n));
    int64_t first = 0, above = 0, same = 0;
    while (x[first] != top) ++first;
    CHECK(ops.find_at_least(x.data(), n, top) == first, "%s find_at_least n=%d", name(isa), static_cast<int>(n));
    CHECK(ops.find_greater(x.data(), 0, n, top) == n, "%s find_greater finds nothing", name(isa));
    int64_t from = first, want = from;
    while (want < n && !(x[want] > 1)) ++want;
    CHECK(ops.find_greater(x.data(), from, n, 1) == want, "%s find_greater n=%d", name(isa), static_cast<int>(n));
    double sum = 0;
    uint64_t masses = 0;
    ops.weights(x.data(), n, top, 0.7f, w.data());
    for (int64_t i = 0; i < n; ++i) {
      above += x[i] > 1;
      same += x[i] == 1;
      sum += std::exp(static_cast<double>(x[i]) - static_cast<double>(top));
      const double weight = std::exp((static_cast<double>(x[i]) - static_cast<double>(top)) / static_cast<double>(0.7f));
      CHECK(check::close(w[i], weight, 1e-37, 4e-6), "%s weight %g, wanted %g", name(isa), static_cast<double>(w[i]), weight);
      if (w[i] >= 0.25f) masses += static_cast<uint64_t>(std::nearbyint(static_cast<double>(w[i]) * 0x1p40));
    }
    CHECK(ops.count_greater(x.data(), n, 1) == above, "%s count_greater", name(isa));
    CHECK(ops.count_equal(x.data(), n, 1) == same, "%s count_equal", name(isa));
    CHECK(check::close(ops.sum_exp(x.data(), n, top), sum, 0, 1e-7), "%s sum_exp", name(isa));
    CHECK(ops.mass_at_least(w.data(), n, 0.25f) == masses, "%s masses", name(isa));
    std::vector<uint32_t> words(static_cast<size_t>((n + 31) / 32));
    for (uint32_t& word : words) word = static_cast<uint32_t>(numbers.next());
    Guarded masked(n);
    ops.mask(x.data(), words.data(), n, masked.data());
    for (int64_t i = 0; i < n; ++i)
      CHECK(masked[i] == ((words[static_cast<size_t>(i / 32)] >> (i % 32) & 1u) != 0 ? x[i] : -INFINITY), "%s mask", name(isa));
    CHECK(x.intact() && w.intact() && masked.intact(), "%s passes n=%d: wrote outside", name(isa), static_cast<int>(n));
    x[n - 1] = NAN;
    CHECK(std::isnan(ops.greatest(x.data(), n)), "%s greatest with NaN", name(isa));
  }
}

void rope(Isa isa) {
  const VecOps& ops = vec_ops(isa);
  for (const int32_t style : {MR_ROPE_NORM, MR_ROPE_NEOX})
    for (const int32_t dims : {2, 6, 16, 32, 48, 64, 66, 80, 96, 128, 256})
      for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{511}, int64_t{131071}, int64_t{1000000}}) {
        check::Numbers numbers(static_cast<uint64_t>(dims) + static_cast<uint64_t>(position));
        std::vector<double> frequencies(static_cast<size_t>(dims / 2));
        std::vector<double> factors(frequencies.size());
        for (double& f : factors) f = 1 + static_cast<double>(numbers.uniform());
        rope_frequencies(dims, 500000, 2, factors.data(), frequencies.data());
        std::vector<float> turns(static_cast<size_t>(rope_floats(dims)));
        rope_turns(frequencies.data(), dims, style, position, 1.0f, turns.data());
        Guarded head(dims);
        std::vector<double> want(static_cast<size_t>(dims));
        for (int32_t i = 0; i < dims; ++i) want[static_cast<size_t>(i)] = head[i] = numbers.normal();
        for (int32_t i = 0; i < dims / 2; ++i) {
          const long double f = std::pow(500000.0L, -2.0L * i / dims) / 2 / static_cast<long double>(factors[static_cast<size_t>(i)]);
          const double s = static_cast<double>(std::sin(f * position)), c = static_cast<double>(std::cos(f * position));
          double& x = want[static_cast<size_t>(style == MR_ROPE_NEOX ? i : 2 * i)];
          double& y = want[static_cast<size_t>(style == MR_ROPE_NEOX ? dims / 2 + i : 2 * i + 1)];
          const double turned = x * c - y * s;
          y = x * s + y * c;
          x = turned;
        }
        ops.rope(head.data(), turns.data(), dims, style);
        for (int32_t i = 0; i < dims; ++i)
          CHECK(check::close(head[i], want[static_cast<size_t>(i)], 1e-6, 1e-6), "%s rope style %d dims %d position %d i %d: %g, wanted %g",
                name(isa), style, dims, static_cast<int>(position), i, static_cast<double>(head[i]), want[static_cast<size_t>(i)]);
        CHECK(head.intact(), "%s rope wrote outside", name(isa));
      }
}

void convolutions(Isa isa) {
  const VecOps& ops = vec_ops(isa);
  for (const int64_t n : kLengths)
    for (const int32_t taps : {2, 3, 4, 7}) {
      check::Numbers numbers(static_cast<uint64_t>(n + 1000 * taps));
      std::vector<float> rows(static_cast<size_t>(n * taps)), weights(rows.size());
      for (float& x : rows) x = numbers.normal();
      for (float& x : weights) x = numbers.normal();
      for (int32_t missing = 0; missing < taps; ++missing) {  // rows before the first position of a sequence
        std::vector<const float*> at(static_cast<size_t>(taps));
        for (int32_t j = missing; j < taps; ++j) at[static_cast<size_t>(j)] = rows.data() + j * n;
        Guarded out(n);
        ops.convolve(at.data(), weights.data(), taps, n, out.data());
        for (int64_t i = 0; i < n; ++i) {
          double want = 0, size = 0;
          for (int32_t j = missing; j < taps; ++j) {
            const size_t at_i = static_cast<size_t>(j * n + i);
            const double product = static_cast<double>(rows[at_i]) * static_cast<double>(weights[at_i]);
            want += product;
            size += std::fabs(product);
          }
          CHECK(check::close(out[i], want, 4e-7 * size, 0), "%s convolve n=%d taps=%d of %d i=%d: %g, wanted %g", name(isa),
                static_cast<int>(n), taps - missing, taps, static_cast<int>(i), static_cast<double>(out[i]), want);
        }
        CHECK(out.intact(), "%s convolve n=%d wrote outside", name(isa), static_cast<int>(n));
      }
      Guarded unit(n);
      double square = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double x = static_cast<double>(rows[static_cast<size_t>(i)]);
        square += x * x;
      }
      ops.unit(rows.data(), 0.25f, n, unit.data());
      for (int64_t i = 0; i < n; ++i)
        CHECK(check::close(unit[i], static_cast<double>(rows[static_cast<size_t>(i)]) * 0.25 / std::sqrt(square + 1e-6), 1e-30, 1e-6),
              "%s unit n=%d i=%d: %g", name(isa), static_cast<int>(n), static_cast<int>(i), static_cast<double>(unit[i]));
      CHECK(unit.intact(), "%s unit n=%d wrote outside", name(isa), static_cast<int>(n));
    }
}

void delta_rule(Isa isa) {
  const VecOps& ops = vec_ops(isa);
  constexpr int64_t kPositions = 200;
  for (const int32_t key_dim : {1, 3, 16, 33, 128})
    for (const int32_t value_dim : {1, 5, 16, 17, 63, 64, 65, 128, 130}) {
      check::Numbers numbers(static_cast<uint64_t>(key_dim * 1000 + value_dim));
      const int64_t stride = 2 * key_dim + value_dim + 3, rows = kPositions * stride;
      std::vector<float> in(static_cast<size_t>(rows)), decay(kPositions), beta(kPositions);
      for (float& x : in) x = numbers.normal();
      for (int64_t t = 0; t < kPositions; ++t) {
        float* const row = in.data() + t * stride;
        ops.unit(row, 1, key_dim, row);
        ops.unit(row + key_dim, 1, key_dim, row + key_dim);
        decay[static_cast<size_t>(t)] = static_cast<float>(t % 7 == 6 ? 0.3 : 0.9 + 0.1 * numbers.uniform());
        beta[static_cast<size_t>(t)] = static_cast<float>(numbers.uniform());
      }
      Guarded s(int64_t{key_dim} * value_dim), once(int64_t{key_dim} * value_dim);
      Guarded out(kPositions * value_dim), each(kPositions * value_dim);
      std::vector<double> plain(static_cast<size_t>(key_dim * value_dim));
      for (int64_t i = 0; i < int64_t{key_dim} * value_dim; ++i) plain[static_cast<size_t>(i)] = s[i] = once[i] = numbers.normal();
      const auto run = [&](float* state, int64_t from, int64_t count, float* to) {
        const float* const row = in.data() + from * stride;
        DeltaArgs args = {};
        args.s = state, args.key_dim = key_dim, args.value_dim = value_dim;
        args.count = count, args.stride = stride, args.out_stride = value_dim;
        args.q = row, args.k = row + key_dim, args.v = row + 2 * key_dim;
        args.decay = decay.data() + from, args.beta = beta.data() + from, args.out = to + from * value_dim;
        ops.delta(args);
      };
      run(once.data(), 0, kPositions, out.data());
      for (int64_t from = 0, count; from < kPositions; from += count) {
        count = std::min(kPositions - from, 1 + numbers.below(9));
        run(s.data(), from, count, each.data());
      }
      CHECK(std::memcmp(out.data(), each.data(), static_cast<size_t>(kPositions * value_dim) * 4) == 0 &&
                std::memcmp(s.data(), once.data(), static_cast<size_t>(key_dim * value_dim) * 4) == 0,
            "%s delta of %dx%d: cuts change bits", name(isa), key_dim, value_dim);
      CHECK(s.intact() && once.intact() && out.intact() && each.intact(), "%s delta of %dx%d wrote outside", name(isa), key_dim, value_dim);
      for (int64_t t = 0; t < kPositions; ++t) {
        const float *const q = in.data() + t * stride, *const k = q + key_dim, *const v = k + key_dim;
        for (int32_t c = 0; c < value_dim; ++c) {
          double held = 0, want = 0;
          for (int32_t i = 0; i < key_dim; ++i) {
            double& x = plain[static_cast<size_t>(i * value_dim + c)];
            x *= static_cast<double>(decay[static_cast<size_t>(t)]);
            held += x * static_cast<double>(k[i]);
          }
          const double d = (static_cast<double>(v[c]) - held) * static_cast<double>(beta[static_cast<size_t>(t)]);
          for (int32_t i = 0; i < key_dim; ++i) {
            double& x = plain[static_cast<size_t>(i * value_dim + c)];
            x += static_cast<double>(k[i]) * d;
            want += x * static_cast<double>(q[i]);
          }
          CHECK(check::close(out[t * value_dim + c], want, 2e-5, 1e-5), "%s delta of %dx%d position %d column %d: %g, wanted %g", name(isa),
                key_dim, value_dim, static_cast<int>(t), c, static_cast<double>(out[t * value_dim + c]), want);
        }
      }
    }
}

}  // namespace

int main() {
  check::each_isa(elementwise);
  check::each_isa(passes);
  check::each_isa(rope);
  check::each_isa(convolutions);
  check::each_isa(delta_rule);
  return check::report("vecops");
}
