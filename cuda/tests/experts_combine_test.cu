// The sum over the experts of a row, with its norm and the shared expert, against float64.
#include <algorithm>
#include <cmath>

#include "kernel_fixture.h"
#include "kernels/experts/combine.h"

namespace mr::cuda::testing {
namespace {

constexpr float kEps = 1e-5f;

struct Mixture {
  int32_t rows, dim, used, experts;
  bool bias, end_norm, shared, gate, norm, shared_end_norm, branch;
};

struct Mixed {
  std::vector<float> weights, y, bias, end_norm, shared, router, norm, shared_end_norm, x;
  std::vector<int32_t> ids;
};

Mixed numbers_of(const Mixture& m, Numbers& numbers) {
  const auto n = [&](bool some, int64_t count) { return numbers.normals(some ? static_cast<size_t>(count) : 0); };
  Mixed v;
  v.weights = n(true, m.rows * m.used);
  v.y = n(true, m.rows * m.used * m.dim);
  v.bias = n(m.bias, m.experts * m.dim);
  v.end_norm = n(m.end_norm, m.dim);
  v.shared = n(m.shared, m.rows * m.dim);
  v.router = n(m.gate, m.dim);
  v.norm = n(m.norm, m.dim);
  v.shared_end_norm = n(m.shared_end_norm, m.dim);
  v.x = n(true, m.rows * m.dim);
  for (int32_t r = 0; r < m.rows; ++r)
    for (int32_t i = 0; i < m.used; ++i) v.ids.push_back(r == 1 ? m.experts : i + (m.experts > m.used ? r % 2 : 0));  // row 1 is padding
  return v;
}

// The branch, or x after the sum.
std::vector<float> combined(const Mixture& m, const Mixed& v) {
  Guarded<int32_t> ids(v.ids);
  Guarded<float> weights(v.weights), y(v.y), bias(v.bias), end_norm(v.end_norm), shared(v.shared), router(v.router), norm(v.norm),
      shared_end_norm(v.shared_end_norm), x(v.x), branch(std::vector<float>(v.x.size(), 7.0f));
  CombineArgs args{};
  args.ids = ids;
  args.weights = v.weights.empty() ? nullptr : weights.data();
  args.ids_stride = static_cast<int32_t>(v.ids.size()) / m.rows;
  args.used = m.used;
  args.experts = m.experts;
  args.y = y;
  args.bias = m.bias ? bias.data() : nullptr;
  args.end_norm = m.end_norm ? end_norm.data() : nullptr;
  args.shared = m.shared ? shared.data() : nullptr;
  args.shared_router = m.gate ? router.data() : nullptr;
  args.norm = m.norm ? norm.data() : nullptr;
  args.shared_end_norm = m.shared_end_norm ? shared_end_norm.data() : nullptr;
  args.x = x;
  args.branch = m.branch ? branch.data() : nullptr;
  args.y_stride = args.shared_stride = args.x_stride = m.dim;
  args.eps = kEps;
  args.rows = m.rows;
  args.dim = m.dim;
  MUST(launch_combine(args, Stream{}));
  return m.branch ? branch.read() : x.read();
}

TEST(Combine, AgreesWithFloat64) {
  Numbers numbers(5);
  for (const Mixture& m : {Mixture{3, 96, 2, 4, false, false, false, false, false, false, false},
                           Mixture{3, 700, 9, 12, true, false, true, false, false, false, false},
                           Mixture{4, 33, 1, 1, false, false, true, true, true, false, true},
                           Mixture{2, 1, 3, 4, true, true, true, true, false, true, true},
                           Mixture{3, 515, 8, 20, false, true, true, false, true, true, true},
                           Mixture{2, 2052, 6, 8, true, false, true, false, false, false, true},
                           Mixture{2, 4098, 3, 8, true, true, true, true, true, true, false}}) {
    const Mixed v = numbers_of(m, numbers);
    const std::vector<float> got = combined(m, v);
    const auto at = [](const std::vector<float>& of, int64_t i) { return of.empty() ? 1.0 : static_cast<double>(of[static_cast<size_t>(i)]); };
    for (int32_t r = 0; r < m.rows; ++r) {
      std::vector<double> sum(static_cast<size_t>(m.dim)), shared(sum), want(sum);
      double size = 1, squares = 0, dot = 0;
      for (int32_t i = 0; i < m.dim; ++i) {
        for (int32_t c = 0; c < m.used; ++c) {
          double y = v.y[static_cast<size_t>((r * m.used + c) * m.dim + i)];
          if (m.bias && r != 1) y += v.bias[static_cast<size_t>(v.ids[static_cast<size_t>(r * m.used + c)] * m.dim + i)];
          sum[static_cast<size_t>(i)] += y * v.weights[static_cast<size_t>(r * m.used + c)];
          size = std::max(size, std::fabs(sum[static_cast<size_t>(i)]));
        }
        const double x = v.x[static_cast<size_t>(r * m.dim + i)];
        squares += x * x;
        dot += x * at(v.norm, i) * (m.gate ? v.router[static_cast<size_t>(i)] : 0.0f);
        shared[static_cast<size_t>(i)] = m.shared ? v.shared[static_cast<size_t>(r * m.dim + i)] : 0;
      }
      const auto factor = [&](double of) { return 1 / std::sqrt(of / m.dim + static_cast<double>(kEps)); };
      const double weight = m.gate ? 1 / (1 + std::exp(-dot * (m.norm ? factor(squares) : 1))) : 1;
      double of_sum = 0, of_shared = 0;
      for (int32_t i = 0; i < m.dim; ++i) {
        shared[static_cast<size_t>(i)] *= weight;
        of_sum += sum[static_cast<size_t>(i)] * sum[static_cast<size_t>(i)];
        of_shared += shared[static_cast<size_t>(i)] * shared[static_cast<size_t>(i)];
      }
      for (int32_t i = 0; i < m.dim; ++i) {
        const auto k = static_cast<size_t>(i);
        want[k] = sum[k] * (m.end_norm ? factor(of_sum) * v.end_norm[k] : 1) + shared[k] * (m.shared_end_norm ? factor(of_shared) * v.shared_end_norm[k] : 1);
        if (!m.branch) want[k] += v.x[static_cast<size_t>(r * m.dim + i)];
        if (r == 1) want[k] = m.branch ? 7 : v.x[static_cast<size_t>(r * m.dim + i)];
      }
      EXPECT_TRUE(near({got.begin() + r * m.dim, got.begin() + (r + 1) * m.dim}, want, {size * 0x1p-17, 0x1p-17})) << "dim " << m.dim << " row " << r;
    }
  }
}

TEST(Combine, NormsASumThatIsMade) {
  Numbers numbers(8);
  Mixture m{1, 70, 3, 5, true, true, true, false, false, true, false};
  const Mixed parts = numbers_of(m, numbers);
  Mixed sum = parts;
  sum.weights.clear();
  sum.y.assign(static_cast<size_t>(m.dim), 0);
  for (size_t i = 0; i < sum.y.size(); ++i)
    for (size_t k = 0; k < 3; ++k) {
      const float y = (parts.y[k * sum.y.size() + i] + parts.bias[k * sum.y.size() + i]) * parts.weights[k];
      sum.y[i] = k == 0 ? y : sum.y[i] + y;
    }
  const std::vector<float> want = combined(m, parts);
  m.bias = false;
  m.used = 1;
  EXPECT_EQ(combined(m, sum), want);
}

// Columns [first, first + count) of rows of `dim` columns.
std::vector<float> columns_of(const std::vector<float>& rows, int32_t dim, int32_t first, int32_t count) {
  std::vector<float> out;
  for (size_t at = static_cast<size_t>(first); at < rows.size(); at += static_cast<size_t>(dim))
    out.insert(out.end(), rows.begin() + static_cast<int64_t>(at), rows.begin() + static_cast<int64_t>(at) + count);
  return out;
}

// Several GPUs have some columns each: of the branch, or where it reads whole rows, of the sum over a row's experts.
TEST(Combine, GivesTheSameBitsInPartsOfColumns) {
  Numbers numbers(9);
  const int32_t cut = 48, dim = 83, rows = 5;
  for (const bool branch : {false, true}) {
    for (const bool whole : {false, true}) {
      const Mixture m{rows, dim, 4, 9, true, whole, true, whole, whole, whole, branch};
      const Mixed v = numbers_of(m, numbers);
      std::vector<float> got(static_cast<size_t>(rows * dim));
      const std::pair<int32_t, int32_t> parts[] = {{0, cut}, {cut, dim - cut}};
      for (const auto& [first, count] : parts) {
        Mixture part = m;
        part.dim = count;
        if (whole) part.end_norm = part.shared = part.gate = part.norm = part.shared_end_norm = false, part.branch = true;
        Mixed of = v;
        for (auto* columns : {&of.y, &of.bias, &of.shared, &of.x}) *columns = columns_of(*columns, dim, first, count);
        const std::vector<float> out = combined(part, of);
        for (int32_t r = 0; r < rows; ++r)
          std::copy_n(out.begin() + r * count, count, got.begin() + r * dim + first);
      }
      if (whole) {
        Mixture rest = m;
        rest.used = 1;
        rest.bias = false;
        Mixed sums = v;
        sums.y = got;
        sums.weights.clear();
        got = combined(rest, sums);
      }
      EXPECT_EQ(got, combined(m, v)) << (branch ? "branch" : "x") << (whole ? " of whole rows" : "");
    }
  }
}

// Among 7 and 64 rows, with all inputs of a row and with the sum alone.
TEST(Combine, GivesARowTheSameBitsAloneAndAmongOthers) {
  Numbers numbers(11);
  for (const int32_t rows : {7, 64})
    for (const bool all : {false, true}) {
      const Mixture m{rows, 132, 8, 20, all, all, all, all, all, all, false};
      const Mixed v = numbers_of(m, numbers);
      const std::vector<float> among = combined(m, v);
      for (const int32_t r : {0, 2, rows / 2, rows - 1}) {
        Mixture one = m;
        one.rows = 1;
        Mixed alone = v;
        for (auto* of_rows : {&alone.weights, &alone.y, &alone.shared, &alone.x}) {
          const auto each = of_rows->size() / static_cast<size_t>(rows), first = each * static_cast<size_t>(r);
          *of_rows = std::vector<float>(of_rows->begin() + first, of_rows->begin() + first + each);
        }
        alone.ids = std::vector<int32_t>(v.ids.begin() + r * m.used, v.ids.begin() + (r + 1) * m.used);
        EXPECT_EQ(combined(one, alone), std::vector<float>(among.begin() + r * m.dim, among.begin() + (r + 1) * m.dim))
            << "row " << r << " of " << rows << (all ? " with all inputs" : "");
      }
    }
}

TEST(Combine, SpreadsAWeightThatIsNotANumber) {
  Numbers numbers(6);
  const Mixture m{3, 40, 2, 4, false, false, true, false, false, false, false};
  Mixed v = numbers_of(m, numbers);
  v.weights[4] = v.weights[5] = NAN;  // of row 2
  const std::vector<float> got = combined(m, v);
  for (int32_t i = 0; i < 3 * 40; ++i) EXPECT_EQ(std::isnan(got[static_cast<size_t>(i)]), i / 40 == 2);
}

TEST(Combine, AddsByAscendingExpert) {
  // In f32, 1e8 + 1 - 1e8 is 0 in this order and 1 in others.
  const Mixture m{1, 1, 3, 8, false, false, false, false, false, false, true};
  Mixed v{};
  v.weights = {1, 1, 1};
  v.y = {1e8f, 1, -1e8f};
  v.x = {0};
  v.ids = {1, 3, 6};
  EXPECT_EQ(combined(m, v), std::vector<float>{0});
}

}  // namespace
}  // namespace mr::cuda::testing
