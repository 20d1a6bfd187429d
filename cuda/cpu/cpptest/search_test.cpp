// Certified assignment on every path: scores within their bound of the real numbers, and ids those of plain binary64 sums,
// whatever the rows are made to break.
#include "search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "b2_check.h"
#include "millrace/vectors.h"
#include "threads.h"
#include "vector_math.h"

using namespace mr;
using namespace mr::cpu;

namespace {

// The rules as they are written, one codeword after another.
double plain(int32_t metric, const float* x, const float* c, int64_t d) {
  double a[8] = {};
  for (int64_t j = 0; j < d; ++j) {
    const volatile double t = metric == MR_METRIC_L2 ? static_cast<double>(x[j]) - static_cast<double>(c[j]) : 0;
    const volatile double p = metric == MR_METRIC_L2 ? t * t : static_cast<double>(x[j]) * static_cast<double>(c[j]);
    a[j % 8] += p;
  }
  return metric == MR_METRIC_L2 ? fold_eight(a) : -fold_eight(a);
}

// Codewords made ready, and scratch to search them with.
struct Ready {
  Ready(const VectorKernels& k, int32_t metric, std::vector<float> codewords, int64_t d, int64_t most)
      : kernels(k), values(std::move(codewords)) {
    s.metric = metric;
    s.width = d;
    s.codewords = static_cast<int64_t>(values.size()) / d;
    s.values = values.data();
    const int64_t panels = panel_count(k, s.codewords), wide = panels * k.codewords, rows = (most + k.rows - 1) / k.rows * k.rows;
    floats.resize(static_cast<size_t>(wide * (d + 1) + 3 * d + rows * (d + 4) + std::max(wide, SearchScratch::kScoresAtOnce) + wide));
    ids.resize(static_cast<size_t>(rows));
    float* at = floats.data();
    const auto take = [&at](int64_t n) { float* const p = at; at += n; return p; };
    s.panels = take(wide * d);
    s.halves = take(wide);
    s.center = take(d);
    scratch.packed = take(rows * d);
    scratch.best = take(rows);
    scratch.second = take(rows);
    scratch.squares = take(rows);
    scratch.limits = take(rows);
    scratch.row = take(d);
    scratch.scores = take(std::max(wide, SearchScratch::kScoresAtOnce));
    order = take(wide);
    scratch.id = ids.data();
    prepare_center(&s);
    s.radius = prepare_panels(k, s, 0, panels);
  }
  const VectorKernels& kernels;
  const std::vector<float> values;
  std::vector<float> floats;
  std::vector<int32_t> ids;
  Searchable s;
  SearchScratch scratch{};
  float* order = nullptr;
};

using Fill = std::function<float(check::Numbers&, int64_t i, int64_t j)>;

struct Data {
  const char* name;
  Fill row, codeword;
};

float lattice(check::Numbers& r) { return static_cast<float>(r.below(3)); }

const std::vector<Data>& data() {
  static const std::vector<Data> all = {
      {"gaussian", [](check::Numbers& r, int64_t, int64_t) { return r.normal(); },
       [](check::Numbers& r, int64_t, int64_t) { return r.normal(); }},
      {"ties", [](check::Numbers& r, int64_t, int64_t) { return lattice(r); },
       [](check::Numbers& r, int64_t, int64_t) { return lattice(r); }},
      {"one codeword again and again", [](check::Numbers& r, int64_t, int64_t) { return r.normal(); },
       [](check::Numbers&, int64_t, int64_t j) { return static_cast<float>(j % 5) - 1.3f; }},
      {"a bit apart", [](check::Numbers&, int64_t i, int64_t j) { return static_cast<float>(i * 7 + j * 3 % 11) * 0.1f; },
       [](check::Numbers&, int64_t i, int64_t j) { return 1.0f + static_cast<float>((i + j) % 3) * 0x1p-22f; }},
      {"far from 0", [](check::Numbers& r, int64_t, int64_t) { return 1e6f + r.normal(); },
       [](check::Numbers& r, int64_t, int64_t) { return 1e6f + r.normal(); }},
      {"lengths over 1e6", [](check::Numbers& r, int64_t i, int64_t) { return r.normal() * std::pow(10.0f, static_cast<float>(i % 7)); },
       [](check::Numbers& r, int64_t i, int64_t) { return r.normal() * std::pow(10.0f, static_cast<float>(i % 7)); }},
      {"subnormal", [](check::Numbers& r, int64_t, int64_t) { return static_cast<float>(r.below(9) - 4) * 0x1p-149f; },
       [](check::Numbers& r, int64_t, int64_t) { return static_cast<float>(r.below(9) - 4) * 0x1p-149f; }},
      {"small squares", [](check::Numbers& r, int64_t, int64_t) { return r.normal() * 0x1p-74f; },
       [](check::Numbers& r, int64_t, int64_t) { return r.normal() * 0x1p-74f; }},
      {"largest", [](check::Numbers& r, int64_t, int64_t) { return (r.below(2) == 0 ? 1.0f : -1.0f) * 0x1.fffffep127f; },
       [](check::Numbers& r, int64_t, int64_t) { return r.normal() * 0x1p126f; }},
      {"squares beyond f32", [](check::Numbers& r, int64_t i, int64_t) { return r.normal() * (i % 2 == 0 ? 0x1p64f : 1.0f); },
       [](check::Numbers& r, int64_t i, int64_t) { return r.normal() * (i % 3 == 0 ? 0x1p64f : 1.0f); }},
      {"between two", [](check::Numbers&, int64_t i, int64_t j) { return (j == 0 ? static_cast<float>(i % 9) : 0.0f) + 0.5f; },
       [](check::Numbers&, int64_t i, int64_t j) { return j == 0 ? static_cast<float>(i) : 0.0f; }},
      {"zeros", [](check::Numbers& r, int64_t i, int64_t) { return i % 2 == 0 ? 0.0f : -0.0f + 0 * r.normal(); },
       [](check::Numbers& r, int64_t, int64_t) { return r.below(2) == 0 ? 0.0f : -0.0f; }},
  };
  return all;
}

std::vector<float> made(const Fill& fill, uint64_t seed, int64_t n, int64_t d) {
  check::Numbers r(seed);
  std::vector<float> out(static_cast<size_t>(n * d));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < d; ++j) out[static_cast<size_t>(i * d + j)] = fill(r, i, j);
  return out;
}

