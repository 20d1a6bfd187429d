// Packing on the emulated device: every file comes back, rows are those of the formats' definitions, and a bit that flips
// in packed weights changes what comes back.
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "cpu/cpptest/reference.h"
#include "kernels/gemm/repack.h"

namespace mr::cuda {
namespace {

class EmulatedRepack : public testing::TestWithParam<int> {
 protected:
  const WeightFormat& format() const { return kWeightFormats[GetParam()]; }
  int32_t type() const { return format().type; }
};
INSTANTIATE_TEST_SUITE_P(Types, EmulatedRepack, testing::Range(0, int{kWeightTypeCount}),
                         [](const testing::TestParamInfo<int>& info) { return "Type" + std::to_string(kWeightFormats[info.param].type); });

struct alignas(256) Line {
  uint8_t bytes[256];
};

struct Packed {
  std::vector<Line> memory;
  PackedWeight weight;

  Packed(int32_t type, int64_t rows, int64_t cols, const std::vector<uint8_t>& file)
      : memory((weight_packed_bytes(type, rows, cols) + 255) / 256), weight{type, rows, cols, memory.data()->bytes} {
    EXPECT_EQ(launch_repack(file.data(), weight, Stream{}), cudaSuccess);
  }
  std::vector<uint8_t> restored() const {
    std::vector<uint8_t> out(weight_file_bytes(weight.type, weight.rows, weight.cols));
    EXPECT_EQ(launch_unpack(weight, 0, out.size(), out.data(), Stream{}), cudaSuccess);
    return out;
  }
};

std::vector<uint8_t> random_bytes(size_t count, std::mt19937& random) {
  std::vector<uint8_t> out(count);
  for (uint8_t& b : out) b = static_cast<uint8_t>(random());
  return out;
}

TEST_P(EmulatedRepack, RestoresEveryByteOfAnyFile) {
  std::mt19937 random(1);
  const int64_t shapes[][2] = {{1, 256}, {17, 256}, {1, 768}, {17, 768}, {40, 512}};
  for (const auto& shape : shapes) {
    const std::vector<uint8_t> file = random_bytes(weight_file_bytes(type(), shape[0], shape[1]), random);
    EXPECT_EQ(Packed(type(), shape[0], shape[1], file).restored(), file) << shape[0] << " x " << shape[1];
  }
}

TEST_P(EmulatedRepack, GivesRowsAsF32) {
  std::mt19937 random(2);
  const int64_t rows = 18, cols = 512;
  const std::vector<uint8_t> file = reference::random_file(type(), cols, rows, random);
  const Packed packed(type(), rows, cols, file);
  std::vector<int32_t> ids;
  for (int32_t r = 0; r < rows; ++r) ids.push_back(r);
  std::vector<float> got(static_cast<size_t>(rows * cols));
  ASSERT_EQ(launch_dequant_rows({packed.weight, ids.data(), static_cast<int32_t>(rows), got.data(), cols}, Stream{}), cudaSuccess);
  std::vector<reference::Weight> want(static_cast<size_t>(cols));
  for (size_t r = 0; r < ids.size(); ++r) {
    reference::decode_parts(type(), file.data() + r * (file.size() / ids.size()), cols, want.data());
    for (size_t k = 0; k < want.size(); ++k) {
      const double bound = (std::fabs(want[k].scaled) + std::fabs(want[k].shift)) * 0x1p-23;
      ASSERT_LE(std::fabs(got[r * want.size() + k] - (want[k].scaled + want[k].shift)), bound) << "row " << r << " input " << k;
    }
  }
}

// Rows that fill a panel, so that every bit of the memory is a weight's.
TEST_P(EmulatedRepack, ShowsEveryFlippedBit) {
  std::mt19937 random(3);
  const std::vector<uint8_t> file = random_bytes(weight_file_bytes(type(), 16, 256), random);
  Packed packed(type(), 16, 256, file);
  const int64_t bits = static_cast<int64_t>(weight_packed_bytes(type(), 16, 256)) * 8;
  for (int64_t bit = 0; bit < bits; bit += 1 + random() % 96) {
    uint8_t& byte = packed.weight.data[bit / 8];
    byte = static_cast<uint8_t>(byte ^ 1 << bit % 8);
    ASSERT_NE(packed.restored(), file) << "bit " << bit;
    byte = static_cast<uint8_t>(byte ^ 1 << bit % 8);
  }
  EXPECT_EQ(packed.restored(), file);
}

}  // namespace
}  // namespace mr::cuda
