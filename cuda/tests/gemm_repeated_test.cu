// GEMMs give the same bits launch after launch.
//
// Thousands of back-to-back launches are compared on the device, because a single comparison does not catch a race
// between a block's copies and loads that occurs once in several hundred. Weights of few bits are in the L2 cache, from
// which copies arrive soonest.
#include "kernels/gemm/input_sums.h"
#include "tests/gemm_fixture.h"

namespace mr::cuda {
namespace {

constexpr int32_t kRows = 7168, kCols = 4096, kLaunches = 2500;

struct Found {
  unsigned numbers, blocks;  // words that differ, and blocks of compare that found some
  int first_row, last_row, first_token, last_token;
};

// (tokens, words_each) words: kRows elements of f32, or two of them in a word of f16 or bf16.
__global__ void compare(const uint32_t* got, const uint32_t* want, int64_t words, int32_t words_each, Found* found) {
  int others = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < words; i += int64_t{gridDim.x} * blockDim.x) {
    if (got[i] == want[i]) continue;
    ++others;
    const int token = static_cast<int>(i / words_each), row = static_cast<int>(i % words_each * (kRows / words_each));
    atomicAdd(&found->numbers, 1u);
    atomicMin(&found->first_row, row);
    atomicMax(&found->last_row, row);
    atomicMin(&found->first_token, token);
    atomicMax(&found->last_token, token);
  }
  if (__syncthreads_or(others) != 0 && threadIdx.x == 0) atomicAdd(&found->blocks, 1u);
}

class Repeated : public testing::TestWithParam<TypeName> {
 protected:
  void SetUp() override {
    ASSERT_EQ(prepare_gemms(), cudaSuccess);
    const int32_t type = GetParam().type;
    for (auto& weight : weights_) weight = std::make_unique<Packed>(type, kRows, kCols, ordinary_file(type, kRows, kCols, random_));
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    dependent_ = has_dependents();
  }
  void TearDown() override { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }

  void play(GemmClass kind, bool pair, int32_t tokens) {
    SCOPED_TRACE(testing::Message() << (kind == GemmClass::kPrefill ? "prefill, " : "decode, ") << (pair ? "a pair, " : "one weight, ")
                                    << tokens << " tokens");
    const Act act = acts_of(GetParam().type)[0];
    const Guarded x(random_inputs(act, tokens, kCols, kCols, random_).bits);
    const Guarded input_sums(static_cast<size_t>(input_sum_bytes(tokens, kCols)));
    const int32_t words_each = pair ? kRows / 2 : kRows;
    const int64_t words = int64_t{tokens} * words_each;
    Guarded want(static_cast<size_t>(words) * 4), got(static_cast<size_t>(words) * 4);
    const Found none = {0, 0, kRows, -1, tokens, -1};
    Guarded found(std::vector<Found>{none});
    const auto launch_into = [&](const Guarded& out) {
      GemmArgs a;
      a.kind = kind;
      a.act = act;
      a.tokens = tokens;
      a.x = x.data();
      a.x_stride = kCols;
      a.input_sums = input_sums.data();
      a.count = pair ? 2 : 1;
      a.epilogue = pair ? Epilogue::kSwiGLU : Epilogue::kStoreF32;
      a.targets[0] = {weights_[0]->weight, nullptr, out.data(), kRows};
      if (pair) a.targets[1] = {weights_[1]->weight, nullptr, nullptr, 0};
      return launch_gemm(a, {stream_, dependent_});
    };
    const cudaError_t first = launch_into(want);
    // Before 9.0 a block may have too little shared memory for F32.
    if (first == cudaErrorNotSupported && GetParam().type == kF32 && !dependent_) return;
    ASSERT_EQ(first, cudaSuccess);
    for (int32_t i = 0; i < kLaunches; ++i) {
      ASSERT_EQ(launch_into(got), cudaSuccess);
      compare<<<264, 512, 0, stream_>>>(got.as<uint32_t>(), want.as<uint32_t>(), words, words_each, found.as<Found>());
    }
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
    Found f = found.read<Found>()[0];
    EXPECT_EQ(f.numbers, 0u) << "in rows " << f.first_row << " to " << f.last_row << " of tokens " << f.first_token << " to "
                             << f.last_token << "; " << f.blocks << " blocks of " << kLaunches << " comparisons met some";
    // The comparison itself works: one wrong word is found, and its position.
    ASSERT_EQ(cudaMemset(got.as<uint32_t>() + words - 1, 0xff, 4), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(found.data(), &none, sizeof none, cudaMemcpyHostToDevice), cudaSuccess);
    compare<<<264, 512, 0, stream_>>>(got.as<uint32_t>(), want.as<uint32_t>(), words, words_each, found.as<Found>());
    f = found.read<Found>()[0];
    EXPECT_EQ(f.numbers, 1u);
    EXPECT_EQ(f.first_row, kRows - kRows / words_each);
    EXPECT_EQ(f.last_token, tokens - 1);
  }

  std::mt19937 random_{29};
  std::unique_ptr<Packed> weights_[2];
  cudaStream_t stream_ = nullptr;
  bool dependent_ = false;
};

TEST_P(Repeated, DecodeGemmsAreTheSame) {
  for (const int32_t tokens : {1, 2, 8, 16, 32, 64, 128, 256})
    for (const bool pair : {false, true}) play(GemmClass::kDecode, pair, tokens);
}

TEST_P(Repeated, PrefillGemmsAreTheSame) {
  for (const int32_t tokens : {32, 64, 128, 512})
    for (const bool pair : {false, true}) play(GemmClass::kPrefill, pair, tokens);
}

INSTANTIATE_TEST_SUITE_P(All, Repeated, testing::ValuesIn(kTypeNames), name_of);

}  // namespace
}  // namespace mr::cuda
