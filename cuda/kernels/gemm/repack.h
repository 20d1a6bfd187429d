// repack: converts weights from their file bytes to the packed layout and back, and dequantises single rows to f32.
#pragma once

#include <cstdint>

#include "kernels/gemm/weight.h"
#include "kernels/launch.h"

namespace mr::cuda {

// Packs the whole matrix. file: weight_file_bytes on the device, 2-byte aligned, row-major. It must not overlap to.data
// and may be freed when the kernel has run. Padding rows and columns become zero bytes.
cudaError_t launch_repack(const void* file, const PackedWeight& to, const Stream& on);

// Inverts launch_repack exactly for every byte pattern: writes file bytes [offset, offset + count) to out (device
// memory, any alignment). It only reads the weight, so it may run concurrently with GEMMs.
cudaError_t launch_unpack(const PackedWeight& from, uint64_t offset, uint64_t count, void* out, const Stream& on);

// out[i] = row row_ids[i] of the weight as f32 times scale, with one rounding for each operation of the format. An id
// outside [0, rows) gives a row of NaN.
struct DequantRowsArgs {
  PackedWeight weight;
  const int32_t* row_ids;  // (count), device
  int32_t count;
  float* out;          // (count, cols), row stride out_stride
  int64_t out_stride;  // elements
  float scale = 1;
};
cudaError_t launch_dequant_rows(const DequantRowsArgs& args, const Stream& on);

}  // namespace mr::cuda