struct Shape {
  int64_t n, d, k;
};

// Ids and distances of all rows, and of the same rows a few at a time.
void ids_are_plain(Isa isa, const Data& of, int32_t metric, Shape shape) {
  const VectorKernels& kernels = vector_kernels(isa);
  const std::vector<float> rows = made(of.row, 1, shape.n, shape.d);
  Ready ready(kernels, metric, made(of.codeword, 2, shape.k, shape.d), shape.d, shape.n);
  const Search search(kernels, ready.s);
  std::vector<uint32_t> ids(static_cast<size_t>(shape.n)), some(ids);
  std::vector<double> q(static_cast<size_t>(shape.n));
  const std::string where = std::string(name(isa)) + ", " + of.name + ", metric " + std::to_string(metric) + ", " + std::to_string(shape.n) +
                            " x " + std::to_string(shape.d) + ", " + std::to_string(shape.k) + " codewords";
  const int64_t settled = search.nearest(rows.data(), shape.d, shape.n, ready.scratch, ids.data(), q.data());
  CHECK(settled >= 0 && settled <= shape.n, "%s: %lld settled", where.c_str(), static_cast<long long>(settled));
  for (int64_t i = 0; i < shape.n; ++i) {
    uint32_t want = 0;
    double least = INFINITY;
    for (int64_t c = 0; c < shape.k; ++c)
      if (const double v = plain(metric, rows.data() + i * shape.d, ready.values.data() + c * shape.d, shape.d); v < least) {
        least = v;
        want = static_cast<uint32_t>(c);
      }
    CHECK(ids[static_cast<size_t>(i)] == want && std::memcmp(&q[static_cast<size_t>(i)], &least, 8) == 0, "%s: row %lld is %u at %.17g, want %u at %.17g",
          where.c_str(), static_cast<long long>(i), ids[static_cast<size_t>(i)], q[static_cast<size_t>(i)], want, least);
    if (check::failures > 20) return;
  }
  for (int64_t i = 0; i < shape.n; i += 7)
    (void)search.nearest(rows.data() + i * shape.d, shape.d, std::min<int64_t>(7, shape.n - i), ready.scratch, some.data() + i, nullptr);
  CHECK(some == ids, "%s: seven rows at a time have other ids", where.c_str());
}

