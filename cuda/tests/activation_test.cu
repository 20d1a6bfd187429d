// activate_each against the expressions that it replaces, over every float.
#include "kernels/gemm/activation.cuh"

#include "tests/gemm_fixture.h"

namespace mr::cuda {
namespace {

// The argument of the exponential: of SiLU, of GELU, and of the clamped activation of experts.
__device__ float argument(int32_t form, float x) { return form == 1 ? gelu_argument(x) : form == 2 ? 1.702f * x : x; }

// Each thread tests four neighbouring floats together, so that one may send the others down the slow path, and each of
// them alone.
__global__ void count_differences(uint32_t first, int32_t form, unsigned long long* differences) {
  const uint32_t at = first + (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  float x[4], u[4], want[4];
  for (uint32_t i = 0; i < 4; ++i) {
    x[i] = __uint_as_float(at + i);
    u[i] = argument(form, x[i]);
    want[i] = x[i] / (1.0f + expf(-u[i]));
  }
  float alone[4];
  for (uint32_t i = 0; i < 4; ++i) {
    float pair[2] = {x[i], x[i]};
    const float of_pair[2] = {u[i], u[i]};
    activate_each(pair, of_pair);
    alone[i] = pair[0];
  }
  activate_each(x, u);
  const auto differ = [](float a, float b) { return !(isnan(a) && isnan(b)) && __float_as_uint(a) != __float_as_uint(b); };
  for (uint32_t i = 0; i < 4; ++i)
    if (differ(x[i], want[i]) || differ(alone[i], want[i])) atomicAdd(differences, 1ull);
}

class Activation : public testing::TestWithParam<int32_t> {};

TEST_P(Activation, IsTheExpressionForEveryFloat) {
  Guarded differences(std::vector<unsigned long long>{0});
  for (uint64_t first = 0; first < uint64_t{1} << 32; first += uint64_t{1} << 28)
    count_differences<<<1 << 18, 256>>>(static_cast<uint32_t>(first), GetParam(), differences.as<unsigned long long>());
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(differences.read<unsigned long long>()[0], 0u);
}

INSTANTIATE_TEST_SUITE_P(SiluGeluAndClamped, Activation, testing::Range(0, 3));

}  // namespace
}  // namespace mr::cuda
