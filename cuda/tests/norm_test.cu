// RMS norm, residual additions, SwiGLU and conversions against float64 on odd shapes.
#include "kernel_fixture.h"
#include "kernels/elementwise.h"
#include "kernels/gemm/input_sums.h"
#include "kernels/norm.h"
#include "millrace/engine.h"

namespace mr::cuda::testing {
namespace {

const Act kActs[] = {Act::kF16, Act::kBF16};

TEST(Comparison, RefusesNaN) {
  EXPECT_FALSE(near({NAN}, {0.0}, {1e9, 1e9}));
  EXPECT_FALSE(near({0}, {static_cast<double>(NAN)}, {1e9, 1e9}));
  EXPECT_FALSE(near({INFINITY}, {1.0}, {1, 1}));
  EXPECT_TRUE(near({1}, {1.0}, {0, 0}));
}

TEST(RmsNorm, AgreesWithFloat64OnEveryShape) {
  Numbers numbers(1);
  for (const Act act : kActs)
    for (const int32_t dim : {1, 2, 3, 4, 31, 64, 127, 128, 129, 511, 512, 513, 1023, 2048, 4096, 4100, 16384, 16385, 20000})
      for (const int32_t pad : {0, 1, 4}) {
        const int32_t rows = 3, stride = dim + pad;
        std::vector<float> x = numbers.normals(static_cast<size_t>(5 * stride), 3), weight = numbers.normals(static_cast<size_t>(dim));
        x[0] *= 100;
        const std::vector<int32_t> gather = {4, -1, 0};
        Guarded<float> dx(x), dweight(weight);
        Guarded<int32_t> dgather(gather);
        Guarded<uint16_t> out(static_cast<size_t>(rows * stride));
        MUST(launch_rms_norm({dx, dweight, dgather, out.data(), act, rows, dim, stride, stride, 1e-5f}, Stream{}));
        const std::vector<float> got = from_acts(act, out.read());
        for (int32_t r = 0; r < rows; ++r) {
          std::vector<double> want(static_cast<size_t>(dim), 0.0);
          const float* row = x.data() + gather[static_cast<size_t>(r)] * stride;
          double square = 0;
          if (gather[static_cast<size_t>(r)] >= 0)
            for (int32_t d = 0; d < dim; ++d) square += static_cast<double>(row[d]) * row[d];
          for (int32_t d = 0; d < dim && gather[static_cast<size_t>(r)] >= 0; ++d)
            want[static_cast<size_t>(d)] = row[d] / std::sqrt(square / dim + static_cast<double>(1e-5f)) * weight[static_cast<size_t>(d)];
          const std::vector<float> mine(got.begin() + r * stride, got.begin() + r * stride + dim);
          EXPECT_TRUE(near(mine, want, {half_least(act), half_step(act) + 0x1p-20})) << name(act) << " dim " << dim << " row " << r;
          for (int32_t d = dim; d < stride && r < rows; ++d) EXPECT_TRUE(std::isnan(got[static_cast<size_t>(r * stride + d)])) << "padding written";
        }
      }
}

TEST(RmsNorm, GivesARowTheSameBitsAloneAndAmongOthers) {
  Numbers numbers(2);
  const int32_t dim = 4096, rows = 77;
  const std::vector<float> x = numbers.normals(static_cast<size_t>(rows * dim)), weight = numbers.normals(dim);
  Guarded<float> dx(x), dweight(weight);
  Guarded<uint16_t> all(static_cast<size_t>(rows * dim)), one(dim);
  MUST(launch_rms_norm({dx, dweight, nullptr, all.data(), Act::kBF16, rows, dim, dim, dim, 1e-6f}, Stream{}));
  const std::vector<uint16_t> batch = all.read();
  for (const int32_t r : {0, 41, 76}) {
    MUST(launch_rms_norm({dx + r * dim, dweight, nullptr, one.data(), Act::kBF16, 1, dim, dim, dim, 1e-6f}, Stream{}));
    EXPECT_TRUE(same_bits(one.read().data(), batch.data() + r * dim, dim));
  }
}

// Blocks of 256 that fill a warp's eight or not, for one warp and for several.
TEST(RmsNorm, WritesTheInputSumsOfItsRows) {
  Numbers numbers(3);
  for (const int32_t dim : {256, 512, 2048, 2304, 4352, 16640}) {
    const int32_t rows = 3, stride = dim + 8;
    const std::vector<float> x = numbers.normals(static_cast<size_t>(rows * stride)), weight = numbers.normals(static_cast<size_t>(dim));
    const size_t words = static_cast<size_t>(input_sum_bytes(rows, dim) / 2);
    Guarded<float> dx(x), dweight(weight);
    Guarded<uint16_t> plain(static_cast<size_t>(rows * stride)), out(static_cast<size_t>(rows * stride)), want(words), sums(words);
    RmsNormArgs args{dx, dweight, nullptr, plain.data(), Act::kF16, rows, dim, stride, stride, 1e-5f};
    MUST(launch_rms_norm(args, Stream{}));
    MUST(launch_input_sums({plain.data(), stride, rows, dim, want.data()}, Stream{}));
    args.out = out.data();
    args.input_sums = sums.data();
    MUST(launch_rms_norm(args, Stream{}));
    for (int64_t r = 0; r < rows; ++r) EXPECT_TRUE(same_bits(out.read().data() + r * stride, plain.read().data() + r * stride, dim)) << dim;
    EXPECT_TRUE(same_bits(sums.read().data(), want.read().data(), words)) << dim;
  }
  const std::vector<float> ones(256, 1.0f);
  Guarded<float> x(ones), weight(ones);
  Guarded<int32_t> gather(std::vector<int32_t>{0});
  Guarded<uint16_t> out(256), sums(static_cast<size_t>(input_sum_bytes(1, 256) / 2));
  RmsNormArgs args{x, weight, nullptr, out.data(), Act::kBF16, 1, 256, 256, 256, 1e-5f, 1, sums.data()};
  EXPECT_EQ(launch_rms_norm(args, Stream{}), cudaErrorInvalidValue);
  args.act = Act::kF16;
  args.gather = gather;
  EXPECT_EQ(launch_rms_norm(args, Stream{}), cudaErrorInvalidValue);
}

TEST(RmsNorm, KeepsNaNToItsRow) {
  std::vector<float> x(300, 1.0f);
  x[120] = NAN;
  Guarded<float> dx(x), weight(std::vector<float>(100, 1.0f));
  Guarded<uint16_t> out(300);
  MUST(launch_rms_norm({dx, weight, nullptr, out.data(), Act::kF16, 3, 100, 100, 100, 1e-6f}, Stream{}));
  const std::vector<float> y = from_acts(Act::kF16, out.read());
  for (size_t i = 0; i < 300; ++i) EXPECT_EQ(std::isnan(y[i]), i >= 100 && i < 200) << i;
}

TEST(HiddenRows, AgreeWithFloat64OnEveryShape) {
  Numbers numbers(6);
  const std::vector<int32_t> gather = {4, 2, 0, 4}, flags = {MR_ROW_OK, MR_ROW_NAN, MR_ROW_EMPTY, MR_ROW_NAN, MR_ROW_OK};
  Guarded<int32_t> dgather(gather), dflags(flags);
  for (const int32_t dim : {1, 2, 3, 4, 31, 64, 127, 128, 129, 511, 512, 513, 1023, 2048, 4096, 4100, 16384, 16385, 20000})
    for (const int32_t pad : {0, 1, 4}) {
      const int32_t rows = 4, stride = dim + pad;
      std::vector<float> x = numbers.normals(static_cast<size_t>(5 * stride), 3), weight = numbers.normals(static_cast<size_t>(dim));
      x[0] *= 100;
      Guarded<float> dx(x), dweight(weight), out(static_cast<size_t>(rows * dim));
      MUST(launch_hidden_rows({dx, dweight, dgather, dflags, out.data(), rows, dim, stride, 1e-5f}, Stream{}));
      const std::vector<float> got = out.read();
      for (int32_t r = 0; r < rows; ++r) {
        const int32_t source = gather[static_cast<size_t>(r)];
        const float* const row = x.data() + source * stride;
        const std::vector<float> mine(got.begin() + r * dim, got.begin() + (r + 1) * dim);
        if (flags[static_cast<size_t>(source)] != MR_ROW_OK) {
          for (const float v : mine) ASSERT_TRUE(std::isnan(v)) << "dim " << dim << " row " << r;
          continue;
        }
        std::vector<double> want(static_cast<size_t>(dim));
        double square = 0;
        for (int32_t d = 0; d < dim; ++d) square += static_cast<double>(row[d]) * row[d];
        for (int32_t d = 0; d < dim; ++d)
          want[static_cast<size_t>(d)] = row[d] / std::sqrt(square / dim + static_cast<double>(1e-5f)) * weight[static_cast<size_t>(d)];
        EXPECT_TRUE(near(mine, want, {0, 0x1p-20})) << "dim " << dim << " row " << r;
      }
      EXPECT_TRUE(same_bits(got.data(), got.data() + 3 * dim, dim)) << "a row asked for twice, dim " << dim;
    }
}

TEST(Elementwise, GatesBySilu) {
  Numbers numbers(4);
  for (const int32_t dim : {1, 7, 8, 100, 1024})
    for (const Act act : kActs) {
      const int32_t rows = 3;
      const std::vector<float> gate = numbers.normals(static_cast<size_t>(rows * dim), 8), up = numbers.normals(static_cast<size_t>(rows * dim));
      Guarded<float> dgate(gate), dup(up);
      Guarded<uint16_t> out(static_cast<size_t>(rows * dim));
      MUST(launch_swiglu({dgate.data(), dup.data(), act, out.data(), rows, dim, dim, dim, dim}, Stream{}));
      std::vector<double> want(gate.size());
      for (size_t i = 0; i < want.size(); ++i) want[i] = gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i];
      EXPECT_TRUE(near(from_acts(act, out.read()), want, {half_least(act), half_step(act) + 1e-6})) << name(act) << dim;
    }
}

// Gates of up to 7, ups of -7 to 7.
TEST(Elementwise, ClampsTheGateAndTheUp) {
  Numbers numbers(31);
  const int32_t rows = 3, dim = 70;
  const std::vector<float> gate = numbers.normals(rows * dim, 8), up = numbers.normals(rows * dim, 8);
  Guarded<float> dgate(gate), dup(up);
  Guarded<uint16_t> out(static_cast<size_t>(rows * dim));
  MUST(launch_swiglu({dgate.data(), dup.data(), Act::kF16, out.data(), rows, dim, dim, dim, dim, 0.5f, MR_ACT_CLAMPED}, Stream{}));
  std::vector<double> want(gate.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const double y = std::min(static_cast<double>(gate[i]), 7.0), u = std::max(-7.0, std::min(static_cast<double>(up[i]), 7.0));
    want[i] = y / (1 + std::exp(-1.702 * y)) * (1 + u) / 2;
  }
  EXPECT_TRUE(near(from_acts(Act::kF16, out.read()), want, {half_least(Act::kF16) + 1e-7, half_step(Act::kF16) + 1e-6}));
}

TEST(Elementwise, RoundsToTheActivationType) {
  Numbers numbers(5);
  const std::vector<float> x = numbers.normals(1001, 50);
  Guarded<float> dx(x);
  for (const Act act : kActs) {
    Guarded<uint16_t> out(x.size());
    MUST(launch_to_act({dx, out.data(), act, static_cast<int64_t>(x.size())}, Stream{}));
    EXPECT_TRUE(same_bits(out.read().data(), to_acts(act, x).data(), x.size()));
  }
}

TEST(Elementwise, ScalesAndSaturatesWhatItRounds) {
  const std::vector<float> x = {3, -7e4f, 5e6f, -5e6f, INFINITY, -INFINITY, 0x1p-20f};
  Guarded<float> dx(x);
  Guarded<uint16_t> out(x.size());
  MUST(launch_to_act({dx, out.data(), Act::kF16, static_cast<int64_t>(x.size()), 1 / 64.0f, true}, Stream{}));
  const std::vector<float> got = from_acts(Act::kF16, out.read());
  const std::vector<float> want = {3 / 64.0f, -1094, 64992, -64992, INFINITY, -INFINITY, 0};  // -7e4 / 64 = -1093.75
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << i;
  MUST(launch_to_act({dx, out.data(), Act::kF16, static_cast<int64_t>(x.size())}, Stream{}));
  EXPECT_EQ(from_acts(Act::kF16, out.read())[2], INFINITY);
}

// A power of two leaves every bit but those that f16 has no room for.
TEST(RmsNorm, IsScaledByAPowerOfTwo) {
  Numbers numbers(6);
  const int32_t dim = 512;
  const std::vector<float> x = numbers.normals(dim), weight = numbers.normals(dim, 3000);
  Guarded<float> dx(x), dweight(weight);
  Guarded<uint16_t> whole(dim), part(dim);
  MUST(launch_rms_norm({dx, dweight, nullptr, whole.data(), Act::kF16, 1, dim, dim, dim, 1e-6f}, Stream{}));
  MUST(launch_rms_norm({dx, dweight, nullptr, part.data(), Act::kF16, 1, dim, dim, dim, 1e-6f, 0.25f}, Stream{}));
  const std::vector<float> got = from_acts(Act::kF16, part.read()), want = from_acts(Act::kF16, whole.read());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(4 * got[i], want[i]) << i;
}

}  // namespace
}  // namespace mr::cuda::testing
