// gemm: the GEMMs of a step, by model, weight type and number of tokens: time, bytes, share of the device's copy
// bandwidth measured in the same run, and TFLOP/s.
//
//   cuda_bench_gemm [--types bf16,q8_0,q4_k] [--tokens 1,8,64,128] [--models 8B,1B] [--prefill 512,4096]
//                   [--act bf16,f16] [--matrices qkv,o,gate+up,down,head]
//
// Without --act, activations are f16 for weights that are f16 or quantised, otherwise bf16, as in a worker.
#include "bench/gemm_bench.h"

namespace {

using namespace mr::cuda;
using namespace mr::cuda::bench;

// Returns the seconds of one GEMM; its launches rotate over copies of the weights.
double time_gemm(const Matrix& m, int32_t type, Act act, GemmClass kind, int32_t tokens, const void* x, void* input_sums,
                 const Semaphores& semaphores, void* out, const DeviceBytes& weights, size_t copies, size_t copy_bytes,
                 cudaStream_t stream) {
  const int launches = static_cast<int>(std::max<size_t>(copies, tokens > 256 ? 4 : 16));
  const auto once = [&](int i) {
    const GemmArgs a = gemm_of(m, type, act, kind, tokens, x, input_sums, semaphores, out, weights,
                               static_cast<size_t>(i) % copies, copy_bytes);
    CHECK(launch_gemm(a, Stream{stream, true}));
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
  CHECK(prepare_gemms());
  const Semaphores semaphores;
  const double roof = copy_bandwidth(stream);
  std::printf("copy bandwidth %.0f GB/s\n%-5s %-7s %-8s %7s %10s %9s %7s %9s\n", roof * 1e-9, "model", "type", "matrix", "tokens", "us",
              "GB/s", "share", "TFLOP/s");
  for (const Model& model : kModels) {
    if (!has(models, model.name)) continue;
    for (const NamedType& type : kTypes) {
      if (!has(types, type.name)) continue;
      const Act act = acts.empty() || quantised(type.type) ? default_act(type.type) : has(acts, "f16") ? Act::kF16 : Act::kBF16;
      std::vector<std::pair<int32_t, GemmClass>> runs;
      for (const std::string& n : tokens) {
        if (!n.empty()) runs.push_back({std::atoi(n.c_str()), GemmClass::kDecode});
      }
      for (const std::string& n : prefill) {
        if (!n.empty() && model.name[0] == '8') runs.push_back({std::atoi(n.c_str()), GemmClass::kPrefill});
      }
      std::vector<double> step(runs.size()), step_bytes(runs.size());
      for (const Matrix& m : model.matrices) {
        if (!matrices.empty() && !has(matrices, m.name)) continue;
        const size_t bytes = matrix_bytes(m, type.type), copies = copies_of(bytes);
        const double flops = matrix_flops(m);
        const DeviceBytes weights(copies * bytes);
        for (size_t r = 0; r < runs.size(); ++r) {
          const auto [n, kind] = runs[r];
          if (kind == GemmClass::kPrefill && m.head) continue;
          const DeviceBytes x(static_cast<size_t>(n) * static_cast<size_t>(m.cols) * 2);
          const DeviceBytes out(static_cast<size_t>(n) * static_cast<size_t>(m.rows[0] + m.rows[1] + m.rows[2]) * 4 + 4096);
          const DeviceBytes input_sums(static_cast<size_t>(input_sum_bytes(n, m.cols)));
          const double seconds = time_gemm(m, type.type, act, kind, n, x.data, input_sums.data, semaphores, out.data, weights,
                                           copies, bytes, stream);
          step[r] += seconds * m.layers;
          step_bytes[r] += static_cast<double>(bytes) * m.layers;
          std::printf("%-5s %-7s %-8s %6d%c %10.2f %9.0f %6.1f%% %9.1f\n", model.name, type.name, m.name, n,
                      kind == GemmClass::kPrefill ? 'p' : ' ', seconds * 1e6, static_cast<double>(bytes) / seconds * 1e-9,
                      static_cast<double>(bytes) / seconds / roof * 100, flops * n / seconds * 1e-12);
        }
      }
      for (size_t r = 0; r < runs.size(); ++r) {
        const auto [n, kind] = runs[r];
        std::printf("%-5s %-7s %-8s %6d%c %10.2f %9.0f %6.1f%%  products alone: %.0f tok/s\n", model.name, type.name, "step", n,
                    kind == GemmClass::kPrefill ? 'p' : ' ', step[r] * 1e6, step_bytes[r] / step[r] * 1e-9,
                    step_bytes[r] / step[r] / roof * 100, n / step[r]);
      }
    }
  }
  return 0;
}
