// What ends a branch, against float64 on odd shapes.
#include "kernel_fixture.h"
#include "kernels/branch.h"

namespace mr::cuda::testing {
namespace {

constexpr float kEps = 1e-5f, kScale = 0.5f, kThen = 1.25f;

struct Case {
  bool branch, norm, then;
};

// Rows of x after the kernel. A stride is wider than a row.
std::vector<float> ended(const std::vector<float>& x, const std::vector<float>& branch, const std::vector<float>& norm, int32_t rows,
                         int32_t dim, int32_t stride, const Case& c) {
  Guarded<float> dx(x), dbranch(branch), dnorm(norm), dthen(std::vector<float>{kThen});
  const float* const no = nullptr;
  MUST(launch_end_branch({dx.data(), c.branch ? static_cast<const float*>(dbranch) : no, stride, stride,
                          c.norm ? static_cast<const float*>(dnorm) : no, c.then ? static_cast<const float*>(dthen) : no, kEps, kScale, rows, dim},
                         Stream{}));
  return dx.read();
}

TEST(EndBranch, AgreesWithFloat64OnEveryShape) {
  Numbers numbers(1);
  for (const Case& c : {Case{true, true, true}, Case{true, true, false}, Case{true, false, true}, Case{false, false, true}})
    for (const int32_t dim : {1, 2, 31, 33, 511, 512, 513, 3840, 4096, 6144, 6145, 12288, 12289, 20000}) {
      const int32_t rows = 3, stride = dim + 4;
      const std::vector<float> x = numbers.normals(static_cast<size_t>(rows * stride)), norm = numbers.normals(static_cast<size_t>(dim));
      const std::vector<float> branch = numbers.normals(static_cast<size_t>(rows * stride), 3);
      const std::vector<float> got = ended(x, branch, norm, rows, dim, stride, c);
      for (int32_t r = 0; r < rows; ++r) {
        double square = 0;
        for (int32_t d = 0; d < dim; ++d) square += static_cast<double>(branch[static_cast<size_t>(r * stride + d)]) * branch[static_cast<size_t>(r * stride + d)];
        const double factor = 1 / std::sqrt(square / dim + static_cast<double>(kEps));
        std::vector<double> want;
        for (int32_t d = 0; d < dim; ++d) {
          const size_t at = static_cast<size_t>(r * stride + d);
          const double y = c.norm ? branch[at] * factor * norm[static_cast<size_t>(d)] : branch[at];
          want.push_back((x[at] + (c.branch ? static_cast<double>(kScale) * y : 0)) * (c.then ? static_cast<double>(kThen) : 1));
        }
        EXPECT_TRUE(near({got.begin() + r * stride, got.begin() + r * stride + dim}, want, {0x1p-18, 0x1p-20})) << "dim " << dim << " row " << r;
        for (int32_t d = dim; d < stride; ++d) EXPECT_EQ(got[static_cast<size_t>(r * stride + d)], x[static_cast<size_t>(r * stride + d)]) << "padding written";
      }
    }
}

TEST(EndBranch, GivesARowTheSameBitsAloneAndAmongOthers) {
  Numbers numbers(2);
  for (const int32_t dim : {3840, 7000}) {
    const int32_t rows = 300;  // more than few, which another kernel runs
    const std::vector<float> x = numbers.normals(static_cast<size_t>(rows * dim)), norm = numbers.normals(static_cast<size_t>(dim));
    const std::vector<float> branch = numbers.normals(static_cast<size_t>(rows * dim));
    const std::vector<float> all = ended(x, branch, norm, rows, dim, dim, {true, true, true});
    for (const int32_t r : {0, 5, 299}) {
      const auto row = [&](const std::vector<float>& of) { return std::vector<float>(of.begin() + r * dim, of.begin() + (r + 1) * dim); };
      EXPECT_EQ(ended(row(x), row(branch), norm, 1, dim, dim, {true, true, true}), row(all)) << "dim " << dim << " row " << r;
    }
  }
}

}  // namespace
}  // namespace mr::cuda::testing
