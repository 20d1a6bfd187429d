// What the decode class counts on, asked of this GPU as whoever opens it asks, and that a difference would be found.
#include "kernels/linear/alike.h"
#include "kernel_fixture.h"

namespace mr::cuda {
namespace {

TEST(ProductsAlike, AddAlikeOnThisGpu) {
  bool alike = false;
  MUST(products_add_alike(nullptr, false, &alike));
  EXPECT_TRUE(alike);
}

// And what was found of the spoilt sums says nothing of the others.
TEST(ProductsAlike, FindsOneNumberThatDiffers) {
  int device = 0;
  cudaDeviceProp properties{};
  MUST(cudaGetDevice(&device));
  MUST(cudaGetDeviceProperties(&properties, device));
  if (!MR_HOPPER || properties.major != 9) GTEST_SKIP() << "no wgmma here: GPUs of compute capability 9.0 have it";
  bool alike = true;
  MUST(products_add_alike(nullptr, true, &alike));
  EXPECT_FALSE(alike);
  MUST(products_add_alike(nullptr, false, &alike));
  EXPECT_TRUE(alike);
}

}  // namespace
}  // namespace mr::cuda
