// Sizes of weight matrices of each type, in a file and in memory.
#include "linear.h"
#include "linear_format.h"

namespace mr {

namespace {

constexpr int64_t max_bytes = int64_t(1) << 62;

} // namespace

bool supported(int32_t type, int64_t in) {
  const Format* f = find_format(type);
  return f != nullptr && in > 0 && in % f->block == 0;
}

uint64_t file_size(int32_t type, int64_t in, int64_t out) {
  int64_t bytes = 0;
  if (!supported(type, in) || out < 1) return 0;
  const Format& f = *find_format(type);
  if (__builtin_mul_overflow(in / f.block, int64_t(f.block_bytes), &bytes)) return 0;
  if (__builtin_mul_overflow(bytes, out, &bytes) || bytes > max_bytes) return 0;
  return uint64_t(bytes);
}

uint64_t packed_size(int32_t type, int64_t in, int64_t out) {
  // A packed row takes less than 64 bytes an input, so the panel itself cannot overflow below this bound.
  if (file_size(type, in, out) == 0 || in > max_bytes / 1024 || out > max_bytes) return 0;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(panel_bytes(*find_format(type), in), panels(out), &bytes) || bytes > max_bytes) return 0;
  return uint64_t(bytes);
}

} // namespace mr
