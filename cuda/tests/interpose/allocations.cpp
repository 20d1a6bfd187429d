#include "tests/interpose/allocations.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <mutex>

#define MR_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Watched is a driver function that is watched, in any version.
struct Watched {
  const char* name;
  bool counted;  // it allocates device memory, or pinned host memory
  int kind;      // MR_DRIVER_*, or -1: it never fails
};
constexpr Watched kWatched[] = {
    {"cuMemAlloc", true, MR_DRIVER_ALLOC},
    {"cuMemAllocPitch", true, -1},
    {"cuMemAllocManaged", true, -1},
    {"cuMemAllocHost", true, MR_DRIVER_HOST_ALLOC},
    {"cuMemHostAlloc", true, MR_DRIVER_HOST_ALLOC},
    {"cuMemHostRegister", true, -1},
    {"cuMemAllocAsync", true, -1},
    {"cuMemAllocFromPoolAsync", true, -1},
    {"cuMemCreate", true, -1},
    {"cuMemPoolCreate", true, -1},
    {"cuArrayCreate", true, -1},
    {"cuArray3DCreate", true, -1},
    {"cuMipmappedArrayCreate", true, -1},
    {"cuMemFree", false, MR_DRIVER_FREE},
    {"cuMemFreeHost", false, MR_DRIVER_HOST_FREE},
    {"cuMemcpyAsync", false, MR_DRIVER_COPY},
    {"cuMemcpyHtoDAsync", false, MR_DRIVER_COPY},
    {"cuMemcpyDtoHAsync", false, MR_DRIVER_COPY},
    {"cuMemcpyDtoDAsync", false, MR_DRIVER_COPY},
    {"cuMemcpy2DAsync", false, MR_DRIVER_COPY},
    {"cuMemsetD8Async", false, MR_DRIVER_FILL},
    {"cuEventRecord", false, MR_DRIVER_EVENT_RECORD},
    {"cuEventSynchronize", false, MR_DRIVER_WAIT},
    {"cuStreamSynchronize", false, MR_DRIVER_WAIT},
    {"cuLaunchKernelEx", false, MR_DRIVER_LAUNCH},
    {"cuGraphLaunch", false, MR_DRIVER_LAUNCH},
};

// All of them have at most six words of arguments, and so do both forms of cuGetProcAddress. cuLaunchKernel has eleven.
using Word = unsigned long;
using Function = int (*)(Word, Word, Word, Word, Word, Word);
using Launch = int (*)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);

constexpr int kSlots = 128;
Function real[kSlots];
const Watched* watches[kSlots];
std::atomic<int> slots{0};
std::atomic<unsigned long> calls{0};
std::atomic<Function> allocate_managed{nullptr};
std::atomic<bool> managed{false};
std::atomic<Function> thread_device{nullptr};  // cuCtxGetDevice
std::atomic<int> failing_device{-1};           // mr_driver_fail_on

struct Failures {
  unsigned long skip = 0, count = 0, failed = 0;
  int result = 0;
};
std::mutex mutex;  // guards what follows
Failures failures[MR_DRIVER_KINDS];
std::map<Word, Word>& blocks() {  // of device memory, by address; the driver may be called after this library's destructors
  static std::map<Word, Word>* const all = new std::map<Word, Word>;
  return *all;
}

// Returns whether calls of this thread may fail.
bool may_fail_here() {
  const int wanted = failing_device.load();
  int own = -1;
  return wanted < 0 || (thread_device.load()(reinterpret_cast<Word>(&own), 0, 0, 0, 0, 0) == 0 && own == wanted);
}

// Returns the error with which the call fails, or 0.
int failure(int kind) {
  if (kind < 0 || !may_fail_here()) return 0;
  const std::lock_guard<std::mutex> lock(mutex);
  Failures& of = failures[kind];
  if (of.count == 0) return 0;
  if (of.skip != 0) {
    --of.skip;
    return 0;
  }
  --of.count;
  ++of.failed;
  return of.result;
}

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
  if (write(file, line, length + 1) < 0) std::abort();  // a lost count would prove nothing
  close(file);
}

void remember(Word address, Word size) {
  const std::lock_guard<std::mutex> lock(mutex);
  blocks()[address] = size;
}

// Removes the block and returns its size, or 0 if it is unknown.
Word forget(Word address) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = blocks().find(address);
  if (found == blocks().end()) return 0;
  const Word size = found->second;
  blocks().erase(found);
  return size;
}

