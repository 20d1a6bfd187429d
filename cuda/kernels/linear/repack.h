// repack: weights from their file bytes into the packed layout, back again, and single rows as f32.
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "kernels/linear/weight.h"

namespace mr::cuda {

// Packs the whole matrix. file: weight_file_bytes on the device, 2-byte aligned, rows one after another; it does not
// overlap to.data and is free again when the kernel has run. Rows and columns of the padding become zero bytes.
cudaError_t launch_repack(const void* file, const PackedWeight& to, const Stream& on);

// The exact inverse for every byte pattern: file bytes [offset, offset + count) into out (device memory, any alignment).
// Only reads the weight: safe beside running products.
cudaError_t launch_unpack(const PackedWeight& from, uint64_t offset, uint64_t count, void* out, const Stream& on);

// out[i] = row row_ids[i] of the weight as f32, what the format stands for rounded once an operation. An id outside
// [0, rows) gives a row of NaN.
struct DequantRowsArgs {
  PackedWeight weight;
  const int32_t* row_ids;  // (count), device
  int32_t count;
  float* out;          // (count, cols), row stride out_stride
  int64_t out_stride;  // elements
};
cudaError_t launch_dequant_rows(const DequantRowsArgs& args, const Stream& on);

}  // namespace mr::cuda
