#include "tests/interpose/allocations.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#define MR_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// The driver's functions that take memory of the device, or pinned memory of the host, whatever their version.
constexpr const char* kNames[] = {
    "cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemAllocHost", "cuMemHostAlloc", "cuMemHostRegister",
    "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemCreate", "cuMemPoolCreate", "cuArrayCreate", "cuArray3DCreate",
    "cuMipmappedArrayCreate"};

// All of them take at most six words, and so do both forms of cuGetProcAddress.
using Word = unsigned long;
using Function = int (*)(Word, Word, Word, Word, Word, Word);

constexpr int kSlots = 64;
Function real[kSlots];
const char* names[kSlots];
std::atomic<int> slots{0};
std::atomic<unsigned long> calls{0};

void count(const char* name) {
  calls.fetch_add(1);
  const char* const path = std::getenv("MILLRACE_ALLOCATIONS");
  if (path == nullptr) return;
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return;
  char line[64];
  const size_t length = strnlen(name, sizeof line - 1);
  std::memcpy(line, name, length);
  line[length] = '\n';
  if (write(file, line, length + 1) < 0) std::abort();  // a count that is lost is no proof
  close(file);
}

template <int slot>
int counted(Word a, Word b, Word c, Word d, Word e, Word f) {
  count(names[slot]);
  return real[slot](a, b, c, d, e, f);
}

template <int slot = 0>
Function counted_of(int index) {
  if constexpr (slot < kSlots) {
    return index == slot ? &counted<slot> : counted_of<slot + 1>(index);
  } else {
    std::abort();
  }
}

// `function`, or what counts its calls and then calls it.
void* watched(const char* name, void* function) {
  if (function == nullptr) return nullptr;
  for (const char* each : kNames) {
    const size_t length = std::strlen(each);
    if (std::strncmp(name, each, length) != 0 || (name[length] != 0 && name[length] != '_')) continue;
    for (int i = 0; i < slots.load(); ++i)
      if (reinterpret_cast<void*>(real[i]) == function) return reinterpret_cast<void*>(counted_of(i));
    const int slot = slots.load();
    if (slot == kSlots) std::abort();
    real[slot] = reinterpret_cast<Function>(function);
    names[slot] = each;
    slots.store(slot + 1);
    return reinterpret_cast<void*>(counted_of(slot));
  }
  return function;
}

// How the runtime finds the driver's functions: each version of cuGetProcAddress gives functions that are watched.
Function lookups[2];

template <int version>
int look_up(Word symbol, Word out, Word cuda_version, Word flags, Word status, Word unused) {
  const int result = lookups[version](symbol, out, cuda_version, flags, status, unused);
  if (result != 0) return result;
  const char* const name = reinterpret_cast<const char*>(symbol);
  void** const found = reinterpret_cast<void**>(out);
  if (std::strcmp(name, "cuGetProcAddress") == 0 && *found != nullptr) {
    const bool second = cuda_version >= 12000;
    lookups[second] = reinterpret_cast<Function>(*found);
    *found = second ? reinterpret_cast<void*>(&look_up<1>) : reinterpret_cast<void*>(&look_up<0>);
  } else {
    *found = watched(name, *found);
  }
  return result;
}

using Dlsym = void* (*)(void*, const char*);

Dlsym real_dlsym() {
  static const Dlsym found = [] {
    for (const char* version : {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"})
      if (void* const symbol = dlvsym(RTLD_NEXT, "dlsym", version)) return reinterpret_cast<Dlsym>(symbol);
    std::abort();
  }();
  return found;
}

}  // namespace

// Stands before the C library's for every caller of the process.
MR_EXPORT void* dlsym(void* handle, const char* name) noexcept {
  void* const found = real_dlsym()(handle, name);
  if (found == nullptr || std::strncmp(name, "cu", 2) != 0) return found;
  if (std::strcmp(name, "cuGetProcAddress") == 0) {
    lookups[0] = reinterpret_cast<Function>(found);
    return reinterpret_cast<void*>(&look_up<0>);
  }
  if (std::strcmp(name, "cuGetProcAddress_v2") == 0) {
    lookups[1] = reinterpret_cast<Function>(found);
    return reinterpret_cast<void*>(&look_up<1>);
  }
  return watched(name, found);
}

MR_EXPORT unsigned long mr_allocations() { return calls.load(); }
