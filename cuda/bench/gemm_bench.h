// gemm_bench: shared by the GEMM benchmarks: the matrices of a step, timing of captured launches, and the device's
// copy bandwidth. Launches follow one another as programmatic dependents in one graph, over at least four copies of the
// weights and 256 MiB, so that no weight is still in the L2 cache.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/input_sums.h"

namespace mr::cuda::bench {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorName(error));
  std::exit(1);
}
#define CHECK(call) check((call), #call)

// Words that are finite as f16, bf16 and f32.
static __global__ void fill_random(uint32_t* out, size_t words, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words; i += size_t{gridDim.x} * blockDim.x) {
    uint32_t h = static_cast<uint32_t>(i) * 0x9e3779b1u ^ seed;
    h = (h ^ h >> 15) * 0x85ebca6bu;
    out[i] = (h ^ h >> 13) & 0xbfffbfffu;
  }
}

struct DeviceBytes {
  explicit DeviceBytes(size_t bytes) {
    CHECK(cudaMalloc(&data, bytes));
    fill_random<<<1024, 256>>>(static_cast<uint32_t*>(data), bytes / 4, static_cast<uint32_t>(bytes));
    CHECK(cudaGetLastError());
  }
  ~DeviceBytes() { cudaFree(data); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  void* data = nullptr;
};

struct Matrix {
  const char* name;
  int64_t rows[3];
  int32_t count;
  int64_t cols;
  Epilogue epilogue;
  int32_t layers;
  bool head;
};

struct Model {
  const char* name;
  std::vector<Matrix> matrices;
};

inline const Model kModels[] = {
    {"8B",
     {{"qkv", {4096, 1024, 1024}, 3, 4096, Epilogue::kStoreF32, 32, false},
      {"o", {4096}, 1, 4096, Epilogue::kAddF32, 32, false},
      {"gate+up", {14336, 14336}, 2, 4096, Epilogue::kSwiGLU, 32, false},
      {"down", {4096}, 1, 14336, Epilogue::kAddF32, 32, false},
      {"head", {128256}, 1, 4096, Epilogue::kStoreF32, 1, true}}},
    {"1B",
     {{"qkv", {2048, 512, 512}, 3, 2048, Epilogue::kStoreF32, 16, false},
      {"o", {2048}, 1, 2048, Epilogue::kAddF32, 16, false},
      {"gate+up", {8192, 8192}, 2, 2048, Epilogue::kSwiGLU, 16, false},
      {"down", {2048}, 1, 8192, Epilogue::kAddF32, 16, false},
      {"head", {128256}, 1, 2048, Epilogue::kStoreF32, 1, true}}}};

struct NamedType {
  const char* name;
  int32_t type;
};
inline const NamedType kTypes[] = {{"f32", kF32},   {"f16", kF16},   {"bf16", kBF16}, {"q8_0", kQ8_0}, {"q4_0", kQ4_0}, {"q4_1", kQ4_1},
                            {"q5_0", kQ5_0}, {"q5_1", kQ5_1}, {"q4_k", kQ4_K}, {"q5_k", kQ5_K}, {"q6_k", kQ6_K}, {"iq4_nl", kIQ4_NL}, {"mxfp4", kMXFP4}, {"nvfp4", kNVFP4},
                            {"q2_k", kQ2_K}, {"q3_k", kQ3_K}, {"iq4_xs", kIQ4_XS}, {"iq3_s", kIQ3_S}};

// Returns the seconds of one replay, the median of `replays` after a warm-up.
inline double time_graph(cudaGraphExec_t graph, cudaStream_t stream, int replays = 7) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i <= replays; ++i) {
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(graph, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) times.push_back(ms);
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]) * 1e-3;
}

template <class F>
double time_captured(cudaStream_t stream, int launches, F&& launch_one, int replays = 7) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) launch_one(i);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiateWithFlags(&executable, graph, 0));
  const double seconds = time_graph(executable, stream, replays) / launches;
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  return seconds;
}