// Neighbours against a sort of all distances.
void neighbours_are_plain(Isa isa, const Data& of, int32_t metric, Shape shape, int64_t wanted) {
  const VectorKernels& kernels = vector_kernels(isa);
  const std::vector<float> rows = made(of.row, 3, shape.n, shape.d);
  Ready ready(kernels, metric, made(of.codeword, 4, shape.k, shape.d), shape.d, 1);
  const Search search(kernels, ready.s);
  std::vector<Search::Neighbour> found(static_cast<size_t>(shape.k)), want(found);
  for (int64_t i = 0; i < shape.n; ++i) {
    const float* const x = rows.data() + i * shape.d;
    (void)search.neighbours(x, wanted, ready.scratch, ready.order, found.data());
    for (int64_t c = 0; c < shape.k; ++c)
      want[static_cast<size_t>(c)] = {plain(metric, x, ready.values.data() + c * shape.d, shape.d), static_cast<uint32_t>(c)};
    std::stable_sort(want.begin(), want.end(), [](const auto& a, const auto& b) { return a.distance < b.distance; });
    for (size_t h = 0; h < static_cast<size_t>(wanted); ++h)
      CHECK(found[h].id == want[h].id && found[h].distance == want[h].distance, "%s, %s, metric %d: neighbour %zu of row %lld is %u, want %u",
            name(isa), of.name, metric, h, static_cast<long long>(i), found[h].id, want[h].id);
    if (check::failures > 20) return;
  }
}

// Scores of both kernels against sums in 64-bit significands. Returns the largest share of its bound that an error takes.
double scores_are_bounded(Isa isa, const Data& of, int32_t metric, Shape shape) {
  const VectorKernels& kernels = vector_kernels(isa);
  const std::vector<float> rows = made(of.row, 5, shape.n, shape.d);
  Ready ready(kernels, metric, made(of.codeword, 6, shape.k, shape.d), shape.d, 1);
  const Search search(kernels, ready.s);
  const Margin& margin = search.margin();
  std::vector<float> scores(static_cast<size_t>(panel_count(kernels, shape.k) * kernels.codewords));
  double worst = 0;
  for (int64_t i = 0; i < shape.n; ++i) {
    const float* const x = rows.data() + i * shape.d;
    long double square = 0;
    for (int64_t j = 0; j < shape.d; ++j) {
      const long double v = static_cast<long double>(x[j]) - static_cast<long double>(ready.s.center[j]);
      square += v * v;
      ready.scratch.row[j] = x[j] - ready.s.center[j];
    }
    const double length = static_cast<double>(std::sqrt(square));
    if (!(length + static_cast<double>(margin.radius) < static_cast<double>(kMostLength))) continue;  // everything is a candidate
    kernels.score(ready.scratch.row, shape.d, ready.s.panels, ready.s.halves, panel_count(kernels, shape.k), scores.data());
    const double bound = (static_cast<double>(margin.slope) * length + static_cast<double>(margin.base)) / 2;
    float best = -INFINITY;
    for (int64_t c = 0; c < shape.k; ++c) {
      long double a = 0;
      for (int64_t j = 0; j < shape.d; ++j) {
        const long double v = static_cast<long double>(x[j]) - static_cast<long double>(ready.s.center[j]);
        const long double w = static_cast<long double>(ready.values[static_cast<size_t>(c * shape.d + j)]) - static_cast<long double>(ready.s.center[j]);
        a += metric == MR_METRIC_L2 ? v * w - w * w / 2 : v * w;
      }
      const double error = static_cast<double>(std::fabs(static_cast<long double>(scores[static_cast<size_t>(c)]) - a));
      CHECK(error <= bound, "%s, %s, metric %d: score %g of row %lld and codeword %lld is %g off, bound %g", name(isa), of.name, metric,
            static_cast<double>(scores[static_cast<size_t>(c)]), static_cast<long long>(i), static_cast<long long>(c), error, bound);
      worst = std::max(worst, error / bound);
      best = std::max(best, scores[static_cast<size_t>(c)]);
    }
    uint32_t id = 0;
    (void)search.nearest(x, shape.d, 1, ready.scratch, &id, nullptr);
    CHECK(ready.scratch.best[0] == best, "%s, %s: a scan's best score is %g, alone it is %g", name(isa), of.name,
          static_cast<double>(ready.scratch.best[0]), static_cast<double>(best));
    if (check::failures > 20) break;
  }
  return worst;
}

