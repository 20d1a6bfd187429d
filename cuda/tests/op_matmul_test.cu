// The plain f32 matmul against float64, for every weight format, around the edges of tiles, and bit for bit whichever
// tile computes a row.
#include <algorithm>
#include <random>

#include "cpu/cpptest/reference.h"
#include "kernel_fixture.h"
#include "kernels/ops/ops.h"

namespace mr::cuda::testing {
namespace {

constexpr int32_t kLarge = 1, kSmall = INT32_MAX;  // SM counts for which a matmul uses its large and its small tile

const int32_t kTypes[] = {kF32,  kF16,  kBF16,   kQ8_0, kQ4_0, kQ4_1,   kQ5_0,  kQ5_1,  kQ4_K,   kQ5_K,
                          kQ6_K, kIQ4_NL, kMXFP4, kNVFP4, kQ2_K, kQ3_K, kIQ4_XS, kIQ3_S, kIQ3_XXS, kIQ2_S, kIQ2_XS, kIQ2_XXS};

const int64_t kShapes[][2] = {{1, 1}, {2, 17}, {31, 65}, {32, 64}, {33, 63}, {127, 129}, {128, 128}, {129, 127}};

int32_t block_of(int32_t type) { return kWeightFormats[weight_format_index(type)].block; }

// Case is a matmul with its operands on the device, and each element's float64 value, bound and spread.
struct Case {
  int32_t type;
  int64_t rows, cols, inner;
  std::vector<uint8_t> file;
  std::vector<float> x;
  Guarded<uint8_t> a;
  Guarded<float> b;
  std::vector<double> want, bound, sigma;

  Case(int32_t t, int64_t r, int64_t c, int64_t k, uint32_t seed)
      : type(t), rows(r), cols(c), inner(k), file(file_of(t, c, k, seed)), x(Numbers(seed).normals(static_cast<size_t>(r * k))),
        a(file), b(x) {
    std::vector<reference::Weight> w(static_cast<size_t>(inner));
    const size_t count = static_cast<size_t>(rows * cols);
    want.resize(count);
    bound.resize(count);
    sigma.resize(count);
    for (int64_t col = 0; col < cols; ++col) {
      reference::decode_parts(type, file.data() + static_cast<size_t>(col) * (file.size() / static_cast<size_t>(cols)), inner, w.data());
      for (int64_t row = 0; row < rows; ++row) {
        double sum = 0, size = 0, square = 0;
        for (int64_t i = 0; i < inner; ++i) {
          const double v = x[static_cast<size_t>(row * inner + i)];
          const double scaled = w[static_cast<size_t>(i)].scaled * v, shift = w[static_cast<size_t>(i)].shift * v;
          sum += scaled + shift;
          size += std::fabs(scaled) + std::fabs(shift);  // a weight may be far smaller than the terms of its difference
          square += scaled * scaled + shift * shift;
        }
        const size_t at = static_cast<size_t>(row * cols + col);
        want[at] = sum;
        bound[at] = static_cast<double>(inner + 8) * 0x1p-24 * size;
        sigma[at] = 0x1p-24 * std::sqrt(static_cast<double>(inner) * square);
      }
    }
  }

  static std::vector<uint8_t> file_of(int32_t type, int64_t cols, int64_t inner, uint32_t seed) {
    std::mt19937 random(seed);
    return reference::random_file(type, inner, cols, random);
  }

  OpMatmulArgs args(float* out, int32_t sm_count) const {
    return {a.data(), type, b.data(), out, rows, cols, inner, sm_count};
  }

