#include "kernels/gemm/weight.h"

namespace mr::cuda {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

bool weight_supported(int32_t type, int64_t rows, int64_t cols) {
  const int32_t i = weight_format_index(type);
  if (i == kWeightTypeCount || rows < 1 || cols < 1 || cols % kWeightFormats[i].block != 0) return false;
  // At most 4 bytes a weight, both sides rounded up.
  const int64_t limit = int64_t{1} << 28;
  return rows <= limit && cols <= limit;
}

uint64_t weight_file_bytes(int32_t type, int64_t rows, int64_t cols) {
  if (!weight_supported(type, rows, cols)) return 0;
  const WeightFormat& f = kWeightFormats[weight_format_index(type)];
  return static_cast<uint64_t>(rows) * static_cast<uint64_t>(cols / f.block) * static_cast<uint64_t>(f.block_bytes);
}

uint64_t weight_packed_bytes(int32_t type, int64_t rows, int64_t cols) {
  if (!weight_supported(type, rows, cols)) return 0;
  const WeightFormat& f = kWeightFormats[weight_format_index(type)];
  const int64_t panels = round_up(rows, kPanelRows) / kPanelRows;
  const int64_t groups = round_up(cols, kUnitCols) / (kUnitCols * f.units);
  return static_cast<uint64_t>(panels * groups) * static_cast<uint64_t>(f.group_bytes());
}

}  // namespace mr::cuda
