// Which measured times of rounds replace those of an H200.
#include "kernels/gemm/round_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

namespace mr::cuda {
namespace {

using Row = int32_t[kRoundKernels];

bool same(const Row& a, const Row& b) { return std::equal(std::begin(a), std::end(a), std::begin(b)); }

TEST(RoundTimes, AreReplacedByPlausibleOnes) {
  Row row = {128, 192, 371, 638};
  const Row measured = {9'000, 12'000, 27'000, 44'000};
  EXPECT_TRUE(accept_times(row, measured));
  EXPECT_TRUE(same(row, measured));
}

TEST(RoundTimes, KeepRatiosOfKernelsThatDoNotRun) {
  Row row = {128, 192, 371, 638};
  const Row measured = {12'800, 0, 30'000, 0}, want = {12'800, 19'200, 30'000, 63'800};
  EXPECT_TRUE(accept_times(row, measured));
  EXPECT_TRUE(same(row, want));
}

// A neighbour on the device makes some launches slow.
TEST(RoundTimes, StayIfRatiosAreImplausible) {
  const Row before = {128, 192, 371, 638};
  const Row refused[] = {
      {0, 12'000, 27'000, 44'000}, {9'000, 12'000, 80'000, 44'000}, {40'000, 12'000, 27'000, 44'000}, {9'000, 12'000, -1, 44'000}};
  for (const Row& measured : refused) {
    Row row;
    std::copy(std::begin(before), std::end(before), row);
    EXPECT_FALSE(accept_times(row, measured));
    EXPECT_TRUE(same(row, before));
  }
}

TEST(RoundTimes, HaveARowForEveryType) {
  for (const WeightFormat& format : kWeightFormats) {
    for (const bool pair : {false, true}) {
      EXPECT_GT(kUnmeasured.at(format.type, pair, RoundKernel::kSkinny), 0);
      EXPECT_GT(kUnmeasured.at(format.type, pair, RoundKernel::kWholeOfK), 0);
    }
  }
}

}  // namespace
}  // namespace mr::cuda
