// Measured times of rounds (round_times.h) choose kernels on this device and change no bits.
#include "kernels/gemm/input_sums.h"
#include "kernels/gemm/round_times.h"
#include "tests/gemm_fixture.h"

namespace mr::cuda {
namespace {

TEST(MeasuredRounds, ChangeNoBits) {
  constexpr int32_t kRows = 9000, kCols = 4096;
  ASSERT_EQ(prepare_gemms(), cudaSuccess);
  std::mt19937 random(3);
  const auto outputs = [&](const std::vector<std::unique_ptr<Packed>>& weights, const Guarded& x, Act act, int32_t tokens, bool pair) {
    const int32_t width = pair ? kRows / 2 : kRows;  // in words
    const Guarded sums(static_cast<size_t>(input_sum_bytes(tokens, kCols)));
    Guarded out(static_cast<size_t>(tokens) * static_cast<size_t>(width) * 4);
    GemmArgs a;
    a.act = act;
    a.tokens = tokens;
    a.x = x.data();
    a.x_stride = kCols;
    a.input_sums = sums.data();
    a.count = pair ? 2 : 1;
    a.epilogue = pair ? Epilogue::kSwiGLU : Epilogue::kStoreF32;
    a.targets[0] = {weights[0]->weight, nullptr, out.data(), kRows};
    if (pair) a.targets[1] = {weights[1]->weight, nullptr, nullptr, 0};
    EXPECT_EQ(launch_gemm(a, Stream{}), cudaSuccess);
    return out.read<uint32_t>();
  };
  std::vector<std::vector<uint32_t>> before;
  for (const bool measured : {false, true}) {
    if (measured) {
      ASSERT_EQ(measure_round_times(nullptr), cudaSuccess);
      ASSERT_EQ(measure_round_times(nullptr), cudaSuccess) << "a second time";
    }
    random.seed(3);
    size_t i = 0;
    for (const int32_t type : {kBF16, kQ8_0, kQ4_K}) {
      std::vector<std::unique_ptr<Packed>> weights;
      for (int32_t k = 0; k < 2; ++k)
        weights.push_back(std::make_unique<Packed>(type, kRows, kCols, ordinary_file(type, kRows, kCols, random)));
      const Act act = acts_of(type)[0];
      for (const int32_t tokens : {65, 128, 200, 256}) {
        const Guarded x(random_inputs(act, tokens, kCols, kCols, random).bits);
        for (const bool pair : {false, true}) {
          std::vector<uint32_t> got = outputs(weights, x, act, tokens, pair);
          if (!measured) before.push_back(std::move(got));
          else EXPECT_TRUE(got == before[i++]) << "type " << type << ", " << tokens << " tokens" << (pair ? ", a pair" : "");
        }
      }
    }
  }
}

}  // namespace
}  // namespace mr::cuda
