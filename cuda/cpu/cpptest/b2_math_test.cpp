// Random numbers against their published answers, elementary functions against long double.
#include <cmath>

#include "b2_check.h"
#include "mathfn.h"
#include "philox.h"
#include "vecops.h"

using namespace mr;
using namespace mr::cpu;

namespace {

void philox_known_answers() {
  struct Case {
    Philox counter;
    uint32_t key0, key1;
    Philox want;
  };
  const Case cases[] = {
      {{{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
      {{{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       0xa4093822,
       0x299f31d0,
       {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
  };
  for (const Case& c : cases) {
    const Philox got = philox4x32(c.counter, c.key0, c.key1);
    for (int i = 0; i < 4; ++i)
      CHECK(got.word[i] == c.want.word[i], "word %d is %08x, wanted %08x", i, got.word[i], c.want.word[i]);
  }
  const Philox r = philox4x32(Philox{{7, 3, random_sample, 0}}, 0x89abcdef, 0x01234567);
  CHECK(random_bits(0x0123456789abcdefu, 7, 3, random_sample) == ((uint64_t{r.word[0]} << 32) | r.word[1]),
        "the draw's key or counter differs");
}

double ulps(double got, long double want) {  // of a double
  if (got == static_cast<double>(want)) return 0;
  const double w = static_cast<double>(want);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - want) / (std::nextafter(std::fabs(w), INFINITY) - std::fabs(w)));
}

void double_functions() {
  check::Numbers n(1);
  double worst_exp = 0, worst_log = 0, worst_sin = 0, worst_pow = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x = (n.uniform() - 0.5) * 1400;
    worst_exp = std::fmax(worst_exp, ulps(exp_f64(x), std::exp(static_cast<long double>(x))));
    const double small = (n.uniform() - 0.5) * 2;
    worst_exp = std::fmax(worst_exp, ulps(exp_f64(small), std::exp(static_cast<long double>(small))));
    const double y = std::ldexp(0.5 + n.uniform(), static_cast<int>(n.below(2000)) - 1000);
    worst_log = std::fmax(worst_log, ulps(log_f64(y), std::log(static_cast<long double>(y))));
    const double near = 0.9 + 0.2 * n.uniform();
    worst_log = std::fmax(worst_log, ulps(log_f64(near), std::log(static_cast<long double>(near))));
    const double angle = (n.uniform() - 0.5) * (i % 2 == 0 ? 10 : 6.4e6);
    double s, c;
    sincos_f64(angle, &s, &c);
    worst_sin = std::fmax(worst_sin, static_cast<double>(std::fabs(s - std::sin(static_cast<long double>(angle)))));
    worst_sin = std::fmax(worst_sin, static_cast<double>(std::fabs(c - std::cos(static_cast<long double>(angle)))));
    const double e = -n.uniform();
    const long double want = std::pow(10000.0L, static_cast<long double>(e));
    worst_pow = std::fmax(worst_pow, static_cast<double>(std::fabs(pow_f64(10000.0, e) - want) / want));
  }
  std::printf("exp %.2f ulp, log %.2f ulp, sin and cos %.3g, pow %.3g\n", worst_exp, worst_log, worst_sin, worst_pow);
  CHECK(worst_exp <= 2, "exp is %g ulp off", worst_exp);
  CHECK(worst_log <= 2, "log is %g ulp off", worst_log);
  CHECK(worst_sin <= 0x1p-52, "sine or cosine is %g off", worst_sin);
  CHECK(worst_pow <= 1e-14, "pow is %g off", worst_pow);
  for (int position = 999000; position < 1000000; ++position) {
    double s, c;
    sincos_f64(position, &s, &c);
    CHECK(std::fabs(s - std::sin(static_cast<long double>(position))) <= 0x1p-52L, "sin(%d)", position);
    CHECK(std::fabs(c - std::cos(static_cast<long double>(position))) <= 0x1p-52L, "cos(%d)", position);
  }
  CHECK(exp_f64(-INFINITY) == 0 && std::isinf(exp_f64(INFINITY)) && std::isnan(exp_f64(NAN)), "exp at the ends");
  CHECK(exp_f64(0) == 1 && log_f64(1) == 0, "exp and log at their fixed points");
  CHECK(std::isinf(log_f64(0)) && std::isnan(log_f64(-1)) && std::isinf(log_f64(INFINITY)), "log at the ends");
  CHECK(check::close(log_f64(0x1p-1074), std::log(0x1p-1074), 0, 1e-15), "log of a subnormal number");
}

void vector_exp(Isa isa) {
  const VecOps& ops = vec_ops(isa);
  std::vector<float> x;
  for (float v = -87.3f; v < 88.72f; v += 0.00037f) x.push_back(v);
  for (float v = -1e-3f; v < 1e-3f; v += 1e-8f) x.push_back(v);
  std::vector<float> y(x.size());
  ops.exp(x.data(), static_cast<int64_t>(x.size()), y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    const float f = static_cast<float>(want);
    const double ulp = static_cast<double>(std::nextafterf(f, INFINITY)) - static_cast<double>(f);
    const double error = std::fabs(static_cast<double>(y[i]) - want) / ulp;
    if (!(error <= worst)) worst = error;
    CHECK(error <= 1.01, "%s: exp(%.9g) is %.9g, wanted %.9g", name(isa), static_cast<double>(x[i]),
          static_cast<double>(y[i]), want);
    if (check::failures > 20) return;
  }
  std::printf("%s: vector exp %.3f ulp\n", name(isa), worst);
  const float ends[] = {-INFINITY, -1e30f, -87.31f, 0, 88.73f, 1e30f, INFINITY, NAN};
  float out[8];
  ops.exp(ends, 8, out);
  CHECK(out[0] == 0 && out[1] == 0 && out[2] == 0, "%s: small ends", name(isa));
  CHECK(out[3] == 1, "%s: exp(0)", name(isa));
  CHECK(std::isinf(out[4]) && std::isinf(out[5]) && std::isinf(out[6]), "%s: large ends", name(isa));
  CHECK(std::isnan(out[7]), "%s: exp(NaN)", name(isa));
}

}  // namespace

int main() {
  philox_known_answers();
  double_functions();
  check::each_isa(vector_exp);
  return check::report("math");
}
