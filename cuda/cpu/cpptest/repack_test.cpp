// Repacking in tiles gives the bytes that the general packing gives, in both directions, for every format and for rows
// of every kind of leftover.
#include "repack.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

using namespace mr;
using namespace mr::cpu;

namespace {

int failures = 0;

void compare(int32_t type, int64_t in, int64_t out) {
  if (!supported(type, in)) return;
  std::vector<uint8_t> file(file_size(type, in, out)), back(file.size(), 0xaa);
  uint32_t state = 12345;
  for (uint8_t& byte : file) byte = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  const uint64_t size = packed_size(type, in, out), second = (size + 63) / 64 * 64;
  std::vector<uint8_t> room(size + second + 64);
  uint8_t* const base = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
  Matrix general{type, in, out, base, size}, tiles{type, in, out, base + second, size};
  pack_rows(general, file.data(), 0, out);
  repack_rows(tiles, file.data(), 0, out);
  bool same = std::memcmp(general.data, tiles.data, size) == 0;
  same = same && restore_rows(general, 0, out, back.data()) && back == file;
  if (out > panel_rows) {  // a part from the middle
    std::vector<uint8_t> part(file_size(type, in, out - panel_rows));
    same = same && restore_rows(tiles, panel_rows, out - panel_rows, part.data());
    same = same && std::memcmp(part.data(), file.data() + file_size(type, in, panel_rows), part.size()) == 0;
  }
  if (!same) {
    ++failures;
    std::printf("type %d, (%lld, %lld): bytes differ\n", type, static_cast<long long>(in), static_cast<long long>(out));
  }
}

}  // namespace

int main() {
  for (const int32_t type : {0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 16, 17, 18, 20, 21, 22, 23, 30})
    for (const int64_t in : {1, 2, 3, 7, 8, 9, 31, 32, 64, 96, 127, 128, 129, 131, 200, 256, 288, 512, 768, 1031, 2048})
      for (const int64_t out : {1, 15, 16, 17, 48, 50}) compare(type, in, out);
  if (failures == 0) std::printf("repack: ok\n");
  return failures == 0 ? 0 : 1;
}
