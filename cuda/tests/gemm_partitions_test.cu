// The K partitions that the prefill class adds to the residual stream are added in the order that gemm.h specifies,
// launch after launch on the same semaphores.
#include "kernels/gemm/prefill_wgmma.h"
#include "tests/gemm_fixture.h"

namespace mr::cuda {
namespace {

class GemmPartitions : public testing::TestWithParam<int32_t> {
 protected:
  static void SetUpTestSuite() { ASSERT_EQ(prepare_gemms(), cudaSuccess); }

  void SetUp() override {
    ASSERT_EQ(cudaGetDevice(&device_), cudaSuccess);
    if (!wgmma_available(device_)) GTEST_SKIP() << "no wgmma here: GPUs of compute capability 9.0 have it";
  }

  // Returns the GEMM that adds x * W^T to `out`; both have rows of a multiple of eight elements.
  GemmArgs adding(const PackedWeight& weight, const void* x, int64_t x_stride, int32_t tokens, Guarded& out, int64_t out_stride) {
    GemmArgs a;
    a.targets[0] = {weight, nullptr, out.data(), out_stride};
    a.count = 1;
    a.epilogue = Epilogue::kAddF32;
    a.kind = GemmClass::kPrefill;
    a.x = x;
    a.x_stride = x_stride;
    a.act = act_;
    a.tokens = tokens;
    a.semaphores = semaphores_.as<uint32_t>();
    return a;
  }
  void expect_zero_semaphores() { ASSERT_EQ(semaphores_.read<uint32_t>(), std::vector<uint32_t>(kGemmSemaphores)); }

  const Act act_ = acts_of(GetParam())[0];
  std::mt19937 random_{12};
  int device_ = 0;
  Guarded semaphores_{kGemmSemaphores * sizeof(uint32_t), 0};
};

// Returns columns [first, last) of a file's rows.
std::vector<uint8_t> columns_of(int32_t type, const std::vector<uint8_t>& file, int64_t rows, int64_t first, int64_t last) {
  const reference::Shape s = reference::shape(type);
  const int64_t row_bytes = static_cast<int64_t>(file.size()) / rows;
  std::vector<uint8_t> out;
  for (int64_t row = 0; row < rows; ++row) {
    const auto at = file.begin() + row * row_bytes;
    out.insert(out.end(), at + first / s.block * s.bytes, at + last / s.block * s.bytes);
  }
  return out;
}

// Distinct numbers of about 1.
std::vector<float> numbers(int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(i * 2654435761 % 4093) * 0x1p-11f;
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, GemmPartitions, testing::Values(kF32, kF16, kBF16, kQ8_0, kQ4_K, kQ6_K, kQ2_K, kIQ3_S),
                         [](const testing::TestParamInfo<int32_t>& info) {
                           std::string name;
                           for (const TypeName& t : kTypeNames)
                             if (t.type == info.param) name = t.name;
                           return name;
                         });

// One GEMM gives the bits of one GEMM for each partition, run one after another, with the bias in the first.
TEST_P(GemmPartitions, AreAddedOneAfterAnother) {
  const int64_t short_by = reference::shape(GetParam()).block == 256 ? 0 : 32;
  for (const int64_t cols : {8192 - short_by, 8448 - short_by, 14336 - short_by, 16640 - short_by}) {
    for (const int64_t rows : {200, 67}) {
      const std::vector<uint8_t> file = ordinary_file(GetParam(), rows, cols, random_);
      const Packed whole(GetParam(), rows, cols, file);
      const int64_t groups = (cols + 255) / 256, count = (groups + 31) / 32;
      std::vector<std::unique_ptr<Packed>> parts;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t first = groups * i / count * 256, last = std::min(groups * (i + 1) / count * 256, cols);
        parts.push_back(std::make_unique<Packed>(GetParam(), rows, last - first, columns_of(GetParam(), file, rows, first, last)));
      }
      const Guarded bias(numbers(rows));
      for (const int32_t tokens : {1, 70, 1100}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", " << tokens << " tokens");
        const Guarded x(random_inputs(act_, tokens, cols, cols, random_).bits);
        Guarded out(numbers(rows * tokens)), want(numbers(rows * tokens));
        GemmArgs a = adding(whole.weight, x.data(), cols, tokens, out, rows);
        a.targets[0].bias = bias.as<float>();
        a.x_scale = 4;
        ASSERT_EQ(launch_gemm(a, Stream{}), cudaSuccess);
        for (int64_t i = 0; i < count; ++i) {
          const void* const from = x.as<uint16_t>() + groups * i / count * 256;
          GemmArgs b = adding(parts[static_cast<size_t>(i)]->weight, from, cols, tokens, want, rows);
          b.targets[0].bias = i == 0 ? bias.as<float>() : nullptr;
          b.x_scale = 4;
          b.semaphores = nullptr;
          ASSERT_EQ(launch_gemm(b, Stream{}), cudaSuccess);
        }
        ASSERT_TRUE(out.read<uint32_t>() == want.read<uint32_t>());
        expect_zero_semaphores();
      }
    }
  }
}

// GEMMs that add to one residual stream, launched as programmatic dependents, in every shape: each must start from the
// result of the one before.
TEST_P(GemmPartitions, FollowThoseOfTheGemmAhead) {
  const int64_t cols = 8448;
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  for (const int64_t rows : {200, 1283}) {
    const Packed packed(GetParam(), rows, cols, ordinary_file(GetParam(), rows, cols, random_));
    const int32_t tokens = 200;
    const Guarded x(random_inputs(act_, tokens, cols, cols, random_).bits);
    for (int32_t form = 0; form < kPrefillForms; ++form) {
      for (const PrefillCluster& cluster : kPrefillClusters) {
        std::vector<uint32_t> last[2];
        for (const bool dependent : {false, true}) {
          Guarded out(numbers(rows * tokens));
          const GemmArgs a = adding(packed.weight, x.data(), cols, tokens, out, rows);
          for (int32_t i = 0; i < 12; ++i) {
            const cudaError_t error = launch_prefill_wgmma_as({form, cluster}, device_, a, 0, 1, Stream{stream, dependent});
            ASSERT_TRUE(error == cudaSuccess || error == cudaErrorNotSupported) << cudaGetErrorName(error);
          }
          last[dependent] = out.read<uint32_t>();
          expect_zero_semaphores();
        }
        ASSERT_TRUE(last[0] == last[1]) << rows << " rows, form " << form << ", clusters of " << cluster.rows << " x " << cluster.tokens;
      }
    }
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_P(GemmPartitions, NeedSemaphores) {
  for (const int64_t cols : {8192, 8448}) {
    const int64_t rows = 16;
    const Packed packed(GetParam(), rows, cols, ordinary_file(GetParam(), rows, cols, random_));
    const Guarded x(random_inputs(act_, 1, cols, cols, random_).bits);
    Guarded out(numbers(rows));
    GemmArgs a = adding(packed.weight, x.data(), cols, 1, out, rows);
    a.semaphores = nullptr;
    EXPECT_EQ(launch_gemm(a, Stream{}), cols == 8192 ? cudaSuccess : cudaErrorInvalidValue);
    a.epilogue = Epilogue::kStoreF32;
    EXPECT_EQ(launch_gemm(a, Stream{}), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
}

}  // namespace
}  // namespace mr::cuda
