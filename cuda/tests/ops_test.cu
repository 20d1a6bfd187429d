// The plain operations against float64 on odd shapes.
#include <cmath>
#include <cstring>

#include "kernel_fixture.h"
#include "kernels/ops/ops.h"
#include "kernels/rows.h"

namespace mr::cuda::testing {
namespace {

TEST(Ops, Softmax) {
  Numbers n(31);
  for (const int64_t cols : {1, 2, 31, 255, 256, 257, 5000}) {
    std::vector<float> x = n.normals(static_cast<size_t>(4 * cols), 5);
    for (int64_t i = 0; i < cols; ++i) x[static_cast<size_t>(cols + i)] = -INFINITY;
    x[static_cast<size_t>(2 * cols)] = NAN;
    Guarded<float> a(x), out(x.size());
    MUST(launch_op_softmax(a, 4, cols, out, Stream{}));
    const std::vector<float> got = out.read();
    for (int64_t r = 0; r < 4; ++r) {
      double sum = 0;
      std::vector<double> want(static_cast<size_t>(cols), 0.0);
      for (int64_t i = 0; i < cols; ++i) sum += std::exp(static_cast<double>(x[static_cast<size_t>(r * cols + i)]));
      for (int64_t i = 0; i < cols && sum > 0; ++i) want[static_cast<size_t>(i)] = std::exp(static_cast<double>(x[static_cast<size_t>(r * cols + i)])) / sum;
      const std::vector<float> row(got.begin() + r * cols, got.begin() + (r + 1) * cols);
      if (r == 2) {
        for (const float v : row) EXPECT_TRUE(std::isnan(v));
      } else {
        EXPECT_TRUE(near(row, want, {1e-9, 4e-6})) << cols << " row " << r;
      }
    }
    MUST(launch_op_softmax(a, 4, cols, a, Stream{}));
    EXPECT_TRUE(same_bits(a.read().data(), got.data(), got.size())) << "in place";
  }
}

TEST(Ops, RmsNormTakesTheWeightsOfItsBatch) {
  Numbers n(32);
  for (const int64_t cols : {1, 33, 256, 1000}) {
    const std::vector<float> x = n.normals(static_cast<size_t>(6 * cols)), w = n.normals(static_cast<size_t>(2 * cols));
    Guarded<float> a(x), b(w), out(x.size());
    MUST(launch_op_rms_norm(a, b, 1e-5f, 6, 3, cols, out, Stream{}));
    std::vector<double> want(x.size());
    for (int64_t r = 0; r < 6; ++r) {
      double square = 0;
      for (int64_t i = 0; i < cols; ++i) square += std::pow(static_cast<double>(x[static_cast<size_t>(r * cols + i)]), 2);
      for (int64_t i = 0; i < cols; ++i)
        want[static_cast<size_t>(r * cols + i)] = x[static_cast<size_t>(r * cols + i)] / std::sqrt(square / static_cast<double>(cols) + 1e-5) *
                                                  w[static_cast<size_t>(r / 3 * cols + i)];
    }
    EXPECT_TRUE(near(out.read(), want, {1e-9, 3e-6})) << cols;
  }
}

TEST(Ops, Elementwise) {
  Numbers n(33);
  for (const size_t count : {size_t{1}, size_t{2}, size_t{3}, size_t{255}, size_t{256}, size_t{100003}}) {
    const std::vector<float> x = n.normals(count, 4), y = n.normals(count);
    Guarded<float> a(x), b(y), out(count);
    // Operands that are not 16-byte aligned.
    Guarded<float> odd_a(count + 1), odd_out(count + 1);
    MUST(cudaMemcpy(odd_a + 1, x.data(), count * sizeof(float), cudaMemcpyHostToDevice));
    for (const int32_t op : {MR_OP_ADD, MR_OP_MUL, MR_OP_SCALE, MR_OP_SILU, MR_OP_SWIGLU, MR_OP_COPY}) {
      MUST(launch_op_elementwise(op, a, b, 0.75f, static_cast<int64_t>(count), out, Stream{}));
      const std::vector<float> got = out.read();
      MUST(launch_op_elementwise(op, odd_a + 1, b, 0.75f, static_cast<int64_t>(count), odd_out + 1, Stream{}));
      const std::vector<float> odd = odd_out.read();
      EXPECT_EQ(std::memcmp(got.data(), odd.data() + 1, count * sizeof(float)), 0) << "op " << op << " count " << count;
      EXPECT_TRUE(std::isnan(odd[0])) << "written before its beginning";
      std::vector<double> want(count);
      for (size_t i = 0; i < count; ++i) {
        const double p = x[i], q = y[i], silu = p / (1 + std::exp(-p));
        want[i] = op == MR_OP_ADD ? p + q : op == MR_OP_MUL ? p * q : op == MR_OP_SCALE ? p * 0.75 : op == MR_OP_SILU ? silu
                : op == MR_OP_SWIGLU ? silu * q : p;
      }
      EXPECT_TRUE(near(got, want, {1e-30, 1e-6})) << "op " << op << " count " << count;
    }
  }
  EXPECT_EQ(launch_op_elementwise(MR_OP_SOFTMAX, nullptr, nullptr, 1, 1, nullptr, Stream{}), cudaErrorInvalidValue);
}

TEST(Ops, Rope) {
  Numbers n(34);
  for (const int32_t style : {MR_ROPE_NORM, MR_ROPE_NEOX})
    for (const int32_t dims : {2, 6, 64, 128}) {
      const int64_t batch = 2, rows = 5;
      const int32_t heads = 3, first = 1000;
      std::vector<double> frequency(static_cast<size_t>(dims / 2));
      rope_frequencies(dims, 10000, 1, nullptr, frequency.data());
      const std::vector<float> x = n.normals(static_cast<size_t>(batch * rows * heads * dims));
      Guarded<float> a(x);
      Guarded<double> df(frequency);
      MUST(launch_op_rope(a, df, style, batch, rows, heads, dims, first, a, Stream{}));
      std::vector<double> want(x.begin(), x.end());
      for (int64_t r = 0; r < batch * rows; ++r)
        for (int32_t h = 0; h < heads; ++h)
          for (int32_t i = 0; i < dims / 2; ++i) {
            const size_t base = static_cast<size_t>((r * heads + h) * dims);
            const size_t p = base + static_cast<size_t>(style == MR_ROPE_NEOX ? i : 2 * i);
            const size_t q = base + static_cast<size_t>(style == MR_ROPE_NEOX ? i + dims / 2 : 2 * i + 1);
            const double angle = static_cast<double>(first + r % rows) * std::pow(10000.0, -2.0 * i / dims);
            want[p] = x[p] * std::cos(angle) - x[q] * std::sin(angle);
            want[q] = x[p] * std::sin(angle) + x[q] * std::cos(angle);
          }
      EXPECT_TRUE(near(a.read(), want, {2e-6, 2e-6})) << style << " " << dims;
    }
}

TEST(Ops, Attention) {
  Numbers n(35);
  struct Shape { int64_t batch, rows, inner; int32_t heads, kv_heads, cols; };
  for (const Shape& s : {Shape{1, 1, 1, 1, 1, 1}, Shape{2, 3, 7, 4, 2, 33}, Shape{1, 2, 257, 6, 3, 64}, Shape{1, 1, 1000, 2, 1, 300}, Shape{1, 5, 5, 2, 2, 20}}) {
    const size_t width = static_cast<size_t>(s.heads * s.cols), kv_width = static_cast<size_t>(s.kv_heads * s.cols);
    const std::vector<float> q = n.normals(static_cast<size_t>(s.batch * s.rows) * width), k = n.normals(static_cast<size_t>(s.batch * s.inner) * kv_width),
                             v = n.normals(k.size());
    Guarded<float> dq(q), dk(k), dv(v), out(q.size());
    const float scale = 0.3f;
    MUST(launch_op_attention({dq, dk, dv, out, s.batch, s.rows, s.inner, s.heads, s.kv_heads, s.cols, scale}, Stream{}));
    std::vector<double> want(q.size(), 0.0);
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t r = 0; r < s.rows; ++r)
        for (int32_t h = 0; h < s.heads; ++h) {
          const size_t at = static_cast<size_t>(b * s.rows + r) * width + static_cast<size_t>(h * s.cols);
          const size_t kv = static_cast<size_t>(b * s.inner) * kv_width + static_cast<size_t>(h / (s.heads / s.kv_heads) * s.cols);
          const int64_t visible = s.inner - s.rows + r + 1;
          std::vector<double> weight(static_cast<size_t>(visible));
          double top = -INFINITY, sum = 0;
          for (int64_t t = 0; t < visible; ++t) {
            double dot = 0;
            for (int32_t d = 0; d < s.cols; ++d) dot += static_cast<double>(q[at + static_cast<size_t>(d)]) * k[kv + static_cast<size_t>(t) * kv_width + static_cast<size_t>(d)];
            weight[static_cast<size_t>(t)] = dot * static_cast<double>(scale);
            top = std::max(top, weight[static_cast<size_t>(t)]);
          }
          for (double& w : weight) sum += w = std::exp(w - top);
          for (int64_t t = 0; t < visible; ++t)
            for (int32_t d = 0; d < s.cols; ++d)
              want[at + static_cast<size_t>(d)] += weight[static_cast<size_t>(t)] / sum * v[kv + static_cast<size_t>(t) * kv_width + static_cast<size_t>(d)];
        }
    // Scores are of size 10, sums of up to 300 products, so exp sees errors of 1e-6 and more.
    EXPECT_TRUE(near(out.read(), want, {2e-5, 2e-5})) << s.inner << " " << s.cols;
  }
}

}  // namespace
}  // namespace mr::cuda::testing
