// experts_gemm_fixture: stacks of matrices, choices of experts and launches for the tests of grouped GEMMs.
#pragma once

#include <algorithm>

#include "kernels/experts/grouped.h"
#include "tests/gemm_fixture.h"

namespace mr::cuda {

// Stack is matrices of random blocks that follow one another.
struct Stack {
  Stack(int32_t type, int64_t rows, int64_t cols, int32_t experts, std::mt19937& random)
      : file_each(weight_file_bytes(type, rows, cols)), memory(weight_packed_bytes(type, rows, cols) * static_cast<uint64_t>(experts)),
        weight{type, rows, cols, memory.data()} {
    for (int32_t e = 0; e < experts; ++e) {
      files.push_back(ordinary_file(type, rows, cols, random));
      Guarded source(files.back());
      EXPECT_EQ(launch_repack(source.data(), matrix_of(weight, e), Stream{}), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
  }
  // Rows [first, first + rows) of each matrix of another stack.
  Stack(const Stack& whole, int64_t first, int64_t rows)
      : file_each(whole.file_each / static_cast<uint64_t>(whole.weight.rows) * static_cast<uint64_t>(rows)),
        memory(weight_packed_bytes(whole.weight.type, rows, whole.weight.cols) * whole.files.size()),
        weight{whole.weight.type, rows, whole.weight.cols, memory.data()} {
    const auto begin = static_cast<int64_t>(whole.file_each) / whole.weight.rows * first;
    for (size_t e = 0; e < whole.files.size(); ++e) {
      files.emplace_back(whole.files[e].begin() + begin, whole.files[e].begin() + begin + static_cast<int64_t>(file_each));
      Guarded source(files.back());
      EXPECT_EQ(launch_repack(source.data(), matrix_of(weight, static_cast<int64_t>(e)), Stream{}), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
  }
  uint64_t file_each;
  std::vector<std::vector<uint8_t>> files;
  Guarded memory;
  PackedWeight weight;
};

// Choice is which experts each row uses: `used` ascending ids a row.
struct Choice {
  int32_t rows, used, experts;
  std::vector<int32_t> ids;
  int32_t pairs() const { return rows * used; }
};

inline Choice random_choice(int32_t rows, int32_t used, int32_t experts, std::mt19937& random) {
  Choice c{rows, used, experts, {}};
  for (int32_t r = 0; r < rows; ++r) {
    std::vector<int32_t> all(static_cast<size_t>(experts));
    for (int32_t e = 0; e < experts; ++e) all[static_cast<size_t>(e)] = e;
    std::shuffle(all.begin(), all.end(), random);
    all.resize(static_cast<size_t>(used));
    std::sort(all.begin(), all.end());
    c.ids.insert(c.ids.end(), all.begin(), all.end());
  }
  return c;
}

struct Call {
  GemmClass kind;
  Act act;
  int32_t activation = MR_ACT_SILU;
  float x_scale = 1, pair_scale = 1;
  int32_t tile = 0;  // pairs of a tile of the plan; 0: those of expert_tile
  const GroupedForm* form = nullptr;  // null: the kernel that launch_expert_gemm chooses
};

// Returns the output rows of all pairs, in bits: f32 of one target, act of two; nothing if the device does not have the form. Rows of x
// are those of `rows`.
inline std::vector<uint32_t> multiply(const Call& run, const Choice& choice, const Stack* const* stacks, int32_t count,
                                      const float* const* biases, const uint16_t* x, int64_t x_stride, int32_t x_share) {
  const auto pairs = static_cast<size_t>(choice.pairs()), experts = static_cast<size_t>(choice.experts);
  const int64_t width = stacks[0]->weight.rows, stride = round_up(width, 2);
  const size_t element = count == 2 ? 2 : 4;
  const int32_t tile = run.tile != 0 ? run.tile : expert_tile(run.kind, choice.experts, choice.pairs());
  const int32_t tiles = expert_tiles(choice.experts, choice.pairs(), tile);
  Guarded ids(choice.ids), list(pairs * 4), first(experts * 4), number(experts * 4), counts(4), done(4, 0);
  Guarded tile_memory(static_cast<size_t>(tiles) * sizeof(ExpertTile));
  Guarded dx(std::vector<uint16_t>(x, x + (choice.pairs() / x_share) * x_stride)), out(pairs * static_cast<size_t>(stride) * element);
  const ExpertPlan plan{list.as<int32_t>(),           first.as<int32_t>(),  number.as<int32_t>(),
                        tile_memory.as<ExpertTile>(), counts.as<int32_t>(), done.as<int32_t>()};
  EXPECT_EQ(launch_plan_experts({ids.as<int32_t>(), choice.pairs(), choice.experts, tile, plan}, Stream{}), cudaSuccess);
  ExpertGemmArgs args;
  std::vector<std::unique_ptr<Guarded>> device_biases;
  for (int32_t i = 0; i < count; ++i) {
    args.targets[i].weight = stacks[i]->weight;
    if (biases == nullptr) continue;
    device_biases.push_back(std::make_unique<Guarded>(std::vector<float>(biases[i], biases[i] + static_cast<int64_t>(experts) * width)));
    args.targets[i].bias = device_biases.back()->as<float>();
  }
  args.count = count;
  args.kind = run.kind;
  args.act = run.act;
  args.x = dx.data();
  args.x_stride = x_stride;
  args.x_share = x_share;
  args.out = out.data();
  args.out_stride = stride;
  args.plan = plan;
  args.tile = tile;
  args.rows = choice.rows;
  args.experts = choice.experts;
  args.pairs = choice.pairs();
  args.x_scale = run.x_scale;
  args.pair_scale = run.pair_scale;
  args.activation = run.activation;
  const cudaError_t error = run.form == nullptr ? launch_expert_gemm(args, Stream{}) : launch_expert_gemm_as(*run.form, args, Stream{});
  if (run.form != nullptr && error == cudaErrorNotSupported) return {};
  EXPECT_EQ(error, cudaSuccess);
  EXPECT_EQ(done.read<int32_t>()[0], 0) << "the plan's counter is not set back";
  const std::vector<uint8_t> bytes = out.read<uint8_t>();
  std::vector<uint32_t> bits;
  for (size_t p = 0; p < pairs; ++p) {
    for (int64_t r = 0; r < width; ++r) {
      uint32_t one = 0;
      std::memcpy(&one, bytes.data() + (p * static_cast<size_t>(stride) + static_cast<size_t>(r)) * element, element);
      bits.push_back(one);
    }
    const size_t row = p * static_cast<size_t>(stride), end = (row + static_cast<size_t>(stride)) * element;
    for (size_t at = (row + static_cast<size_t>(width)) * element; at < end; ++at)
      EXPECT_EQ(bytes[at], 0xa5) << "written past the end of a row";
  }
  return bits;
}

}  // namespace mr::cuda
