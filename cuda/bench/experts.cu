// experts: the grouped GEMMs of prompts of mixtures, by model, weight type, rows and pairs of a tile of the plan: microseconds of gate
// and up, and of down, and their rate. Tiles of 64 pairs are multiplied by mma, of 128 by wgmma where the device has it. Rows choose
// their experts evenly.
//
//   cuda_bench_experts [--types q8_0,q4_k,mxfp4,bf16] [--rows 256,512,768,1024,2048] [--models qwen3-30b,gpt-oss-20b,gemma4-26b]
#include <random>

#include "bench/gemm_bench.h"
#include "kernels/experts/experts.h"

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

void measure(const Mixture& m, const NamedType& type, int32_t rows, int32_t tile, cudaStream_t stream) {
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
  pair.kind = GemmClass::kPrefill;
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
  const auto seconds = [&](const ExpertGemmArgs& args) {
    return time_captured(stream, 8, [&](int) { CHECK(launch_expert_gemm(args, Stream{stream, true})); });
  };
  const double of_pair = seconds(pair), of_down = seconds(single);
  const double work = 2.0 * static_cast<double>(planned.pairs) * static_cast<double>(m.width * m.hidden) * 1e-12;
  std::printf("%-12s %-6s %5d rows %4d pairs an expert, tiles of %3d  gate+up %8.1f us %5.0f TFLOP/s  down %8.1f us %5.0f TFLOP/s\n",
              m.name, type.name, rows, planned.pairs / m.experts, tile, of_pair * 1e6, 2 * work / of_pair, of_down * 1e6,
              work / of_down);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> types = {"q8_0", "q4_k", "mxfp4", "bf16"}, models, rows = {"256", "512", "768", "1024", "2048"};
  for (const Mixture& m : kMixtures) models.emplace_back(m.name);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    (flag == "--types" ? types : flag == "--models" ? models : rows) = split(argv[i + 1]);
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
      for (const std::string& count : rows)
        for (const int32_t tile : {kManyTile, kManyWgmmaTile}) measure(m, type, std::atoi(count.c_str()), tile, stream);
    }
  }
  CHECK(cudaStreamDestroy(stream));
  return 0;
}
