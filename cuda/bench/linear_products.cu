// The matrix products of a step, by model, weight type and number of tokens: time, bytes, share of the device's copy
// bandwidth measured in the same run, and TFLOP/s. Launches follow one another as programmatic dependents in one graph, over
// at least four copies of the weights and 256 MiB, so that no weight is met in the second level cache.
//
//   cuda_bench_linear_products [--types bf16,q8_0,q4_k] [--tokens 1,8,64,128] [--models 8B,1B] [--prefill 512,4096] [--act bf16,f16]
//                              [--matrices qkv,o,gate+up,down,head]
//
// Without --act, activations are f16 where weights are or are quantised, else bf16: what a worker chooses.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/linear/product.h"
#include "kernels/linear/terms.h"

namespace {

using namespace mr::cuda;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorName(error));
  std::exit(1);
}
#define CHECK(call) check((call), #call)

// Words that are finite as f16, bf16 and f32.
__global__ void fill_random(uint32_t* out, size_t words, uint32_t seed) {
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
  ProductEnd end;
  int32_t layers;
  bool head;
};

struct Model {
  const char* name;
  std::vector<Matrix> matrices;
};

const Model kModels[] = {
    {"8B",
     {{"qkv", {4096, 1024, 1024}, 3, 4096, ProductEnd::kStoreAct, 32, false},
      {"o", {4096}, 1, 4096, ProductEnd::kAddF32, 32, false},
      {"gate+up", {14336, 14336}, 2, 4096, ProductEnd::kSwiGLU, 32, false},
      {"down", {4096}, 1, 14336, ProductEnd::kAddF32, 32, false},
      {"head", {128256}, 1, 4096, ProductEnd::kStoreF32, 1, true}}},
    {"1B",
     {{"qkv", {2048, 512, 512}, 3, 2048, ProductEnd::kStoreAct, 16, false},
      {"o", {2048}, 1, 2048, ProductEnd::kAddF32, 16, false},
      {"gate+up", {8192, 8192}, 2, 2048, ProductEnd::kSwiGLU, 16, false},
      {"down", {2048}, 1, 8192, ProductEnd::kAddF32, 16, false},
      {"head", {128256}, 1, 2048, ProductEnd::kStoreF32, 1, true}}}};

struct NamedType {
  const char* name;
  int32_t type;
};
const NamedType kTypes[] = {{"f32", kF32},   {"f16", kF16},   {"bf16", kBF16}, {"q8_0", kQ8_0}, {"q4_0", kQ4_0}, {"q4_1", kQ4_1},
                            {"q5_0", kQ5_0}, {"q5_1", kQ5_1}, {"q4_k", kQ4_K}, {"q5_k", kQ5_K}, {"q6_k", kQ6_K}, {"iq4_nl", kIQ4_NL}};

// Seconds of one replay, the median of 7 after a first.
double time_graph(cudaGraphExec_t graph, cudaStream_t stream) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 8; ++i) {
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
double time_captured(cudaStream_t stream, int launches, F&& launch_one) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) launch_one(i);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiateWithFlags(&executable, graph, 0));
  const double seconds = time_graph(executable, stream) / launches;
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  return seconds;
}

