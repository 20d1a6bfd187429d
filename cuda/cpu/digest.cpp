#include "digest.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "blake3.h"
#include "repack.h"

namespace mr::cpu {
namespace {

constexpr int64_t kTaskSubtrees = 4;                   // hashed by one task
constexpr uint64_t kTaskBytes = uint64_t{256} << 10;   // unpacked by one task
constexpr uint64_t kThreadWindow = uint64_t{1} << 20;  // unpacked before it is hashed: stays in a cache between the two

uint64_t window(const Device& device) { return kThreadWindow * static_cast<uint64_t>(device.threads.size()); }

// Appends the whole subtrees of data but for what must stay for the last block; gives the bytes taken.
uint64_t append_subtrees(Device& device, Blake3* hash, const uint8_t* data, uint64_t size) {
  const int64_t count = size == 0 ? 0 : static_cast<int64_t>((size - 1) / kBlake3Subtree);
  const uint64_t offset = hash->size();
  struct Value {
    uint32_t words[8];
  };
  std::vector<Value> values(static_cast<size_t>(count));
  device.aside((count + kTaskSubtrees - 1) / kTaskSubtrees, [&](int64_t task, int) {
    const int64_t end = std::min(count, (task + 1) * kTaskSubtrees);
    for (int64_t i = task * kTaskSubtrees; i < end; ++i) {
      const uint64_t at = static_cast<uint64_t>(i) * kBlake3Subtree;
      Blake3::subtree(device.isa, data + at, offset + at, values[static_cast<size_t>(i)].words);
    }
  });
  for (const Value& value : values) hash->append(value.words);
  return static_cast<uint64_t>(count) * kBlake3Subtree;
}

}  // namespace

void digest_memory(Device& device, const uint8_t* data, uint64_t size, uint8_t out[32]) {
  Blake3 hash(device.isa);
  while (size > kBlake3Subtree) {
    const uint64_t taken = append_subtrees(device, &hash, data, std::min(size, window(device) + 1));
    data += taken;
    size -= taken;
  }
  hash.update(data, size);
  hash.finish(out);
}

void digest_matrices(Device& device, const std::vector<Matrix>& matrices, uint8_t out[32]) {
  Blake3 hash(device.isa);
  const uint64_t row_bytes = file_size(matrices.front().type, matrices.front().in, 1);
  const uint64_t panel_bytes = row_bytes * panel_rows;
  const int64_t window_panels = std::max<int64_t>(1, static_cast<int64_t>(window(device) / panel_bytes));
  const int64_t all = panels(matrices.front().out);
  // Room for a window after the remainder of the previous one, which is at most a subtree.
  const uint64_t room = kBlake3Subtree + static_cast<uint64_t>(std::min(window_panels, all)) * panel_bytes;
  const std::unique_ptr<uint8_t[]> scratch(new uint8_t[room]);
  uint64_t held = 0;
  std::atomic<bool> whole{true};
  for (const Matrix& matrix : matrices)
    for (int64_t first = 0; first < all; first += window_panels) {
      const int64_t count = std::min(window_panels, all - first);
      const int64_t grain = std::max<int64_t>(1, static_cast<int64_t>(kTaskBytes / panel_bytes));
      device.aside((count + grain - 1) / grain, [&](int64_t task, int) {
        const int64_t begin = task * grain, end = std::min(count, begin + grain);
        const int64_t row0 = (first + begin) * panel_rows;
        const int64_t rows = std::min((first + end) * panel_rows, matrix.out) - row0;
        if (!restore_rows(matrix, row0, rows, scratch.get() + held + static_cast<uint64_t>(begin) * panel_bytes)) whole.store(false);
      });
      const int64_t rows = std::min((first + count) * panel_rows, matrix.out) - first * panel_rows;
      const uint64_t size = held + static_cast<uint64_t>(rows) * row_bytes;
      const uint64_t taken = append_subtrees(device, &hash, scratch.get(), size);
      held = size - taken;
      std::memmove(scratch.get(), scratch.get() + taken, held);
    }
  hash.update(scratch.get(), held);
  // Memory that no file leaves there has the digest of no tensor of this size.
  if (!whole.load()) hash.update(reinterpret_cast<const uint8_t*>(""), 1);
  hash.finish(out);
}

}  // namespace mr::cpu