template <int slot>
int counted(Word a, Word b, Word c, Word d, Word e, Word f) {
  const Watched& watch = *watches[slot];
  if (watch.counted) count(watch.name);
  if (const int result = failure(watch.kind); result != 0) return result;
  constexpr Word kAttachGlobal = 1;
  switch (watch.kind) {
    case MR_DRIVER_ALLOC: {
      const Function other = managed.load() ? allocate_managed.load() : nullptr;
      const int result = other != nullptr ? other(a, b, kAttachGlobal, 0, 0, 0) : real[slot](a, b, c, d, e, f);
      if (result == 0) remember(*reinterpret_cast<const Word*>(a), b);
      return result;
    }
    case MR_DRIVER_FREE: {
      const Word size = forget(a);  // before the driver reuses the address in another thread
      const int result = real[slot](a, b, c, d, e, f);
      if (result != 0 && size != 0) remember(a, size);
      return result;
    }
    default: return real[slot](a, b, c, d, e, f);
  }
}

template <int slot = 0>
Function counted_of(int index) {
  if constexpr (slot < kSlots) {
    return index == slot ? &counted<slot> : counted_of<slot + 1>(index);
  } else {
    std::abort();
  }
}

constexpr int kLaunches = 4;  // versions of cuLaunchKernel
Launch launches[kLaunches];

template <int version>
int launch(Word a, Word b, Word c, Word d, Word e, Word f, Word g, Word h, Word i, Word j, Word k) {
  if (const int result = failure(MR_DRIVER_LAUNCH); result != 0) return result;
  return launches[version](a, b, c, d, e, f, g, h, i, j, k);
}

void* watched_launch(void* function) {
  constexpr Launch kWatching[kLaunches] = {&launch<0>, &launch<1>, &launch<2>, &launch<3>};
  const std::lock_guard<std::mutex> lock(mutex);
  for (int i = 0; i < kLaunches; ++i) {
    if (launches[i] == nullptr) launches[i] = reinterpret_cast<Launch>(function);
    if (reinterpret_cast<void*>(launches[i]) == function) return reinterpret_cast<void*>(kWatching[i]);
  }
  std::abort();
}

// Returns `function`, or a wrapper that counts its calls.
void* watched(const char* name, void* function) {
  if (function == nullptr) return nullptr;
  if (std::strcmp(name, "cuLaunchKernel") == 0 || std::strcmp(name, "cuLaunchKernel_ptsz") == 0) return watched_launch(function);
  for (const Watched& each : kWatched) {
    const size_t length = std::strlen(each.name);
    if (std::strncmp(name, each.name, length) != 0 || (name[length] != 0 && name[length] != '_')) continue;
    const std::lock_guard<std::mutex> lock(mutex);
    for (int i = 0; i < slots.load(); ++i)
      if (reinterpret_cast<void*>(real[i]) == function) return reinterpret_cast<void*>(counted_of(i));
    const int slot = slots.load();
    if (slot == kSlots) std::abort();
    real[slot] = reinterpret_cast<Function>(function);
    watches[slot] = &each;
    slots.store(slot + 1);
    return reinterpret_cast<void*>(counted_of(slot));
  }
  return function;
}

// The runtime finds the driver's functions through these: each version of cuGetProcAddress returns watched functions.
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

Function of_driver(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) std::abort();
  return reinterpret_cast<Function>(real_dlsym()(driver, name));
}

}  // namespace

// Precedes the C library's dlsym for every caller of the process.
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

MR_EXPORT unsigned long mr_device_bytes() {
  const std::lock_guard<std::mutex> lock(mutex);
  unsigned long sum = 0;
  for (const auto& block : blocks()) sum += block.second;
  return sum;
}

MR_EXPORT void mr_driver_fail(int kind, unsigned long skip, unsigned long count, int result) {
  const std::lock_guard<std::mutex> lock(mutex);
  Failures& of = failures[kind];
  of.skip = skip;
  of.count = count;
  of.result = result;
}

MR_EXPORT unsigned long mr_driver_failed(int kind) {
  const std::lock_guard<std::mutex> lock(mutex);
  return failures[kind].failed;
}

MR_EXPORT void mr_driver_fail_on(int device) {
  if (device >= 0) thread_device.store(of_driver("cuCtxGetDevice"));
  failing_device.store(device);
}

MR_EXPORT void mr_driver_manage(int on) {
  allocate_managed.store(of_driver("cuMemAllocManaged"));
  managed.store(on != 0);
}
