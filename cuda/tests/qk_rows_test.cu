// Norms over all heads of Q and of K against float64, and the guarantee that parts of heads have the bits of all.
#include "kernel_fixture.h"
#include "kernels/qk_rows.h"

namespace mr::cuda::testing {
namespace {

struct Heads {
  int32_t rows, q, k;  // columns
  bool bias, copies;
};

struct Case {
  std::vector<float> qkv, q_bias, k_bias, q_norm, k_norm;
};

constexpr float kEps = 1e-5f;

Case numbers_of(const Heads& h, Numbers& numbers) {
  const auto n = [&](int64_t count, float spread) { return numbers.normals(static_cast<size_t>(count), spread); };
  return {n(h.rows * (h.q + 2 * h.k), 3), n(h.q, 1), n(h.k, 1), n(h.q, 1), n(h.k, 1)};
}

std::vector<float> normed(const Heads& h, const Case& c) {
  Guarded<float> qkv(c.qkv), q_bias(c.q_bias), k_bias(c.k_bias), q_norm(c.q_norm), k_norm(c.k_norm);
  NormQkRowsArgs args{};
  args.qkv = qkv;
  args.stride = h.q + 2 * h.k;
  args.rows = h.rows;
  args.q_width = h.q;
  args.k_width = h.k;
  args.q_bias = h.bias ? q_bias.data() : nullptr;
  args.k_bias = h.bias ? k_bias.data() : nullptr;
  args.q_norm = q_norm;
  args.k_norm = k_norm;
  args.eps = kEps;
  args.copies_keys = h.copies;
  MUST(launch_norm_qk_rows(args, Stream{}));
  return qkv.read();
}

// Columns [first, first + count) of row `row`.
std::vector<float> columns(const std::vector<float>& rows, int32_t stride, int32_t row, int32_t first, int32_t count) {
  const auto at = rows.begin() + row * stride + first;
  return {at, at + count};
}

// The same by `parts` parts, one after another in each row: what each of as many GPUs writes to its own heads.
std::vector<float> normed_in_parts(const Heads& h, const Case& c, int32_t parts) {
  const int32_t stride = h.q + 2 * h.k, q = h.q / parts, k = h.k / parts, row_of_parts = h.q + h.k + 3;
  std::vector<float> gathered(static_cast<size_t>(h.rows * row_of_parts), NAN), out = c.qkv;
  for (int32_t r = 0; r < h.rows; ++r)
    for (int32_t i = 0; i < h.q + h.k; ++i) {
      const bool keys = i >= h.q;
      const int32_t column = keys ? i - h.q : i, width = keys ? k : q;
      float y = c.qkv[static_cast<size_t>(r * stride + i)];
      if (h.bias) y += (keys ? c.k_bias : c.q_bias)[static_cast<size_t>(column)];
      gathered[static_cast<size_t>(r * row_of_parts + column / width * (q + k) + (keys ? q : 0) + column % width)] = y;
    }
  Guarded<float> whole(gathered), q_norm(c.q_norm), k_norm(c.k_norm);
  for (int32_t part = 0; part < parts; ++part) {
    const int32_t own = q + 2 * k;
    Guarded<float> qkv(std::vector<float>(static_cast<size_t>(h.rows * own), 7.0f));
    NormQkRowsArgs args{};
    args.qkv = qkv;
    args.stride = own;
    args.rows = h.rows;
    args.q_width = q;
    args.k_width = k;
    args.q_norm = q_norm;
    args.k_norm = k_norm;
    args.eps = kEps;
    args.copies_keys = h.copies;
    args.parts = whole;
    args.parts_stride = row_of_parts;
    args.part = part;
    args.part_count = parts;
    MUST(launch_norm_qk_rows(args, Stream{}));
    const std::vector<float> got = qkv.read();
    for (int32_t r = 0; r < h.rows; ++r) {
      const auto place = [&](int32_t from, int32_t to, int32_t count) {
        const std::vector<float> some = columns(got, own, r, from, count);
        std::copy(some.begin(), some.end(), out.begin() + r * stride + to);
      };
      place(0, part * q, q);
      place(q, h.q + part * k, k);
      if (h.copies) place(q + k, h.q + h.k + part * k, k);
    }
  }
  return out;
}

const Heads kHeads[] = {
    {3, 96, 24, false, false}, {2, 1024, 256, true, false}, {5, 1536, 1536, false, true}, {2, 6, 2, true, true}, {4, 640, 0, false, false}};

TEST(QkRows, AreCloseToFloat64) {
  Numbers numbers(3);
  for (const Heads& h : kHeads) {
    const Case c = numbers_of(h, numbers);
    const std::vector<float> got = normed(h, c);
    const int32_t stride = h.q + 2 * h.k;
    for (int32_t r = 0; r < h.rows; ++r)
      for (const bool keys : {false, true}) {
        const int32_t first = keys ? h.q : 0, width = keys ? h.k : h.q;
        std::vector<double> want(static_cast<size_t>(width)), before = want;
        double squares = 0;
        for (int32_t i = 0; i < width; ++i) {
          double& y = before[static_cast<size_t>(i)];
          y = c.qkv[static_cast<size_t>(r * stride + first + i)];
          if (h.bias) y += (keys ? c.k_bias : c.q_bias)[static_cast<size_t>(i)];
          squares += y * y;
        }
        for (size_t i = 0; i < want.size(); ++i)
          want[i] = before[i] / std::sqrt(squares / width + static_cast<double>(kEps)) * (keys ? c.k_norm : c.q_norm)[i];
        EXPECT_TRUE(near(columns(got, stride, r, first, width), want, {0x1p-20, 0x1p-20})) << h.q << " and " << h.k << ", row " << r;
        const std::vector<float> values = columns(got, stride, r, h.q + h.k, h.k);
        if (!keys) continue;
        if (h.copies) { EXPECT_TRUE(near(values, before, {0, 0x1p-23})); }
        else { EXPECT_EQ(values, columns(c.qkv, stride, r, h.q + h.k, h.k)); }
      }
  }
}

TEST(QkRows, HaveTheSameBitsInParts) {
  Numbers numbers(4);
  for (const Heads& h : kHeads) {
    const Case c = numbers_of(h, numbers);
    const std::vector<float> want = normed(h, c);
    for (const int32_t parts : {1, 2, 4, 8}) {
      if (h.q % parts != 0 || h.k % parts != 0) continue;
      EXPECT_EQ(normed_in_parts(h, c, parts), want) << h.q << " and " << h.k << " in " << parts;
    }
  }
}

TEST(QkRows, RefusePartsThatCannotBe) {
  float x = 0;
  NormQkRowsArgs args{};
  args.q_width = 1;
  args.part_count = 2;  // without parts
  EXPECT_EQ(launch_norm_qk_rows(args, Stream{}), cudaErrorInvalidValue);
  args.parts = &x;
  EXPECT_EQ(launch_norm_qk_rows(args, Stream{}), cudaSuccess);  // of no rows
  args.q_bias = &x;
  EXPECT_EQ(launch_norm_qk_rows(args, Stream{}), cudaErrorInvalidValue);
  args.q_bias = nullptr;
  args.part = 2;
  EXPECT_EQ(launch_norm_qk_rows(args, Stream{}), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace mr::cuda::testing
