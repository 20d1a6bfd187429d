// structs: arguments that cross the ABI. Each begins with struct_size, how much of it the caller knows; both sides may be
// older or newer than the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "error.h"

namespace mr {

constexpr size_t kLargestStruct = 4096;  // far above any struct of the ABI: more is a caller's mistake

// struct_size as the caller wrote it. Throws INVALID_ARGUMENT for null and for what no struct has.
template <class T>
size_t struct_size(const T* in, const char* noun) {
  if (in == nullptr) fail(MR_INVALID_ARGUMENT, "%s is null", noun);
  size_t size = 0;
  std::memcpy(&size, in, sizeof size);
  if (size < sizeof size || size > kLargestStruct)
    fail(MR_INVALID_ARGUMENT, "struct_size of %s is %zu: want sizeof of the struct, %zu here", noun, size, sizeof(T));
  return size;
}

// A complete copy of a caller's struct: members it does not know are zero. What this engine does not know must be zero,
// since it would be ignored: else UNIMPLEMENTED.
template <class T>
T read_struct(const T* in, const char* noun) {
  const size_t size = struct_size(in, noun);
  const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(in);
  for (size_t i = sizeof(T); i < size; ++i)
    if (bytes[i] != 0) fail(MR_UNIMPLEMENTED, "%s has a member at offset %zu that this engine does not know", noun, i);
  T out{};
  std::memcpy(&out, in, std::min(size, sizeof(T)));
  out.struct_size = sizeof(T);
  return out;
}

// The same for a struct that this engine fills: members that a newer caller adds may hold anything.
template <class T>
T read_output(const T* in, const char* noun) {
  const size_t size = struct_size(in, noun);
  T out{};
  std::memcpy(&out, in, std::min(size, sizeof(T)));
  out.struct_size = sizeof(T);
  return out;
}

// The part of an output that the caller knows; struct_size stays the caller's.
template <class T>
void write_struct(const T& from, T* out) {
  const size_t size = std::min(out->struct_size, sizeof(T));
  if (size > sizeof(size_t))
    std::memcpy(reinterpret_cast<unsigned char*>(out) + sizeof(size_t),
                reinterpret_cast<const unsigned char*>(&from) + sizeof(size_t), size - sizeof(size_t));
}

}  // namespace mr