// Non-finite rows are reported; rows too large for f32 are not.
void what_is_not_finite_is_told(Isa isa) {
  const VectorKernels& kernels = vector_kernels(isa);
  Ready ready(kernels, MR_METRIC_L2, std::vector<float>(20, 1), 5, 100);
  const Search search(kernels, ready.s);
  std::vector<uint32_t> ids(100);
  for (const float wrong : {NAN, INFINITY, -INFINITY, 0x1.fffffep127f}) {
    for (const size_t at : {size_t{0}, size_t{4}, size_t{250}, size_t{499}}) {
      std::vector<float> rows(500, 0.5f);
      rows[at] = wrong;
      const int64_t settled = search.nearest(rows.data(), 5, 100, ready.scratch, ids.data(), nullptr);
      CHECK((settled < 0) == !std::isfinite(wrong), "%s: %g as element %zu gives %lld", name(isa), static_cast<double>(wrong), at,
            static_cast<long long>(settled));
    }
  }
}

}  // namespace

int main() {
  const FloatEnvironment environment;
  check::each_isa([](Isa isa) {
    const Data& gaussian = data()[0];
    for (const Data& of : data()) {
      for (int32_t metric = MR_METRIC_L2; metric <= MR_METRIC_COSINE; ++metric) {
        for (const Shape shape : {Shape{1, 1, 1}, Shape{3, 1, 2}, Shape{50, 2, 9}, Shape{49, 7, 33}, Shape{20, 33, 100}, Shape{9, 257, 17}})
          ids_are_plain(isa, of, metric, shape);
        neighbours_are_plain(isa, of, metric, {9, 5, 70}, 64);
        neighbours_are_plain(isa, of, metric, {5, 13, 7}, 1);
        (void)scores_are_bounded(isa, of, metric, {8, 11, 20});
      }
    }
    ids_are_plain(isa, gaussian, MR_METRIC_L2, {3, 4097, 11});
    ids_are_plain(isa, gaussian, MR_METRIC_COSINE, {2, 65536, 5});
    ids_are_plain(isa, data()[1], MR_METRIC_L2, {3, 2, 65536});
    ids_are_plain(isa, data()[4], MR_METRIC_L2, {100, 128, 256});
    double worst = 0;
    for (const int64_t d : {1, 8, 128, 256, 300, 4096})
      worst = std::max(worst, scores_are_bounded(isa, gaussian, MR_METRIC_L2, {20, d, 40}));
    CHECK(worst > 1e-3, "%s: no error takes more than %g of its bound: the test sees nothing", name(isa), worst);
    what_is_not_finite_is_told(isa);
  });
  return check::report("search");
}
