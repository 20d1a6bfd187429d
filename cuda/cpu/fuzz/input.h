// input: the bytes of one fuzz input, read as choices and as numbers that programs trip over.
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

namespace fuzz {

constexpr size_t kMostBytes = 1 << 16;  // of an array: what would be larger is null, which every array with a count must refuse

class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  bool done() const { return at_ == end_; }
  uint8_t byte() { return done() ? 0 : *at_++; }  // 0 behind the end
  uint32_t below(uint32_t n) { return byte() % std::max(n, 1u); }
  bool once_in(uint32_t n) { return byte() % n == n - 1; }  // false behind the end

  template <class T>
  T raw() {
    T value{};
    for (size_t i = 0; i < sizeof value; ++i) reinterpret_cast<uint8_t*>(&value)[i] = byte();
    return value;
  }

  // Bounds of the ABI and of its types, bits of odd floats, or a value from the input.
  uint32_t hostile32() {
    static constexpr uint32_t odd[] = {
        0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 65, 255, 256, 257, 4096, 65535, 65536, 65537, 1u << 20, (1u << 20) + 1,
        INT32_MAX, 0x80000000u, 0x80000001u, INT32_MAX - 1u, 0xffffffffu, 0xfffffffeu,
        0x3f800000u /* 1 */, 0xbf800000u /* -1 */, 0x3f000000u /* 0.5 */, 0x3f7fffffu, 0x7f800000u /* inf */, 0xff800000u,
        0x7fc00000u /* NaN */, 0x7f7fffffu /* largest */, 0xff7fffffu, 0x00000001u, 0x00800000u, 0x7effffffu};
    const uint8_t which = byte();
    return which < std::size(odd) ? odd[which] : which < 128 ? which : raw<uint32_t>();
  }

  uint64_t hostile64() {
    static constexpr uint64_t odd[] = {
        0, 1, 7, 8, 9, 16, 4096, 4097, UINT32_MAX, uint64_t{1} << 32, uint64_t{1} << 31, uint64_t{1} << 40, uint64_t{1} << 46,
        uint64_t{1} << 60, uint64_t{1} << 62, INT64_MAX, uint64_t{1} << 63, (uint64_t{1} << 63) + 1, UINT64_MAX, UINT64_MAX - 1,
        UINT64_MAX - 63, 0x3ff0000000000000u /* 1 */, 0xbff0000000000000u /* -1 */, 0x3fe0000000000000u /* 0.5 */,
        0x7ff0000000000000u /* inf */, 0x7ff8000000000000u /* NaN */, 0x7fefffffffffffffu /* largest */, 0x0010000000000000u,
        0x3fefffffffffffffu};
    const uint8_t which = byte();
    return which < std::size(odd) ? odd[which] : which < 192 ? which : raw<uint64_t>();
  }

  // Overwrites up to three members of a struct. Its pointers are for the caller to set afterwards.
  template <class T>
  void bend(T* value) {
    const uint8_t times = byte();
    for (uint8_t i = 0; i < (times < 128 ? 0 : 1 + times % 3); ++i) {
      const size_t word = below(sizeof(T) / 4);
      uint8_t* const at = reinterpret_cast<uint8_t*>(value) + word * 4;
      if (word % 2 == 0 && word * 4 + 8 <= sizeof(T) && once_in(2)) {
        const uint64_t number = hostile64();
        std::memcpy(at, &number, 8);
      } else {
        const uint32_t number = hostile32();
        std::memcpy(at, &number, 4);
      }
    }
  }

 private:
  const uint8_t *at_, *const end_;
};

// The size of a part of a struct as a caller may name it: half a pointer points nowhere.
template <class T>
size_t whole(size_t size) {
  return size < sizeof(T) ? size / alignof(T) * alignof(T) : size;
}

// A struct as the engine knows it, if it takes it at all: without the bytes after its struct_size.
template <class T>
T known(T value) {
  const size_t size = std::clamp(whole<T>(value.struct_size), sizeof value.struct_size, sizeof value);
  std::memset(reinterpret_cast<uint8_t*>(&value) + size, 0, sizeof value - size);
  return value;
}

// The memory of one call: every piece is a block of its own and exactly as long as the ABI says, so that the address
// sanitizer reports every access beyond it.
class Arena {
 public:
  uint8_t* bytes(size_t size) {
    blocks_.emplace_back(new uint8_t[size]);
    std::memset(blocks_.back().get(), 0, size);
    return blocks_.back().get();
  }

  // A struct as long as its struct_size says; of a size that no caller has, only that member.
  template <class T>
  T* place(T value) {
    value.struct_size = whole<T>(value.struct_size);
    const size_t said = value.struct_size, size = said < sizeof said || said > kMostBytes ? sizeof said : said;
    uint8_t* const to = bytes(size);
    std::memcpy(to, &value, std::min(size, sizeof value));
    return reinterpret_cast<T*>(to);
  }

  // The first `count` of some elements, `stride` bytes apart; null when that is more than the caller has, nothing when it is
  // below 0.
  template <class T>
  T* array(const std::vector<T>& from, int64_t count, size_t stride = sizeof(T)) {
    if (count > static_cast<int64_t>(from.size()) || stride > 256) return nullptr;
    count = std::max<int64_t>(count, 0);
    uint8_t* const to = bytes(static_cast<size_t>(count) * stride);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) std::memcpy(to + i * stride, &from[i], std::min(stride, sizeof(T)));
    return reinterpret_cast<T*>(to);
  }

  // Room for `count` elements; null when that is more than a caller has.
  uint8_t* room(uint64_t count, uint64_t size) {
    if (size != 0 && count > kMostBytes / size) return nullptr;
    return bytes(count * size);
  }

 private:
  std::vector<std::unique_ptr<uint8_t[]>> blocks_;
};

}  // namespace fuzz
