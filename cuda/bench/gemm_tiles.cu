// gemm_tiles: the GEMMs of prompts in every shape that the device can hold, by model, weight type, matrix and tokens:
// time, share of two roofs measured in the same run, and the time that the cost model expects. Roofs: the weights'
// bytes at the copy bandwidth, and the rate of wgmma alone.
//
//   cuda_bench_gemm_tiles [--types bf16,q8_0,q4_k] [--tokens 16,32,64,128,256,512,1024,4096] [--models 8B,1B]
//                         [--matrices qkv,o,gate+up,down] [--shapes FILE]
//
// Standard output has a line for each GEMM: the chosen and the fastest shape. FILE has one for each shape:
//   MODEL TYPE MATRIX TOKENS ROWSxTOKENS ROWSxTOKENS(cluster) MICROSECONDS EXPECTED
// Shapes that are expected to take more than three times the least are left out.
#include "bench/gemm_bench.h"
#include "kernels/gemm/prefill_wgmma.h"
#include "kernels/gemm/wgmma.cuh"

namespace {

using namespace mr::cuda;
using namespace mr::cuda::bench;

constexpr int32_t kRoofThreads = 256, kRoofTokens = 256, kRoofSteps = 4096;

// Two warpgroups multiply the contents of shared memory, 64 rows by 256 tokens each, step after step.
__global__ void __launch_bounds__(kRoofThreads) multiply_only(float* out, int32_t steps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t memory[];
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < kRoofTokens * 128 / 4; i += kRoofThreads)
    reinterpret_cast<uint32_t*>(memory)[i] = static_cast<uint32_t>(i) * 0x9e3779b1u & 0xbfffbfffu;
  shared_fence();
  __syncthreads();
  const uint64_t rows = swizzled_rows(kept_address(memory));
  uint32_t a[4];
  for (uint32_t i = 0; i < 4; ++i) a[i] = (threadIdx.x * 4 + i) * 0x85ebca6bu & 0xbfffbfffu;
  float sums[kRoofTokens / 2] = {};
  for (int32_t step = 0; step < steps; step += 4) {
    wgmma_fence();
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) wgmma_m64<__nv_bfloat16>(sums, a, rows + i * 2);
    wgmma_commit();
    wgmma_wait<0>();
  }
  float all = 0;
  for (const float s : sums) all += s;
  if (all == 0.125f) out[0] = all;
#endif
}

// Returns multiplications and additions a second; 0 without wgmma.
double multiply_rate(int32_t device, cudaStream_t stream) {
  int32_t sms = 0;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  const DeviceBytes out(256);
  CHECK(cudaFuncSetAttribute(multiply_only, cudaFuncAttributeMaxDynamicSharedMemorySize, kRoofTokens * 128));
  const double seconds = time_captured(stream, 4, [&](int) {
    multiply_only<<<static_cast<unsigned>(sms), kRoofThreads, kRoofTokens * 128, stream>>>(static_cast<float*>(out.data), kRoofSteps);
    CHECK(cudaGetLastError());
  });
  return 2.0 * sms * (kRoofThreads / 2) * kRoofTokens * 16.0 * kRoofSteps / seconds;
}

struct Measured {
  PrefillShape shape;
  double seconds = 0, expected = 0;
};

