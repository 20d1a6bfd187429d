// cuda_runtime: the host emulates a device, for tests of kernels and launches without a GPU.
//
// Device memory is host memory. Work runs when it is put on a stream; while a stream is captured it is recorded
// instead, and runs with every launch of the graph. The threads of a block are fibers that run one after another,
// alternately in ascending and in descending order, from one barrier to the next, so a missing barrier changes results.
// Nothing here is fast.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <cstddef>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __grid_constant__

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorStubLibrary = 34,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorNoDevice = 100,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorNotReady = 600,
  cudaErrorNotSupported = 801,
  cudaErrorSystemNotReady = 802,
  cudaErrorUnknown = 999,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2,
                   cudaHostAllocPortable = 1;

namespace emulated {
struct Work;   // recorded during capture
struct Happened;
}  // namespace emulated
using cudaStream_t = struct EmulatedStream*;
using cudaEvent_t = emulated::Happened*;
using cudaGraph_t = emulated::Work*;
using cudaGraphExec_t = emulated::Work*;

struct cudaDeviceProp {
  int major = 9, minor = 0, multiProcessorCount = 4;
};

struct dim3 {
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};
struct int2 {
  int x, y;
};
struct uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// Must be defined by programs that need them: attributes of the device, and launches by a kernel's address.
enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
  cudaDevAttrMultiProcessorCount,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
constexpr int cudaSharedmemCarveoutMaxShared = 100;
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value);
template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes, cudaStream_t);

cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaGetLastError();
const char* cudaGetErrorName(cudaError_t);
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaMalloc(void** data, size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned);
template <class T>
cudaError_t cudaHostAlloc(T** data, size_t bytes, unsigned flags) { return cudaHostAlloc(reinterpret_cast<void**>(data), bytes, flags); }
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind);
cudaError_t cudaMemset(void* to, int value, size_t bytes);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t*, unsigned, int);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventQuery(cudaEvent_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t*, cudaGraph_t, unsigned long long);
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphDestroy(cudaGraph_t);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);

namespace emulated {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
// Of the fiber that runs.
extern thread_local Index thread_index, block_index, block_size, grid_size;

// Runs the work, or records it while a stream is captured.
cudaError_t put(std::function<void()> work);
// Runs a kernel's threads, block by block.
cudaError_t run_grid(dim3 grid, dim3 block, std::function<void()> thread);
extern uint64_t graphs_launched;

void yield();          // lets the block's other threads run until all of them wait
void barrier();        // of the block's threads that have not ended
void warp_barrier();   // of all 32 threads of a warp; aborts if one of them has ended

// The number of the memory, 0 or 1, through which the threads of a warp exchange values next. They alternate, so that one warp_barrier is
// enough for an exchange: a thread writes to the same memory again only after all threads came to the next barrier, past their reads.
uint32_t next_turn();

template <class T>
inline thread_local T exchanged[2][1024];

// The values of all 32 lanes, until the exchange after the next one.
template <class T>
const T* of_warp(const T& mine) {
  T* const values = exchanged<T>[next_turn()] + thread_index.x / 32 * 32;
  values[thread_index.x % 32] = mine;
  warp_barrier();
  return values;
}

template <class T>
T of_lane(T mine, int lane) { return of_warp(mine)[lane]; }

}  // namespace emulated

#define threadIdx (emulated::thread_index)
#define blockIdx (emulated::block_index)
#define blockDim (emulated::block_size)
#define gridDim (emulated::grid_size)

using std::max;
using std::min;

inline void __syncthreads() { emulated::barrier(); }
inline void __syncwarp() { emulated::warp_barrier(); }
inline void __threadfence() {}
// Counts in the block's shared words, because threads run one after another.
inline int __syncthreads_or(int v) {
  static thread_local int any;
  emulated::barrier();
  any = 0;
  emulated::barrier();
  any |= v;
  emulated::barrier();
  return any;
}
inline int __syncthreads_count(int v) {
  static thread_local int count;
  emulated::barrier();
  count = 0;
  emulated::barrier();
  count += v != 0 ? 1 : 0;
  emulated::barrier();
  return count;
}
template <class T>
T __ldcg(const T* from) { return *from; }
template <class T>
void __stcg(T* to, T v) { *to = v; }
template <class T>
T __shfl_down_sync(unsigned, T v, int by, int width = 32) {
  const int lane = static_cast<int>(threadIdx.x % 32), in = lane % width;
  return emulated::of_lane(v, in + by < width ? lane + by : lane);
}
template <class T>
T __shfl_sync(unsigned, T v, int from) { return emulated::of_lane(v, from); }
template <class T>
T __shfl_up_sync(unsigned, T v, int by) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return emulated::of_lane(v, lane >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned, bool v) {
  const bool* const values = emulated::of_warp(v);
  unsigned all = 0;
  for (int lane = 0; lane < 32; ++lane) all |= values[lane] ? 1u << lane : 0u;
  return all;
}
inline unsigned __reduce_add_sync(unsigned, unsigned v) {
  const unsigned* const values = emulated::of_warp(v);
  unsigned sum = 0;
  for (int lane = 0; lane < 32; ++lane) sum += values[lane];
  return sum;
}
inline unsigned __reduce_max_sync(unsigned, unsigned v) {
  const unsigned* const values = emulated::of_warp(v);
  return *std::max_element(values, values + 32);
}
inline unsigned __reduce_min_sync(unsigned, unsigned v) {
  const unsigned* const values = emulated::of_warp(v);
  return *std::min_element(values, values + 32);
}
inline bool __any_sync(unsigned mask, bool v) { return __ballot_sync(mask, v) != 0; }
template <class T>
T atomicAdd(T* to, T v) {
  const T before = *to;
  *to += v;
  return before;
}
template <class T>
T atomicMin(T* to, T v) {
  const T before = *to;
  *to = std::min(before, v);
  return before;
}
template <class T>
T atomicMax(T* to, T v) {
  const T before = *to;
  *to = std::max(before, v);
  return before;
}
inline unsigned atomicOr(unsigned* to, unsigned v) {
  const unsigned before = *to;
  *to |= v;
  return before;
}
template <class T>
T __shfl_sync(unsigned, T v, int from, int width) {
  return emulated::of_lane(v, static_cast<int>(threadIdx.x % 32) / width * width + from);
}
template <class T>
T __shfl_xor_sync(unsigned, T v, int across) { return emulated::of_lane(v, static_cast<int>(threadIdx.x % 32) ^ across); }
template <class To, class From>
__attribute__((always_inline)) inline To emulated_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
inline uint32_t __float_as_uint(float v) { return emulated_bits<uint32_t>(v); }
inline int __float_as_int(float v) { return emulated_bits<int>(v); }
inline float __uint_as_float(uint32_t v) { return emulated_bits<float>(v); }
inline float __int_as_float(int v) { return emulated_bits<float>(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline double __longlong_as_double(long long v) { return emulated_bits<double>(v); }
inline long long __double_as_longlong(double v) { return emulated_bits<long long>(v); }
// Byte i of the result is byte (selector >> 4 i) & 7 of the eight bytes of `high` and `low`.
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t out = 0;
  for (uint32_t i = 0; i < 4; ++i) out |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return out;
}
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline long long __double2ll_rn(double v) { return __builtin_llrint(v); }
