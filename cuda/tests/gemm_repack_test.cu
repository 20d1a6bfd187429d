// Weights packed and restored: every bit of the file, for shapes that do not fill panels and units, and rows as f32.
#include "tests/gemm_fixture.h"

namespace mr::cuda {
namespace {

class Repack : public testing::TestWithParam<TypeName> {};
INSTANTIATE_TEST_SUITE_P(Types, Repack, testing::ValuesIn(kTypeNames), name_of);

// Rows and blocks of columns.
constexpr int64_t kShapes[][2] = {{1, 1}, {1, 3}, {15, 2}, {16, 1}, {17, 5}, {33, 9}, {100, 4}, {256, 1}, {33, 3}, {4099, 1}};

int64_t cols_of(int32_t type, int64_t blocks) {
  const int64_t block = reference::shape(type).block;
  return block == 1 ? blocks * 21 - 20 : blocks * block;
}

TEST_P(Repack, RestoresEveryByteOfAnyFile) {
  const int32_t type = GetParam().type;
  std::mt19937 random(1);
  for (const auto& shape : kShapes) {
    const int64_t rows = shape[0], cols = cols_of(type, shape[1]);
    SCOPED_TRACE(testing::Message() << rows << " x " << cols);
    std::vector<uint8_t> file(weight_file_bytes(type, rows, cols));
    for (uint8_t& b : file) b = static_cast<uint8_t>(random());
    Packed packed(type, rows, cols, file);
    packed.memory.read<uint8_t>();
    Guarded whole(file.size());
    ASSERT_EQ(launch_unpack(packed.weight, 0, file.size(), whole.data(), Stream{}), cudaSuccess);
    ASSERT_EQ(whole.read<uint8_t>(), file);
  }
}

TEST_P(Repack, RestoresRangesAtAnyOffset) {
  const int32_t type = GetParam().type;
  const int64_t rows = 19, cols = cols_of(type, 7);
  std::mt19937 random(2);
  std::vector<uint8_t> file(weight_file_bytes(type, rows, cols));
  for (uint8_t& b : file) b = static_cast<uint8_t>(random());
  const Packed packed(type, rows, cols, file);
  for (int i = 0; i < 20; ++i) {
    const size_t offset = random() % file.size(), count = random() % (file.size() - offset + 1), shift = random() % 4;
    Guarded out(count + shift, 0);
    ASSERT_EQ(launch_unpack(packed.weight, offset, count, out.data() + shift, Stream{}), cudaSuccess);
    const std::vector<uint8_t> got = out.read<uint8_t>();
    ASSERT_TRUE(std::equal(got.begin() + static_cast<int64_t>(shift), got.end(), file.begin() + static_cast<int64_t>(offset)));
  }
  EXPECT_EQ(launch_unpack(packed.weight, file.size(), 1, nullptr, Stream{}), cudaErrorInvalidValue);
  EXPECT_EQ(launch_unpack(packed.weight, 1, file.size(), nullptr, Stream{}), cudaErrorInvalidValue);
  EXPECT_EQ(launch_unpack(packed.weight, 0, 0, nullptr, Stream{}), cudaSuccess);
}

// Of codes: four bits and, for 16 rows of 256, the scales and 64 bytes more.
TEST_P(Repack, TakesNoMoreThanTheFileRoundedUpToTiles) {
  const int32_t type = GetParam().type;
  const int64_t block = reference::shape(type).block;
  const auto bytes = [&](int64_t rows, int64_t cols) {
    const bool codes = kernel_type(type) == kCodes;
    return codes ? static_cast<uint64_t>(rows / 16 * (cols / 256) * (16 * (128 + 16) + 64)) : weight_file_bytes(type, rows, cols);
  };
  EXPECT_EQ(weight_packed_bytes(type, 4096, 14336), bytes(4096, 14336));
  EXPECT_EQ(weight_packed_bytes(type, 17, block), bytes(32, block == 256 ? 256 : 64));
  EXPECT_EQ(weight_packed_bytes(type, 0, 256), 0u);
  if (block > 1) EXPECT_EQ(weight_packed_bytes(type, 1, block + 1), 0u);
}

// Bound: three roundings of the larger of a weight's two terms.
TEST_P(Repack, GivesRowsAsF32) {
  const int32_t type = GetParam().type;
  std::mt19937 random(3);
  const int64_t rows = 37, cols = cols_of(type, 6);
  const std::vector<uint8_t> file = ordinary_file(type, rows, cols, random);
  const Packed packed(type, rows, cols, file);
  const std::vector<int32_t> ids = {36, 0, 17, 17, -1, 37};
  const int64_t stride = cols + 3;
  Guarded ids_memory(ids), out(ids.size() * static_cast<size_t>(stride) * 4);
  const DequantRowsArgs args{packed.weight, ids_memory.as<int32_t>(), static_cast<int32_t>(ids.size()), out.as<float>(), stride};
  ASSERT_EQ(launch_dequant_rows(args, Stream{}), cudaSuccess);
  const std::vector<float> got = out.read<float>();
  std::vector<reference::Weight> want(static_cast<size_t>(cols));
  const size_t row_bytes = file.size() / static_cast<size_t>(rows);
  for (size_t i = 0; i < ids.size(); ++i) {
    const float* row = got.data() + i * static_cast<size_t>(stride);
    const bool known = ids[i] >= 0 && ids[i] < rows;
    if (known) reference::decode_parts(type, file.data() + static_cast<size_t>(ids[i]) * row_bytes, cols, want.data());
    for (size_t k = 0; k < static_cast<size_t>(cols); ++k) {
      if (!known) {
        ASSERT_TRUE(std::isnan(row[k]));
        continue;
      }
      const double bound = (std::fabs(want[k].scaled) + std::fabs(want[k].shift)) * 0x1p-22;
      ASSERT_LE(std::fabs(row[k] - (want[k].scaled + want[k].shift)), bound) << "row " << ids[i] << " input " << k;
    }
    for (size_t k = static_cast<size_t>(cols); k < static_cast<size_t>(stride); ++k) {
      uint32_t bits;
      std::memcpy(&bits, &row[k], 4);
      ASSERT_EQ(bits, 0xa5a5a5a5u) << "written between rows";
    }
  }
}

TEST(RepackRefusals, NamesUnknownTypesAndMissingMemory) {
  EXPECT_EQ(launch_repack(nullptr, PackedWeight{kF16, 1, 1, nullptr}, Stream{}), cudaErrorInvalidValue);
  EXPECT_EQ(weight_file_bytes(99, 16, 256), 0u);
  EXPECT_FALSE(weight_supported(kQ4_K, 16, 128));
}

}  // namespace
}  // namespace mr::cuda