static __global__ void __launch_bounds__(512) copy_words(const uint4* from, uint4* to, size_t words) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  for (; i + 3 * step < words; i += 4 * step) {
    const uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
    to[i] = a;
    to[i + step] = b;
    to[i + 2 * step] = c;
    to[i + 3 * step] = d;
  }
  for (; i < words; i += step) to[i] = from[i];
}

// Returns bytes a second, read plus written, of the better of the driver's copy and a kernel's.
inline double copy_bandwidth(cudaStream_t stream) {
  const size_t bytes = size_t{2} << 30;
  const DeviceBytes from(bytes), to(bytes);
  const double driver = time_captured(stream, 4, [&](int) {
    CHECK(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice, stream));
  });
  const double kernel = time_captured(stream, 4, [&](int) {
    copy_words<<<132 * 4, 512, 0, stream>>>(static_cast<const uint4*>(from.data), static_cast<uint4*>(to.data), bytes / 16);
    CHECK(cudaGetLastError());
  });
  return 2 * static_cast<double>(bytes) / std::min(driver, kernel);
}

inline std::vector<std::string> split(const char* text) {
  std::vector<std::string> out(1);
  for (; *text != 0; ++text) {
    if (*text == ',') out.emplace_back();
    else out.back() += *text;
  }
  return out;
}

inline bool has(const std::vector<std::string>& list, const char* name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// Memory for GemmArgs::semaphores.
struct Semaphores : DeviceBytes {
  Semaphores() : DeviceBytes(kGemmSemaphores * sizeof(uint32_t)) { CHECK(cudaMemset(data, 0, kGemmSemaphores * sizeof(uint32_t))); }
};

// Returns the GEMM of a step's matrix over copy `copy` of its weights.
inline GemmArgs gemm_of(const Matrix& m, int32_t type, Act act, GemmClass kind, int32_t tokens, const void* x, void* input_sums,
                              const Semaphores& semaphores, void* out, const DeviceBytes& weights, size_t copy, size_t copy_bytes) {
  GemmArgs a;
  uint8_t* at = static_cast<uint8_t*>(weights.data) + copy * copy_bytes;
  int64_t rows = 0;
  for (int32_t t = 0; t < m.count; ++t) rows += m.rows[t];
  int64_t first = 0;
  for (int32_t t = 0; t < m.count; ++t) {
    a.targets[t] = {{type, m.rows[t], m.cols, at}, nullptr, static_cast<uint8_t*>(out) + first * 2, rows};
    at += weight_packed_bytes(type, m.rows[t], m.cols);
    first += m.rows[t];
  }
  a.count = m.count;
  a.epilogue = m.epilogue;
  a.kind = kind;
  a.x = x;
  a.x_stride = m.cols;
  a.act = act;
  a.tokens = tokens;
  a.x_scale = 0x1p-16f;  // keeps gates of random weights in the range of a real model, where silu is fast
  a.input_sums = input_sums;
  a.semaphores = static_cast<uint32_t*>(semaphores.data);
  return a;
}

// Bytes of a matrix's weights, and the number of copies in rotation.
inline size_t matrix_bytes(const Matrix& m, int32_t type) {
  size_t bytes = 0;
  for (int32_t t = 0; t < m.count; ++t) bytes += weight_packed_bytes(type, m.rows[t], m.cols);
  return bytes;
}
inline size_t copies_of(size_t bytes) { return std::max<size_t>(4, (size_t{256} << 20) / bytes + 1); }

// Multiplications and additions of a token.
inline double matrix_flops(const Matrix& m) {
  double flops = 0;
  for (int32_t t = 0; t < m.count; ++t) flops += 2.0 * static_cast<double>(m.rows[t]) * static_cast<double>(m.cols);
  return flops;
}

// Activations are f16 for weights that are f16 or quantised, otherwise bf16, as in a worker.
inline Act default_act(int32_t type) { return type != kF32 && type != kBF16 ? Act::kF16 : Act::kBF16; }

}  // namespace mr::cuda::bench
