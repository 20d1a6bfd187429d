// Fragments of quantised weights on the emulated device: each weight is at its place, and rounded to f16 as fragment.cuh says.
#include "kernels/gemm/fragment.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "cpu/cpptest/reference.h"
#include "kernels/gemm/mxfp4_unit.cuh"
#include "kernels/gemm/repack.h"

namespace mr::cuda {
namespace {

constexpr int32_t kCols = 512;

struct alignas(256) Line {
  uint8_t bytes[256];
};

// Halves of about 0.01, or of 0.0004 if they multiply scales, and random bits elsewhere.
std::vector<uint8_t> file_of(int32_t type, std::mt19937& random) {
  const reference::Shape s = reference::shape(type);
  std::vector<uint8_t> file(weight_file_bytes(type, kPanelRows, kCols));
  for (uint8_t& b : file) b = static_cast<uint8_t>(random());
  std::normal_distribution<float> normal(0, s.block == 256 ? 4e-4f : 1e-2f);
  for (size_t at = 0; at < file.size(); at += static_cast<size_t>(s.bytes)) {
    for (int i = 0; i < s.half_count; ++i) reference::put_half(file.data() + at + s.halves[i], __float2half_rn(normal(random)).bits);
    if (type == kMXFP4) file[at] = static_cast<uint8_t>(104 + random() % 37);  // the exponents whose weights f16 holds exactly
  }
  return file;
}

// The fragments of a panel whose packed bytes begin at kSharedStart, as f16 bits: (kPanelRows, kCols).
template <int32_t T>
std::vector<uint16_t> fragments() {
  using F = Format<T>;
  std::vector<uint16_t> out(size_t{kPanelRows} * kCols);
  constexpr uint32_t kPublished = kSharedStart + (64 << 10);
  EXPECT_EQ(emulated::run_grid(dim3(1), dim3(32), [&] {
    const int32_t lane = static_cast<int32_t>(threadIdx.x);
    for (int32_t group = 0; group < kCols / kUnitCols / F::f.units; ++group) {
      const uint32_t at = kSharedStart + static_cast<uint32_t>(group * F::group_bytes);
      GroupHeader<T> header;
      header.load(at + F::header_plane, lane);
      if constexpr (F::six_bits) {
        __syncwarp();
        header.template publish<F::f.units>(kPublished, 0, lane);
        __syncwarp();
      }
      for (int32_t u = 0; u < F::f.units; ++u) {
        RoundedUnit<T> unit;
        unit.begin(at + F::quants_at(u), at + F::high_at(u), F::six_bits ? kPublished + u * 256 : at + F::scales_at(u), header, lane);
        uint32_t a[4][4];
        unit.take_all(a);
        for (int32_t step = 0; step < 4; ++step) {
          for (int32_t i = 0; i < 4; ++i) {
            const int32_t row = lane / 4 + i % 2 * 8, k = (group * F::f.units + u) * kUnitCols + step * 16 + i / 2 * 8 + lane % 4 * 2;
            out[static_cast<size_t>(row * kCols + k)] = static_cast<uint16_t>(a[step][i]);
            out[static_cast<size_t>(row * kCols + k + 1)] = static_cast<uint16_t>(a[step][i] >> 16);
          }
        }
      }
    }
  }), cudaSuccess);
  return out;
}

template <int32_t T>
void expect_rounded(int32_t type) {
  // One rounding gives the nearest number. Q6_K and codes may round an integer before, Q2_K its min, prefill's Q4_K and Q5_K the
  // f32 numbers that they are made of.
  constexpr bool once = Format<T>::f.block <= 64;
  std::mt19937 random(static_cast<uint32_t>(type) + 5);
  const std::vector<uint8_t> file = file_of(type, random);
  std::vector<Line> memory((weight_packed_bytes(type, kPanelRows, kCols) + 255) / 256);
  ASSERT_EQ(launch_repack(file.data(), {type, kPanelRows, kCols, memory.data()->bytes}, Stream{}), cudaSuccess);
  memcpy(shared_bytes, memory.data(), memory.size() * sizeof(Line));
  const std::vector<uint16_t> got = fragments<T>();
  std::vector<reference::Weight> want(kCols);
  int32_t nearest = 0;
  for (int32_t row = 0; row < kPanelRows; ++row) {
    reference::decode_parts(type, file.data() + static_cast<size_t>(row) * (file.size() / kPanelRows), kCols, want.data());
    for (int32_t k = 0; k < kCols; ++k) {
      const reference::Weight& w = want[static_cast<size_t>(k)];
      const double exact = w.scaled + w.shift;
      const uint16_t bits = got[static_cast<size_t>(row * kCols + k)];
      const double value = static_cast<double>(__half2float({bits})), rounded = static_cast<double>(__half2float(emulated_half(exact)));
      nearest += value == rounded;
      ASSERT_TRUE(!once || value == rounded) << "row " << row << " input " << k << ": " << value << " for " << exact;
      ASSERT_LE(std::fabs(value - exact), 0x1p-11 * (std::fabs(w.scaled) + 2 * std::fabs(w.shift) + std::fabs(exact)) + 0x1p-24)
          << "row " << row << " input " << k << ": " << value << " for " << exact;
    }
  }
  EXPECT_GE(nearest, kPanelRows * kCols * 3 / 4);
}

class EmulatedFragments : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Types, EmulatedFragments, testing::ValuesIn([] {
                           std::vector<int32_t> types;
                           for (const WeightFormat& f : kWeightFormats)
                             if (quantised(f.type)) types.push_back(f.type);
                           return types;
                         }()));

template <int32_t i = 0>
void expect_rounded_as(int32_t type) {
  if constexpr (i < kWeightTypeCount) {
    constexpr int32_t T = kWeightFormats[i].type;
    if constexpr (quantised(T)) {
      if (T == type) return expect_rounded<kernel_type(T)>(type);
    }
    expect_rounded_as<i + 1>(type);
  }
}

TEST_P(EmulatedFragments, HoldEveryWeightRounded) { expect_rounded_as(GetParam()); }

// take_mxfp4_unit gives the fragments of RoundedUnit for every exponent of a block, in all blocks of a unit or in one alone.
TEST(EmulatedMxfp4, OneProductHasTheBitsOfTwo) {
  constexpr uint32_t kBlocks = 2 * kPanelRows, kExponents = kSharedStart + Format<kMXFP4>::f.quants;
  std::mt19937 random(31);
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (const bool alone : {false, true}) {
      for (uint32_t at = kSharedStart; at < kExponents; at += 4) store_shared4(at, static_cast<uint32_t>(random()));
      uint8_t exponents[kBlocks];
      memset(exponents, static_cast<int>(alone ? 120 : exponent), kBlocks);
      exponents[random() % kBlocks] = static_cast<uint8_t>(exponent);
      memcpy(shared_at(kExponents), exponents, kBlocks);
      int32_t different = 0;
      EXPECT_EQ(emulated::run_grid(dim3(1), dim3(32), [&] {
        const int32_t lane = static_cast<int32_t>(threadIdx.x);
        uint32_t got[4][4], want[4][4];
        take_mxfp4_unit(got, kSharedStart, kExponents, lane);
        RoundedUnit<kMXFP4> unit;
        unit.begin(kSharedStart, 0, kExponents, GroupHeader<kMXFP4>{}, lane);
        unit.take_all(want);
        different += memcmp(got, want, sizeof got) != 0 ? 1 : 0;
      }), cudaSuccess);
      ASSERT_EQ(different, 0) << "lanes, exponent " << exponent << (alone ? " of one block" : "");
    }
  }
}

}  // namespace
}  // namespace mr::cuda