__global__ void __launch_bounds__(512) copy_words(const uint4* from, uint4* to, size_t words) {
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

// Bytes a second, read and written, of the better of the driver's copy and a kernel's.
double copy_bandwidth(cudaStream_t stream) {
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

std::vector<std::string> split(const char* text) {
  std::vector<std::string> out(1);
  for (; *text != 0; ++text) {
    if (*text == ',') out.emplace_back();
    else out.back() += *text;
  }
  return out;
}

bool has(const std::vector<std::string>& list, const char* name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// Seconds of one product, its launches over copies of the weights in turn.
double time_product(const Matrix& m, int32_t type, Act act, ProductClass kind, int32_t tokens, const void* x, void* terms, void* out,
                    const DeviceBytes& weights, size_t copies, size_t copy_bytes, cudaStream_t stream) {
  const int launches = static_cast<int>(std::max<size_t>(copies, tokens > 256 ? 4 : 16));
  const auto once = [&](int i) {
    ProductArgs a;
    uint8_t* at = static_cast<uint8_t*>(weights.data) + static_cast<size_t>(i) % copies * copy_bytes;
    int64_t rows = 0;
    for (int32_t t = 0; t < m.count; ++t) rows += m.rows[t];
    int64_t first = 0;
    for (int32_t t = 0; t < m.count; ++t) {
      a.targets[t] = {{type, m.rows[t], m.cols, at}, nullptr, static_cast<uint8_t*>(out) + first * 2, rows};
      at += weight_packed_bytes(type, m.rows[t], m.cols);
      first += m.rows[t];
    }
    a.count = m.count;
    a.end = m.end;
    a.kind = kind;
    a.x = x;
    a.x_stride = m.cols;
    a.act = act;
    a.tokens = tokens;
    a.terms = terms;
    CHECK(launch_product(a, Stream{stream, true}));
  };
  return time_captured(stream, launches, once);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> types = {"bf16", "q8_0", "q4_k"}, models = {"8B", "1B"}, tokens = {"1", "8", "64", "128"};
  std::vector<std::string> prefill = {"512", "4096"}, acts, matrices;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    auto& list = flag == "--types"      ? types
                 : flag == "--models"   ? models
                 : flag == "--tokens"   ? tokens
                 : flag == "--act"      ? acts
                 : flag == "--matrices" ? matrices
                                        : prefill;
    list = split(argv[i + 1]);
  }
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(prepare_products());
  const double roof = copy_bandwidth(stream);
  std::printf("copy bandwidth %.0f GB/s\n%-5s %-7s %-8s %7s %10s %9s %7s %9s\n", roof * 1e-9, "model", "type", "matrix", "tokens", "us",
              "GB/s", "share", "TFLOP/s");
  for (const Model& model : kModels) {
    if (!has(models, model.name)) continue;
    for (const NamedType& type : kTypes) {
      if (!has(types, type.name)) continue;
      const bool f16 = acts.empty() ? type.type != kF32 && type.type != kBF16 : has(acts, "f16");
      const Act act = f16 ? Act::kF16 : Act::kBF16;
      std::vector<std::pair<int32_t, ProductClass>> runs;
      for (const std::string& n : tokens) {
        if (!n.empty()) runs.push_back({std::atoi(n.c_str()), ProductClass::kDecode});
      }
      for (const std::string& n : prefill) {
        if (!n.empty() && model.name[0] == '8') runs.push_back({std::atoi(n.c_str()), ProductClass::kPrefill});
      }
      std::vector<double> step(runs.size()), step_bytes(runs.size());
      for (const Matrix& m : model.matrices) {
        if (!matrices.empty() && !has(matrices, m.name)) continue;
        size_t bytes = 0;
        double flops = 0;
        for (int32_t t = 0; t < m.count; ++t) {
          bytes += weight_packed_bytes(type.type, m.rows[t], m.cols);
          flops += 2.0 * static_cast<double>(m.rows[t]) * static_cast<double>(m.cols);
        }
        const size_t copies = std::max<size_t>(4, (size_t{256} << 20) / bytes + 1);
        const DeviceBytes weights(copies * bytes);
        for (size_t r = 0; r < runs.size(); ++r) {
          const auto [n, kind] = runs[r];
          if (kind == ProductClass::kPrefill && m.head) continue;
          const DeviceBytes x(static_cast<size_t>(n) * static_cast<size_t>(m.cols) * 2);
          const DeviceBytes out(static_cast<size_t>(n) * static_cast<size_t>(m.rows[0] + m.rows[1] + m.rows[2]) * 4 + 4096);
          const DeviceBytes terms(static_cast<size_t>(term_bytes(n, m.cols)));
          const double seconds = time_product(m, type.type, act, kind, n, x.data, terms.data, out.data, weights, copies, bytes, stream);
          step[r] += seconds * m.layers;
          step_bytes[r] += static_cast<double>(bytes) * m.layers;
          std::printf("%-5s %-7s %-8s %6d%c %10.2f %9.0f %6.1f%% %9.1f\n", model.name, type.name, m.name, n,
                      kind == ProductClass::kPrefill ? 'p' : ' ', seconds * 1e6, static_cast<double>(bytes) / seconds * 1e-9,
                      static_cast<double>(bytes) / seconds / roof * 100, flops * n / seconds * 1e-12);
        }
      }
      for (size_t r = 0; r < runs.size(); ++r) {
        const auto [n, kind] = runs[r];
        std::printf("%-5s %-7s %-8s %6d%c %10.2f %9.0f %6.1f%%  products alone: %.0f tok/s\n", model.name, type.name, "step", n,
                    kind == ProductClass::kPrefill ? 'p' : ' ', step[r] * 1e6, step_bytes[r] / step[r] * 1e-9,
                    step_bytes[r] / step[r] / roof * 100, n / step[r]);
      }
    }
  }
  return 0;
}
