// experts: the grouped GEMMs of mixtures, by class, model, weight type, rows and kernel: microseconds of gate and up, and of down, and
// the rate: of operations for prompts, of the bytes of the experts that are read for decoding. Rows choose their experts evenly.
//
//   cuda_bench_experts [--classes decode,prefill] [--types q8_0,q4_k,mxfp4,bf16] [--models qwen3-30b,gpt-oss-20b,gemma4-26b]
//                      [--rows 8,16,32,64,128,256 of decode and 256,512,768,1024,2048 of prefill]
#include <random>

#include "bench/gemm_bench.h"
#include "kernels/experts/grouped.h"

namespace {

using namespace mr::cuda;
using namespace mr::cuda::bench;

struct Mixture {
  const char* name;
  int64_t hidden, width;
  int32_t experts, used, activation;
};
constexpr Mixture kMixtures[] = {{"qwen3-30b", 2048, 768, 128, 8, MR_ACT_SILU},
                                 {"gpt-oss-20b", 2880, 2880, 32, 4, MR_ACT_CLAMPED},
                                 {"gemma4-26b", 2816, 704, 128, 8, MR_ACT_GELU_TANH}};

// Kernel is a kernel of gate and up and one of down, and the pairs of a tile of their plan.
struct Kernel {
  const char* name;
  GemmClass kind;
  GroupedForm form, down;
  int32_t tile;
};
constexpr Kernel kKernels[] = {
    {"few_rows", GemmClass::kDecode, GroupedForm::kFew, GroupedForm::kFew, kLeastExpertTile},
    {"eight", GemmClass::kDecode, GroupedForm::kEight, GroupedForm::kEightPairs, kLeastExpertTile},
    {"several_rows", GemmClass::kDecode, GroupedForm::kSeveral, GroupedForm::kSeveral, kMostExpertTile},
    {"several_wgmma", GemmClass::kDecode, GroupedForm::kSeveralWgmma, GroupedForm::kSeveralWgmma, kDecodeWgmmaTile},
    {"many_rows", GemmClass::kPrefill, GroupedForm::kMany, GroupedForm::kMany, kManyTile},
    {"many_wgmma", GemmClass::kPrefill, GroupedForm::kManyWgmma, GroupedForm::kManyWgmma, kManyWgmmaTile}};

// Ascending ids of each row's experts.
std::vector<int32_t> random_ids(const Mixture& m, int32_t rows) {
  std::mt19937 random(7);
  std::vector<int32_t> ids, all(static_cast<size_t>(m.experts));
  for (int32_t e = 0; e < m.experts; ++e) all[static_cast<size_t>(e)] = e;
  for (int32_t r = 0; r < rows; ++r) {
    std::shuffle(all.begin(), all.end(), random);
    ids.insert(ids.end(), all.begin(), all.begin() + m.used);
    std::sort(ids.end() - m.used, ids.end());
  }
  return ids;
}

// A plan, and the memory that it is in.
struct Planned {
  Planned(const Mixture& m, int32_t rows, int32_t tile, cudaStream_t stream)
      : pairs(rows * m.used), ids(static_cast<size_t>(pairs) * 4), list(static_cast<size_t>(pairs) * 4),
        counts(static_cast<size_t>(m.experts) * 8 + 256),
        tiles(static_cast<size_t>(expert_tiles(m.experts, pairs, tile)) * sizeof(ExpertTile)) {
    int32_t* const numbers = static_cast<int32_t*>(counts.data);
    CHECK(cudaMemset(numbers, 0, static_cast<size_t>(m.experts) * 8 + 256));
    CHECK(cudaMemcpy(ids.data, random_ids(m, rows).data(), static_cast<size_t>(pairs) * 4, cudaMemcpyHostToDevice));
    plan = {static_cast<int32_t*>(list.data),      numbers + 32, numbers + 32 + m.experts,
            static_cast<ExpertTile*>(tiles.data), numbers,      numbers + 1};
    CHECK(launch_plan_experts({static_cast<const int32_t*>(ids.data), pairs, m.experts, tile, plan}, Stream{stream}));
  }
  int32_t pairs;
  DeviceBytes ids, list, counts, tiles;
  ExpertPlan plan;
};

// Returns how many experts the rows use.
int32_t active_experts(const Mixture& m, int32_t rows) {
  std::vector<int32_t> ids = random_ids(m, rows);
  std::sort(ids.begin(), ids.end());
  return static_cast<int32_t>(std::unique(ids.begin(), ids.end()) - ids.begin());
}

void measure(const Mixture& m, const NamedType& type, int32_t rows, const Kernel& kernel, cudaStream_t stream) {
  const int32_t tile = kernel.tile;
  const Planned planned(m, rows, tile, stream);
  const auto experts = static_cast<size_t>(m.experts), pairs = static_cast<size_t>(planned.pairs);
  const size_t up_bytes = weight_packed_bytes(type.type, m.width, m.hidden), down_bytes = weight_packed_bytes(type.type, m.hidden, m.width);
  const DeviceBytes gate(up_bytes * experts), up(up_bytes * experts), down(down_bytes * experts);
  const DeviceBytes x(static_cast<size_t>(rows * m.hidden) * 2), ffn(pairs * static_cast<size_t>(m.width) * 2);
  const DeviceBytes out(pairs * static_cast<size_t>(m.hidden) * 4);
  ExpertGemmArgs pair;
  pair.targets[0].weight = {type.type, m.width, m.hidden, static_cast<uint8_t*>(gate.data)};
  pair.targets[1].weight = {type.type, m.width, m.hidden, static_cast<uint8_t*>(up.data)};
  pair.count = 2;
  pair.kind = kernel.kind;
  pair.act = type.type == kBF16 ? Act::kBF16 : Act::kF16;
  pair.x = x.data;
  pair.x_stride = m.hidden;
  pair.x_share = m.used;
  pair.out = ffn.data;
  pair.out_stride = m.width;
  pair.plan = planned.plan;
  pair.tile = tile;
  pair.rows = rows;
  pair.experts = m.experts;
  pair.pairs = planned.pairs;
  pair.x_scale = 0x1p-16f;  // keeps gates in the range of a real model, where silu is fast
  pair.activation = m.activation;
  ExpertGemmArgs single = pair;
  single.targets[0].weight = {type.type, m.hidden, m.width, static_cast<uint8_t*>(down.data)};
  single.count = 1;
  single.x = ffn.data;
  single.x_stride = m.width;
  single.x_share = 1;
  single.out = out.data;
  single.out_stride = m.hidden;
  const cudaError_t first = launch_expert_gemm_as(kernel.form, pair, Stream{stream});
  if (first == cudaErrorNotSupported) return;
  CHECK(first);
  const auto seconds = [&](GroupedForm form, const ExpertGemmArgs& args) {
    return time_captured(stream, 8, [&](int) { CHECK(launch_expert_gemm_as(form, args, Stream{stream, true})); });
  };
  const double of_pair = seconds(kernel.form, pair), of_down = seconds(kernel.down, single), of_both = of_pair + of_down;
  std::printf("%-12s %-6s %5d rows %4d pairs an expert  %-13s  gate+up %8.1f us  down %8.1f us  both %8.1f us", m.name, type.name, rows,
              planned.pairs / m.experts, kernel.name, of_pair * 1e6, of_down * 1e6, of_both * 1e6);
  if (kernel.kind == GemmClass::kDecode) {
    const double bytes = static_cast<double>(active_experts(m, rows)) * static_cast<double>(2 * up_bytes + down_bytes);
    std::printf(" %6.0f GB/s\n", bytes * 1e-9 / of_both);
  } else {
    std::printf(" %6.0f TFLOP/s\n", 6.0 * static_cast<double>(planned.pairs) * static_cast<double>(m.width * m.hidden) * 1e-12 / of_both);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> classes = {"decode", "prefill"}, types = {"q8_0", "q4_k", "mxfp4", "bf16"}, models, rows;
  for (const Mixture& m : kMixtures) models.emplace_back(m.name);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    (flag == "--classes" ? classes : flag == "--types" ? types : flag == "--models" ? models : rows) = split(argv[i + 1]);
  }
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(prepare_expert_gemms());
  for (const Mixture& m : kMixtures) {
    if (!has(models, m.name)) continue;
    for (const NamedType& type : kTypes) {
      if (!has(types, type.name)) continue;
      // Blocks of 256 do not divide Gemma's and gpt-oss's rows.
      if (!weight_supported(type.type, m.width, m.hidden) || !weight_supported(type.type, m.hidden, m.width)) continue;
      for (const std::string& kind : classes) {
        const bool decode = kind == "decode";
        const std::vector<std::string> usual = decode ? std::vector<std::string>{"8", "16", "32", "64", "128", "256"}
                                                      : std::vector<std::string>{"256", "512", "768", "1024", "2048"};
        for (const std::string& count : rows.empty() ? usual : rows)
          for (const Kernel& kernel : kKernels)
            if ((kernel.kind == GemmClass::kDecode) == decode) measure(m, type, std::atoi(count.c_str()), kernel, stream);
      }
    }
  }
  CHECK(cudaStreamDestroy(stream));
  return 0;
}
