// The agreement of mma and wgmma that the decode class relies on holds on this GPU, and the check would find a
// difference.
#include "kernel_fixture.h"
#include "kernels/gemm/mma_agreement.h"

namespace mr::cuda {
namespace {

TEST(MmaAgreement, AddAlikeOnThisGpu) {
  bool alike = false;
  MUST(mma_and_wgmma_agree(nullptr, false, &alike));
  EXPECT_TRUE(alike);
}

// A failed check of spoilt sums must not affect the other check.
TEST(MmaAgreement, FindsOneNumberThatDiffers) {
  int device = 0;
  cudaDeviceProp properties{};
  MUST(cudaGetDevice(&device));
  MUST(cudaGetDeviceProperties(&properties, device));
  if (!MR_HOPPER || properties.major != 9) GTEST_SKIP() << "no wgmma here: GPUs of compute capability 9.0 have it";
  bool alike = true;
  MUST(mma_and_wgmma_agree(nullptr, true, &alike));
  EXPECT_FALSE(alike);
  MUST(mma_and_wgmma_agree(nullptr, false, &alike));
  EXPECT_TRUE(alike);
}

}  // namespace
}  // namespace mr::cuda