  std::vector<float> matmul(int32_t sm_count) const {
    Guarded<float> out(want.size());
    MUST(launch_op_matmul(args(out, sm_count), Stream{}));
    return out.read();
  }
};

::testing::AssertionResult agrees(const Case& c, const std::vector<float>& got, int64_t row0) {
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t at = static_cast<size_t>(row0 * c.cols) + i;
    const double error = std::fabs(static_cast<double>(got[i]) - c.want[at]);
    if (!(error <= c.bound[at]))
      return ::testing::AssertionFailure() << "type " << c.type << " (" << c.rows << ", " << c.cols << ") inner " << c.inner
                                           << ": element " << i << " is " << got[i] << ", want " << c.want[at] << ", error "
                                           << error / c.bound[at] << " of the bound";
  }
  return ::testing::AssertionSuccess();
}

void check(const Case& c) {
  const std::vector<float> large = c.matmul(kLarge), small = c.matmul(kSmall);
  EXPECT_TRUE(agrees(c, large, 0)) << "large tiles";
  EXPECT_TRUE(same_bits(large.data(), small.data(), large.size())) << "in tiles of either size";
  for (const int64_t row : {int64_t{0}, c.rows - 1}) {
    Guarded<float> out(static_cast<size_t>(c.cols));
    // A row alone, in memory of its own, because a row in the middle need not be aligned.
    const Guarded<float> x(std::vector<float>(c.x.begin() + row * c.inner, c.x.begin() + (row + 1) * c.inner));
    OpMatmulArgs args = c.args(out, kSmall);
    args.b = x.data();
    args.rows = 1;
    MUST(launch_op_matmul(args, Stream{}));
    EXPECT_TRUE(same_bits(out.read().data(), large.data() + row * c.cols, static_cast<size_t>(c.cols))) << "row " << row << " alone";
    MUST(launch_op_matvec(args, Stream{}));
    const std::vector<float> vector = out.read();
    EXPECT_TRUE(agrees(c, vector, row)) << "with a vector";
    MUST(launch_op_matvec(args, Stream{}));
    EXPECT_TRUE(same_bits(out.read().data(), vector.data(), vector.size())) << "with a vector again";
  }
}

TEST(OpMatmul, AgreesWithFloat64AroundTheEdgesOfTiles) {
  for (const int64_t inner : {1, 3, 7, 8, 9, 16, 127, 128, 513, 1029})
    for (const auto& shape : kShapes) check(Case(kF32, shape[0], shape[1], inner, static_cast<uint32_t>(inner)));
}

TEST(OpMatmul, AgreesWithFloat64OnEveryFormat) {
  for (const int32_t type : kTypes)
    for (const int64_t blocks : {1, 3, 8}) {
      check(Case(type, 33, 97, blocks * block_of(type), static_cast<uint32_t>(type + 1)));
      check(Case(type, 3, 130, blocks * block_of(type), static_cast<uint32_t>(type + 100)));
    }
}

TEST(OpMatmul, FillsTheDeviceWithLargeTiles) {
  const Case c(kF32, 1537, 1409, 37, 5);
  const std::vector<float> got = c.matmul(132);
  EXPECT_TRUE(agrees(c, got, 0));
  EXPECT_TRUE(same_bits(got.data(), c.matmul(kSmall).data(), got.size()));
}

// Operands or sums with fewer bits than f32 would spread errors much wider.
TEST(OpMatmul, SpreadsItsErrorsAsF32Does) {
  const Case c(kF32, 64, 64, 768, 6);
  for (const int32_t sm_count : {kLarge, kSmall}) {
    const std::vector<float> got = c.matmul(sm_count);
    double sum = 0;
    for (size_t i = 0; i < got.size(); ++i) sum += std::pow((static_cast<double>(got[i]) - c.want[i]) / c.sigma[i], 2);
    EXPECT_LT(std::sqrt(sum / static_cast<double>(got.size())), 1.25);
  }
}

TEST(OpMatmul, KeepsNaNToItsRow) {
  Case c(kF32, 40, 70, 50, 7);
  c.x[13 * 50 + 20] = NAN;
  c.b.write(c.x);
  const std::vector<float> got = c.matmul(kLarge);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i / 70 == 13) << i;
}

TEST(OpMatmul, RefusesWhatItDoesNotRun) {
  const Case c(kF32, 2, 4, 8, 8);
  Guarded<float> out(8);
  const OpMatmulArgs good = c.args(out, 1);
  EXPECT_EQ(launch_op_matmul(good, Stream{}), cudaSuccess);
  EXPECT_EQ(launch_op_matvec(good, Stream{}), cudaErrorInvalidValue) << "two rows";
  const auto refused = [&](auto spoil) {
    OpMatmulArgs bad = good;
    spoil(bad);
    return launch_op_matmul(bad, Stream{}) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](OpMatmulArgs& a) { a.a_type = 99; }));
  EXPECT_TRUE(refused([](OpMatmulArgs& a) { a.a_type = kQ8_0; })) << "rows that are no whole blocks";
  EXPECT_TRUE(refused([](OpMatmulArgs& a) { a.rows = -1; }));
  EXPECT_TRUE(refused([](OpMatmulArgs& a) { a.inner = 0; }));
  EXPECT_TRUE(refused([](OpMatmulArgs& a) { a.cols = 0; }));
  EXPECT_TRUE(refused([](OpMatmulArgs& a) { a.b += 1; })) << "b is not aligned";
  EXPECT_TRUE(refused([](OpMatmulArgs& a) { a.out += 1; })) << "out is not aligned";
  EXPECT_TRUE(refused([](OpMatmulArgs& a) { a.sm_count = 0; }));
  OpMatmulArgs none = good;
  none.rows = 0;
  EXPECT_EQ(launch_op_matmul(none, Stream{}), cudaSuccess) << "no rows, nothing to do";
  synchronize();
}

}  // namespace
}  // namespace mr::cuda::testing
