// The GEMV kernels on the emulated device: every form of every type against float64, and all forms with the same bits.
#include "kernels/gemm/gemv_async.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "cpu/cpptest/reference.h"
#include "kernels/gemm/repack.h"

namespace mr::cuda {
namespace {

struct alignas(256) Line {
  uint8_t bytes[256];
};

constexpr int32_t kTokens = 3;

// A weight with its packed bytes and its values.
struct Matrix {
  int32_t type, rows, cols;
  std::vector<Line> memory;
  std::vector<reference::Weight> values;  // (rows, cols)

  Matrix(int32_t type, int32_t rows, int32_t cols, std::mt19937& random)
      : type(type), rows(rows), cols(cols), memory((weight_packed_bytes(type, rows, cols) + 255) / 256),
        values(static_cast<size_t>(rows) * static_cast<size_t>(cols)) {
    std::vector<uint8_t> file(weight_file_bytes(type, rows, cols));
    for (uint8_t& b : file) b = static_cast<uint8_t>(random());
    const reference::Shape s = reference::shape(type);
    std::normal_distribution<float> normal(0, s.block == 256 ? 4e-4f : 1e-2f);
    for (size_t at = 0; at < file.size(); at += static_cast<size_t>(s.bytes)) {
      for (int i = 0; i < s.half_count; ++i) reference::put_half(file.data() + at + s.halves[i], __float2half_rn(normal(random)).bits);
      if (!s.float_type) continue;
      const float v = normal(random);
      if (type == kF32) memcpy(file.data() + at, &v, 4);
      else reference::put_half(file.data() + at, type == kF16 ? __float2half_rn(v).bits : __float2bfloat16_rn(v).bits);
    }
    EXPECT_EQ(launch_repack(file.data(), {type, rows, cols, memory.data()->bytes}, Stream{}), cudaSuccess);
    const size_t row_bytes = file.size() / static_cast<size_t>(rows);
    for (int32_t r = 0; r < rows; ++r)
      reference::decode_parts(type, file.data() + static_cast<size_t>(r) * row_bytes, cols, values.data() + int64_t{r} * cols);
  }
};

// Runs a form over two matrices, which are a pair, or one after another; returns (matrices, tokens, rows) sums, of a pair f16.
template <int32_t T, class Out>
std::vector<Out> run(GemvForm form, bool pair, const Matrix (&matrices)[2], const std::vector<__half>& x, int32_t tokens) {
  const GemvKernel kernel = gemv_kernel_for<T, __half>(form);
  const WeightFormat format = weight_format(matrices[0].type);
  const int32_t rows = matrices[0].rows, cols = matrices[0].cols, panels = (rows + kPanelRows - 1) / kPanelRows;
  std::vector<Out> out(static_cast<size_t>((pair ? 1 : 2) * tokens * rows));
  GemvParams p{};
  p.count = 2;
  p.pair = pair;
  p.epilogue = pair ? Epilogue::kSwiGLU : Epilogue::kStoreF32;
  p.groups = (cols + kUnitCols * format.units - 1) / (kUnitCols * format.units);
  p.panel_bytes = int64_t{p.groups} * format.group_bytes();
  int32_t tiles = 0;
  for (int32_t i = 0; i < 2; ++i) {
    Out* const to = out.data() + (pair ? 0 : i * tokens * rows);
    p.targets[i] = {matrices[i].memory.data()->bytes, nullptr, to, rows, rows, panels, tiles, i};
    const int32_t each = pair ? 1 : kernel.panels;
    if (!pair || i == 0) tiles += (panels + each - 1) / each;
  }
  p.x = x.data();
  p.x_stride = cols;
  p.tokens = tokens;
  p.cols = cols;
  p.token_tiles = (tokens + kernel.tokens - 1) / kernel.tokens;
  p.x_scale = p.pair_share = 1;
  p.items = tiles * p.token_tiles;
  p.item_stride = std::min(p.items, 2);
  p.item_bytes = int64_t{p.item_stride} * (pair ? 1 : kernel.panels) * p.panel_bytes;
  const auto function = reinterpret_cast<void (*)(GemvParams)>(const_cast<void*>(kernel.function));
  EXPECT_EQ(emulated::run_grid(dim3(static_cast<unsigned>(p.item_stride)), dim3(static_cast<unsigned>(kernel.threads)), [&] { function(p); }),
            cudaSuccess);
  return out;
}

template <int32_t T>
void expect_sums(int32_t type, int32_t rows, int32_t cols) {
  SCOPED_TRACE(testing::Message() << "type " << type << ", " << rows << " x " << cols);
  std::mt19937 random(static_cast<uint32_t>(type * 7 + cols));
  const Matrix matrices[2] = {{type, rows, cols, random}, {type, rows, cols, random}};
  std::normal_distribution<float> normal(0, 1);
  std::vector<__half> x(static_cast<size_t>(kTokens) * static_cast<size_t>(cols));
  for (__half& v : x) v = __float2half_rn(normal(random));
  const std::vector<float> want = run<T, float>(GemvForm::kSingle1, false, matrices, x, kTokens);
  // The sums' steps, and the rounding of weights and of f32 weights' terms.
  const double relative = (cols / 128 + 16) * 0x1p-22 + (T == kF32 ? 0x1p-16 : quantised(type) && !kFolds<T> ? 0x1p-11 : 0);
  for (int32_t i = 0; i < 2; ++i) {
    for (int32_t t = 0; t < kTokens; ++t) {
      for (int32_t r = 0; r < rows; ++r) {
        double sum = 0, size = 0;
        for (int32_t k = 0; k < cols; ++k) {
          const reference::Weight& w = matrices[i].values[static_cast<size_t>(r * cols + k)];
          const double v = static_cast<double>(__half2float(x[static_cast<size_t>(t * cols + k)]));
          sum += (w.scaled + w.shift) * v;
          size += (std::fabs(w.scaled) + std::fabs(w.shift)) * std::fabs(v);
        }
        ASSERT_NEAR(static_cast<double>(want[static_cast<size_t>((i * kTokens + t) * rows + r)]), sum, relative * size + 1e-30)
            << "matrix " << i << " token " << t << " row " << r;
      }
    }
  }
  std::vector<uint16_t> pairs;
  for (int32_t form = 0; form < kGemvForms; ++form) {
    const GemvForm f = static_cast<GemvForm>(form);
    const bool registers = f == GemvForm::kRegistersSingle8 || f == GemvForm::kRegistersPair8;
    const bool either = f == GemvForm::kPair1 || f == GemvForm::kDouble1;  // takes a pair, or two panels of one weight
    const bool pair = f == GemvForm::kPair8 || f == GemvForm::kRegistersPair8;
    if (gemv_kernel_for<T, __half>(f).function == nullptr) continue;
    if (registers && cols > kRegisterGroups * kSlices * 256) continue;
    SCOPED_TRACE(testing::Message() << "form " << form);
    if (!pair) {
      ASSERT_EQ((run<T, float>(f, false, matrices, x, kTokens)), want);
      if (!either) continue;
    }
    const std::vector<uint16_t> got = run<T, uint16_t>(f, true, matrices, x, kTokens);
    if (pairs.empty()) {
      pairs = got;
      for (int32_t i = 0; i < kTokens * rows; ++i) {
        const float gate = want[static_cast<size_t>(i)], up = want[static_cast<size_t>(kTokens * rows + i)];
        const float y = gate / (1.0f + expf(-gate)) * up;
        ASSERT_EQ(got[static_cast<size_t>(i)], __float2half_rn(y).bits) << i;
      }
    }
    ASSERT_EQ(got, pairs);
  }
}

class EmulatedGemv : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Types, EmulatedGemv, testing::Values(kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ2_K, kQ4_K, kQ5_K, kQ6_K,
                                                              kIQ4_NL, kQ3_K, kIQ2_XS));

template <int32_t i = 0>
void expect_sums_as(int32_t type, int32_t rows, int32_t cols) {
  if constexpr (i < kWeightTypeCount) {
    constexpr int32_t T = kWeightFormats[i].type;
    if (T == type) return expect_sums<kernel_type(T)>(type, rows, cols);
    expect_sums_as<i + 1>(type, rows, cols);
  }
}

// Slices without columns, of one group, and of several.
TEST_P(EmulatedGemv, GivesTheSumsInEveryForm) {
  for (const int32_t cols : {256, 2304, 4352}) expect_sums_as(GetParam(), cols == 256 ? 50 : 20, cols);
}

}  // namespace
}  // namespace mr::cuda
