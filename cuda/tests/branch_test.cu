// What ends a branch, against float64 on odd shapes.
#include <algorithm>
#include <type_traits>

#include "kernel_fixture.h"
#include "kernels/branch.h"
#include "kernels/norm.h"

namespace mr::cuda::testing {
namespace {

constexpr float kEps = 1e-5f, kScale = 0.5f, kThen = 1.25f, kOutScale = 0.25f;

struct Case {
  bool branch, norm, then;
  bool out = false, out_norm = false;  // the norm that reads the row next, and whether it has weights
};

struct Ended {
  std::vector<float> x;
  std::vector<uint16_t> out;
};

// Rows of x and of out after the kernel. A stride is wider than a row.
template <class T>
Ended ended(const std::vector<float>& x, const std::vector<float>& branch, const std::vector<float>& norm, int32_t rows, int32_t dim,
               int32_t stride, const Case& c) {
  Guarded<float> dx(x), dbranch(branch), dnorm(norm), dthen(std::vector<float>{kThen});
  Guarded<uint16_t> out(x.size());
  const float* const weights = dnorm;
  EndBranchArgs args{};
  args.x = dx.data();
  args.branch = c.branch ? dbranch.data() : nullptr;
  args.x_stride = args.branch_stride = args.out_stride = stride;
  args.norm = c.norm ? weights : nullptr;
  args.then = c.then ? dthen.data() : nullptr;
  args.eps = kEps;
  args.scale = kScale;
  args.rows = rows;
  args.dim = dim;
  args.out = c.out ? out.data() : nullptr;
  args.out_norm = c.out_norm ? weights : nullptr;
  args.act = std::is_same<T, __half>::value ? Act::kF16 : Act::kBF16;
  args.out_scale = kOutScale;
  MUST(launch_end_branch(args, Stream{}));
  return {dx.read(), out.read()};
}

TEST(EndBranch, AgreesWithFloat64OnEveryShape) {
  Numbers numbers(1);
  for (const Case& c : {Case{true, true, true}, Case{true, true, false}, Case{true, false, true}, Case{false, false, true}})
    for (const int32_t dim : {1, 2, 31, 33, 511, 512, 513, 3840, 4096, 6144, 6145, 12288, 12289, 20000}) {
      const int32_t rows = 3, stride = dim + 4;
      const std::vector<float> x = numbers.normals(static_cast<size_t>(rows * stride)), norm = numbers.normals(static_cast<size_t>(dim));
      const std::vector<float> branch = numbers.normals(static_cast<size_t>(rows * stride), 3);
      const std::vector<float> got = ended<__half>(x, branch, norm, rows, dim, stride, c).x;
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

// Returns the rows as launch_rms_norm writes them, or only rounded if `norms` is false.
template <class T>
std::vector<uint16_t> normed(const std::vector<float>& x, const std::vector<float>& weights, int32_t rows, int32_t dim, int32_t stride,
                             bool norms) {
  const Act act = std::is_same<T, __half>::value ? Act::kF16 : Act::kBF16;
  Guarded<float> dx(x), dweights(weights);
  Guarded<uint16_t> out(x.size());
  if (norms) {
    MUST(launch_rms_norm({dx.data(), dweights.data(), nullptr, out.data(), act, rows, dim, stride, stride, kEps, kOutScale}, Stream{}));
    return out.read();
  }
  std::vector<uint16_t> rounded;
  for (const float v : x) {
    const float y = v * kOutScale;
    rounded.push_back(to_act(act, act == Act::kF16 ? std::clamp(y, -64992.0f, 64992.0f) : y));
  }
  return rounded;
}

template <class T>
void expect_next_norm() {
  Numbers numbers(3);
  for (const Case& c : {Case{true, true, true, true, true}, Case{true, false, false, true, true}, Case{false, false, true, true, true},
                        Case{true, true, false, true, false}})
    for (const int32_t dim : {1, 3, 33, 514, 3840, 4097, 5376, 8192, 8196, 20001}) {
      const int32_t rows = dim == 514 ? 300 : 3, stride = dim + 4;  // more than few, whose rows are read again
      const std::vector<float> x = numbers.normals(static_cast<size_t>(rows * stride)), norm = numbers.normals(static_cast<size_t>(dim));
      std::vector<float> large = x;
      large[0] = 3e6f;  // saturated if it is converted
      const Ended got = ended<T>(large, numbers.normals(static_cast<size_t>(rows * stride)), norm, rows, dim, stride, c);
      const std::vector<uint16_t> want = normed<T>(got.x, norm, rows, dim, stride, c.out_norm);
      int32_t wrong = 0;
      for (int32_t r = 0; r < rows; ++r)
        for (int32_t d = 0; d < dim; ++d) {
          const size_t at = static_cast<size_t>(r * stride + d);
          if (got.out[at] != want[at]) ++wrong;
        }
      EXPECT_EQ(wrong, 0) << "dim " << dim;
    }
}

TEST(EndBranch, AppliesTheNextNormWithItsOwnBitsInF16) { expect_next_norm<__half>(); }
TEST(EndBranch, AppliesTheNextNormWithItsOwnBitsInBF16) { expect_next_norm<__nv_bfloat16>(); }

TEST(EndBranch, GivesARowTheSameBitsAloneAndAmongOthers) {
  Numbers numbers(2);
  for (const int32_t dim : {3840, 7000, 9000}) {
    const int32_t rows = 300;  // more than few, which another kernel runs
    const std::vector<float> x = numbers.normals(static_cast<size_t>(rows * dim)), norm = numbers.normals(static_cast<size_t>(dim));
    const std::vector<float> branch = numbers.normals(static_cast<size_t>(rows * dim));
    const std::vector<float> all = ended<__half>(x, branch, norm, rows, dim, dim, {true, true, true}).x;
    for (const int32_t r : {0, 5, 299}) {
      const auto row = [&](const std::vector<float>& of) { return std::vector<float>(of.begin() + r * dim, of.begin() + (r + 1) * dim); };
      EXPECT_EQ(ended<__half>(row(x), row(branch), norm, 1, dim, dim, {true, true, true}).x, row(all)) << "dim " << dim << " row " << r;
    }
  }
}

}  // namespace
}  // namespace mr::cuda::testing
