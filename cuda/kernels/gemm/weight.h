// weight: a matrix of weights in device memory, in the order in which the tensor cores take their A fragments.
//
// The matrix W (rows = outputs, cols = inputs) is cut into panels of 16 rows and units of 64 inputs. One warp reads a
// unit of a panel with 16-byte accesses. Lane l owns rows g = l/4 and g + 8 and, of every 16 inputs, those at 2t, 2t+1,
// 2t+8 and 2t+9 (t = l%4): the registers of mma.m16n8k16 and wgmma. A group is one unit, or the four units that share a
// block of 256. Its planes follow one another:
//   quants   the low bits: 256 bytes a unit for 2 bits, 512 for 4 to 6, 1024 for 8, 2048 for 16, 4096 for 32
//   high     the fifth bit (128 bytes a unit); of Q6_K, whose two planes share whole quants (packed_six), 256
//   scales   of blocks of 32 or 16: 64 bytes a unit, 128 if blocks of 32 have mins, 32 for MXFP4, none for Q4_K and Q5_K
//   header   of blocks of 256: 256 bytes (Q4_K, Q5_K: 16 a row), 32 (Q6_K: one half a row) or 64 (Q2_K: two; codes.cuh)
// Packing keeps every bit of the file. It adds none, except to types that have the layout of codes: the size is the file's,
// with rows rounded up to 16 and cols to 64. Codes have 4.6 bits a weight.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace mr::cuda {

// ggml type ids of the weight formats.
enum WeightType : int32_t {
  kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ2_K = 10, kQ3_K = 11, kQ4_K = 12, kQ5_K = 13,
  kQ6_K = 14, kIQ2_XXS = 16, kIQ2_XS = 17, kIQ3_XXS = 18, kIQ4_NL = 20, kIQ3_S = 21, kIQ2_S = 22, kIQ4_XS = 23, kBF16 = 30,
  kMXFP4 = 39, kNVFP4 = 40,
  kCodes = -2  // of no file: the type of GEMM kernels for all that have the layout of codes
};

constexpr int32_t kPanelRows = 16;
constexpr int32_t kUnitCols = 64;

// Sizes in bytes; a group is `units` units of one panel.
struct WeightFormat {
  int32_t type;
  int32_t block, block_bytes;  // inputs and file bytes of one block of a row
  int32_t units;               // of a group: 1, or 4 if the block has 256 inputs
  int32_t quants, high, scales;  // of a unit
  int32_t header;                // of a group
  bool codes = false;            // the layout is that of codes

  // The type of its GEMM kernels.
  __host__ __device__ constexpr int32_t kernel() const { return codes ? int32_t{kCodes} : type; }
  __host__ __device__ constexpr int32_t group_bytes() const { return units * (quants + high + scales) + header; }
  // Offsets within a group; u is the unit, if the plane has units.
  __host__ __device__ constexpr int32_t quants_at(int32_t u) const { return u * quants; }
  __host__ __device__ constexpr int32_t high_at(int32_t u) const { return units * quants + u * high; }
  __host__ __device__ constexpr int32_t scales_at(int32_t u) const { return units * (quants + high) + u * scales; }
  __host__ __device__ constexpr int32_t header_at() const { return units * (quants + high + scales); }
};

constexpr WeightFormat kWeightFormats[] = {
    {kF32, 1, 4, 1, 4096, 0, 0, 0},      {kF16, 1, 2, 1, 2048, 0, 0, 0},      {kBF16, 1, 2, 1, 2048, 0, 0, 0},
    {kQ8_0, 32, 34, 1, 1024, 0, 64, 0},  {kQ4_0, 32, 18, 1, 512, 0, 64, 0},   {kQ4_1, 32, 20, 1, 512, 0, 128, 0},
    {kQ5_0, 32, 22, 1, 512, 128, 64, 0}, {kQ5_1, 32, 24, 1, 512, 128, 128, 0}, {kQ4_K, 256, 144, 4, 512, 0, 0, 256},
    {kQ5_K, 256, 176, 4, 512, 128, 0, 256}, {kQ6_K, 256, 210, 4, 512, 256, 64, 32}, {kIQ4_NL, 32, 18, 1, 512, 0, 64, 0},
    {kMXFP4, 32, 17, 1, 512, 0, 32, 0},  {kNVFP4, 64, 36, 1, 512, 0, 64, 0}, {kQ2_K, 256, 84, 4, 256, 0, 64, 64},
    {kQ3_K, 256, 110, 4, 512, 0, 64, 64, true},   {kIQ4_XS, 256, 136, 4, 512, 0, 64, 64, true},
    {kIQ3_S, 256, 110, 4, 512, 0, 64, 64, true},  {kIQ3_XXS, 256, 98, 4, 512, 0, 64, 64, true},
    {kIQ2_S, 256, 82, 4, 512, 0, 64, 64, true},   {kIQ2_XS, 256, 74, 4, 512, 0, 64, 64, true},
    {kIQ2_XXS, 256, 66, 4, 512, 0, 64, 64, true},
};

constexpr int32_t kWeightTypeCount = sizeof(kWeightFormats) / sizeof(kWeightFormats[0]);

// Returns kWeightTypeCount for an unknown type.
constexpr int32_t weight_format_index(int32_t type) {
  int32_t i = 0;
  while (i < kWeightTypeCount && kWeightFormats[i].type != type) ++i;
  return i;
}

// Returns the format of a type, or of kCodes: all formats of codes differ in their files alone.
constexpr WeightFormat weight_format(int32_t type) {
  int32_t i = 0;
  while (kWeightFormats[i].type != type && kWeightFormats[i].kernel() != type) ++i;
  return kWeightFormats[i];
}

// Returns the type of a type's GEMM kernels. Weights with one type of kernels may share a launch.
constexpr int32_t kernel_type(int32_t type) { return weight_format(type).kernel(); }

// Returns whether a type of a file has quants, which kernels multiply with f16 activations alone.
constexpr bool quantised(int32_t type) { return weight_format(type).block > 1; }

// PackedWeight points to a matrix in device memory. It does not own the bytes and may be copied.
struct PackedWeight {
  int32_t type = -1;
  int64_t rows = 0, cols = 0;
  uint8_t* data = nullptr;  // packed_bytes, 256-byte aligned
};

// Returns whether the type is known, rows >= 1, cols is a positive multiple of its block, and sizes stay below 2^62.
bool weight_supported(int32_t type, int64_t rows, int64_t cols);

// Bytes of the matrix in its file and in device memory; 0 if unsupported.
uint64_t weight_file_bytes(int32_t type, int64_t rows, int64_t cols);
uint64_t weight_packed_bytes(int32_t type, int64_t rows, int64_t cols);

// Returns matrix i of a stack of matrices that follow one another, of which `first` is the first.
inline PackedWeight matrix_of(const PackedWeight& first, int64_t i) {
  PackedWeight out = first;
  out.data += static_cast<uint64_t>(i) * weight_packed_bytes(first.type, first.rows, first.cols);
  return out;
}

}  // namespace mr::cuda