std::string name_of(const PrefillShape& shape) {
  const auto [rows, tokens] = kPrefillFormList[shape.form];
  char text[64];
  std::snprintf(text, sizeof text, "%dx%d %dx%d", rows, tokens, shape.cluster.rows, shape.cluster.tokens);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> types = {"bf16", "q8_0", "q4_k"}, models = {"8B", "1B"}, matrices = {"qkv", "o", "gate+up", "down"}, file;
  std::vector<std::string> tokens = {"16", "32", "64", "128", "256", "512", "1024", "4096"};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    auto& list = flag == "--types"      ? types
                 : flag == "--models"   ? models
                 : flag == "--tokens"   ? tokens
                 : flag == "--matrices" ? matrices
                                        : file;
    list = split(argv[i + 1]);
  }
  std::FILE* const every = file.empty() ? nullptr : std::fopen(file[0].c_str(), "w");
  cudaStream_t stream;
  int device = 0;
  CHECK(cudaGetDevice(&device));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(prepare_gemms());
  if (!wgmma_available(device)) {
    std::printf("no wgmma here: products of prompts have one shape\n");
    return 0;
  }
  const Semaphores semaphores;
  const double copies_a_second = copy_bandwidth(stream), rate = multiply_rate(device, stream);
  std::printf("copy bandwidth %.0f GB/s, wgmma alone %.0f TFLOP/s\n%-5s %-5s %-8s %6s  %-12s %9s %9s  %-12s %9s %6s %6s %6s\n",
              copies_a_second * 1e-9, rate * 1e-12, "model", "type", "matrix", "tokens", "chosen", "us", "expected", "fastest", "us",
              "ratio", "bytes", "wgmma");
  for (const Model& model : kModels) {
    if (!has(models, model.name)) continue;
    for (const NamedType& type : kTypes) {
      if (!has(types, type.name)) continue;
      for (const Matrix& m : model.matrices) {
        if (!has(matrices, m.name)) continue;
        const size_t bytes = matrix_bytes(m, type.type), copies = copies_of(bytes);
        const DeviceBytes weights(copies * bytes);
        for (const std::string& count : tokens) {
          const int32_t n = std::atoi(count.c_str());
          const DeviceBytes x(static_cast<size_t>(n) * static_cast<size_t>(m.cols) * 2);
          const DeviceBytes out(static_cast<size_t>(n) * static_cast<size_t>(m.rows[0] + m.rows[1] + m.rows[2]) * 4 + 4096);
          const auto product = [&](int i) {
            return gemm_of(m, type.type, default_act(type.type), GemmClass::kPrefill, n, x.data, nullptr, semaphores, out.data,
                              weights, static_cast<size_t>(i) % copies, bytes);
          };
          const PrefillShape chosen = fastest_prefill_wgmma(device, product(0), 0, m.count);
          const int64_t least = prefill_wgmma_time(chosen, device, product(0), 0, m.count);
          Measured best, own;
          for (int32_t form = 0; form < kPrefillForms; ++form) {
            for (const PrefillCluster& cluster : kPrefillClusters) {
              const PrefillShape shape{form, cluster};
              const int64_t expected = prefill_wgmma_time(shape, device, product(0), 0, m.count);
              if (expected / 3 > least) continue;
              const int launches = n > 256 ? 4 : static_cast<int>(std::max<size_t>(copies, 16));
              const double seconds = time_captured(
                  stream, launches, [&](int i) { CHECK(launch_prefill_wgmma_as(shape, device, product(i), 0, m.count, Stream{stream, true})); },
                  n > 256 ? 3 : 5);
              const Measured here{shape, seconds, static_cast<double>(expected) * 1e-6};
              if (every != nullptr) {
                std::fprintf(every, "%s %s %s %d %s %.2f %.2f\n", model.name, type.name, m.name, n, name_of(shape).c_str(), seconds * 1e6,
                             here.expected);
              }
              if (best.seconds == 0 || seconds < best.seconds) best = here;
              if (form == chosen.form && cluster.rows == chosen.cluster.rows && cluster.tokens == chosen.cluster.tokens) own = here;
            }
          }
          std::printf("%-5s %-5s %-8s %6d  %-12s %9.2f %9.2f  %-12s %9.2f %6.3f %5.1f%% %5.1f%%\n", model.name, type.name, m.name, n,
                      name_of(own.shape).c_str(), own.seconds * 1e6, own.expected, name_of(best.shape).c_str(), best.seconds * 1e6,
                      own.seconds / best.seconds, static_cast<double>(bytes) / best.seconds / copies_a_second * 100,
                      matrix_flops(m) * n / best.seconds / rate * 100);
        }
      }
    }
  }
  if (every != nullptr) std::fclose(every);
  return 0;
}
