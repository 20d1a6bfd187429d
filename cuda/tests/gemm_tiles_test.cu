// Every kernel that a GEMM's size may select gives the bits that a token gets alone, also if a block processes several
// tiles.
#include <array>

#include "kernels/elementwise.h"
#include "kernels/gemm/input_sums.h"
#include "kernels/gemm/m128_wgmma.h"
#include "kernels/gemm/prefill_wgmma.h"
#include "kernels/gemm/round_times.h"
#include "kernels/gemm/skinny_wgmma.h"
#include "tests/gemm_fixture.h"

namespace mr::cuda {
namespace {

class Tiles : public testing::TestWithParam<int32_t> {
 protected:
  struct Shape {
    int64_t rows[3];
    int32_t count;
    int64_t cols;
    Epilogue epilogue;
  };

  static void SetUpTestSuite() { ASSERT_EQ(prepare_gemms(), cudaSuccess); }

  // Random weights, with biases.
  void make(const Shape& shape) {
    const bool f32 = shape.epilogue == Epilogue::kStoreF32 || shape.epilogue == Epilogue::kAddF32;
    element_ = f32 ? 4 : 2;
    packed_.clear();
    biases_.clear();
    width_ = gap_ = 0;
    args_ = {};
    for (int32_t i = 0; i < shape.count; ++i) {
      const int64_t rows = shape.rows[i];
      packed_.push_back(std::make_unique<Packed>(GetParam(), rows, shape.cols, ordinary_file(GetParam(), rows, shape.cols, random_)));
      std::vector<float> bias(static_cast<size_t>(rows));
      for (float& b : bias) b = static_cast<float>(random_() % 64) * 0.01f;
      biases_.push_back(std::make_unique<Guarded>(bias));
      args_.targets[i] = {packed_.back()->weight, biases_.back()->as<float>(), nullptr, 0};
      if (shape.epilogue != Epilogue::kSwiGLU || i == 0) width_ += rows;
    }
    args_.count = shape.count;
    args_.epilogue = shape.epilogue;
    args_.semaphores = semaphores_.as<uint32_t>();
  }

  // Makes random tokens for them.
  void give(Act act, int32_t tokens) {
    const int64_t cols = args_.targets[0].weight.cols;
    args_.act = act;
    args_.x_stride = round_up(cols, 8);
    args_.tokens = tokens;
    x_ = std::make_unique<Guarded>(random_inputs(act, tokens, cols, args_.x_stride, random_).bits);
    args_.x = x_->data();
    input_sums_ = std::make_unique<Guarded>(static_cast<size_t>(input_sum_bytes(tokens, cols)));
    args_.input_sums = input_sums_->data();
  }

  // Returns the results of `launch` for all tokens, `piece` of them at a time. Outputs start as small numbers, distinct
  // for f32, in rows of width_ + gap_ elements, of which the last gap_ must not change.
  template <class Launch>
  std::vector<uint8_t> outputs(int32_t piece, Launch&& launch) {
    const int64_t stride = width_ + gap_;
    start();
    for (int32_t first = 0; first < args_.tokens; first += piece) {
      GemmArgs a = args_;
      a.tokens = std::min(piece, args_.tokens - first);
      a.x = static_cast<const uint16_t*>(args_.x) + first * args_.x_stride;
      uint8_t* at = out_->data() + first * stride * element_;
      for (int32_t i = 0; i < a.count; ++i) {
        a.targets[i].out = a.epilogue == Epilogue::kSwiGLU && i == 1 ? nullptr : at;
        a.targets[i].out_stride = stride;
        at += a.targets[i].weight.rows * element_;
      }
      EXPECT_EQ(launch(a), cudaSuccess);
    }
    const std::vector<uint8_t> bytes = out_->read<uint8_t>();
    EXPECT_EQ(semaphores_.read<uint32_t>(), std::vector<uint32_t>(kGemmSemaphores));
    std::vector<uint8_t> rows;
    rows.reserve(static_cast<size_t>(args_.tokens * width_ * element_));
    for (int64_t token = 0; token < args_.tokens; ++token) {
      const auto row = bytes.begin() + token * stride * element_, gap = row + width_ * element_;
      rows.insert(rows.end(), row, gap);
      EXPECT_TRUE(std::all_of(gap, gap + gap_ * element_, [](uint8_t byte) { return byte == 0x3c; })) << "behind token " << token;
    }
    return rows;
  }
  std::vector<uint8_t> outputs(int32_t piece) {
    return outputs(piece, [](const GemmArgs& a) { return launch_gemm(a, Stream{}); });
  }

  // Whether the blocks of a cluster may share tokens of m128 tiles.
  static bool has_token_tiles() { return quantised(GetParam()) && !reads_input_sums(GetParam()); }

  // Random tokens through launch_m128_wgmma_as, in every way to share that the type has.
  void expect_m128_as_alone(int32_t tokens) {
    const PackedWeight& weight = args_.targets[0].weight;
    SCOPED_TRACE(testing::Message() << weight.rows << " x " << weight.cols << ", " << tokens << " tokens");
    give(acts_of(GetParam())[0], tokens);
    int device = 0;
    ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
    if (!wgmma_available(device)) GTEST_SKIP() << "no wgmma here: GPUs of compute capability 9.0 have it";
    const std::vector<uint8_t> alone = outputs(1);
    for (const M128Share share : {M128Share::kK, M128Share::kTokens}) {
      if (share == M128Share::kTokens && !has_token_tiles()) continue;
      const std::vector<uint8_t> together =
          outputs(tokens, [&](const GemmArgs& a) { return launch_m128_wgmma_as(share, device, a, 0, a.count, Stream{}); });
      ASSERT_TRUE(together == alone) << "shared " << (share == M128Share::kK ? "K" : "tokens");
    }
  }

  // Through launch_prefill_wgmma_as in every shape. If all rows' outputs are multiples of 16 bytes, they are stored by
  // TMA; the rows of each token alone are followed by a gap that TMA cannot handle.
  void expect_prefill_as_alone(Act act, int32_t tokens) {
    args_.kind = GemmClass::kPrefill;
    give(act, tokens);
    int device = 0;
    ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
    if (!wgmma_available(device)) GTEST_SKIP() << "no wgmma here: GPUs of compute capability 9.0 have it";
    gap_ = width_ * element_ % 16 == 0 ? 1 : 0;
    const std::vector<uint8_t> alone = outputs(1);
    ASSERT_TRUE(outputs(tokens) == alone) << tokens << " tokens";
    gap_ *= 16 / element_;
    ASSERT_TRUE(outputs(tokens) == alone) << tokens << " tokens";
    for (int32_t form = 0; form < kPrefillForms; ++form) {
      for (const PrefillCluster& cluster : kPrefillClusters) {
        SCOPED_TRACE(testing::Message() << args_.targets[0].weight.rows << " x " << args_.targets[0].weight.cols << ", " << tokens
                                        << " tokens, tiles of " << kPrefillFormList[form].rows << " x " << kPrefillFormList[form].tokens
                                        << ", clusters of " << cluster.rows << " x " << cluster.tokens);
        ASSERT_TRUE(alone == outputs(tokens, [&](const GemmArgs& a) {
          const cudaError_t error = launch_prefill_wgmma_as({form, cluster}, device, a, 0, a.count, Stream{});
          return error == cudaErrorNotSupported ? launch_gemm(a, Stream{}) : error;  // the device cannot hold such a cluster
        }));
      }
    }
  }

  // A chain of GEMMs, each of the rounded result of the one before, launched as programmatic dependents: weights may be loaded
  // before the kernel ahead has ended, tokens may not. The weight is square, so that outputs are tokens.
  template <class Launch>
  void expect_to_wait(Launch&& launch) {
    constexpr int32_t kLinks = 6;
    const int64_t rows = args_.targets[0].weight.rows, count = rows * args_.tokens;
    cudaStream_t stream;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    std::vector<uint16_t> last[2];
    for (const bool dependent : {false, true}) {
      std::vector<std::unique_ptr<Guarded>> sums, links;
      for (int32_t i = 0; i < kLinks; ++i) {
        sums.push_back(std::make_unique<Guarded>(static_cast<size_t>(count) * 4));
        links.push_back(std::make_unique<Guarded>(static_cast<size_t>(count) * 2));
      }
      const Stream on{stream, dependent};
      GemmArgs a = args_;
      a.x_scale = 0x1p-4f;  // numbers neither vanish nor exceed f16
      for (size_t i = 0; i < kLinks; ++i) {
        a.targets[0].out = sums[i]->data();
        a.targets[0].out_stride = rows;
        ASSERT_EQ(launch(a, on), cudaSuccess);
        ASSERT_EQ(launch_to_act({sums[i]->as<float>(), links[i]->data(), args_.act, count}, on), cudaSuccess);
        a.x = links[i]->data();
      }
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      last[dependent] = links.back()->read<uint16_t>();
    }
    ASSERT_TRUE(last[0] == last[1]);
    const int32_t infinite = args_.act == Act::kF16 ? 0x7c00 : 0x7f80;  // NaNs and infinities have all these bits
    const auto says_nothing = [&](uint16_t bits) { return (bits & infinite) == infinite || (bits & 0x7fff) == 0; };
    EXPECT_LT(std::count_if(last[0].begin(), last[0].end(), says_nothing), static_cast<int64_t>(last[0].size()) / 2);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }

  // The same through launch_gemm, which gives each cluster one tile of 64 rows by 128 tokens on devices of 132 SMs.
  void expect_single_as_alone(int32_t tokens) {
    SCOPED_TRACE(testing::Message() << args_.targets[0].weight.rows << " rows, " << tokens << " tokens");
    give(acts_of(GetParam())[0], tokens);
    int device = 0, sms = 0;
    ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
    ASSERT_EQ(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), cudaSuccess);
    if (sms == 132 && skinny_wgmma_available(device, GetParam(), args_.act)) {
      const bool pair = args_.epilogue == Epilogue::kSwiGLU;
      ASSERT_EQ(skinny_wgmma_time(device, args_, 0, args_.count), round_times(device).at(GetParam(), pair, RoundKernel::kSkinnySingle));
      ASSERT_FALSE(m128_wgmma_faster(device, args_, 0, args_.count));
    }
    ASSERT_TRUE(outputs(1) == outputs(tokens));
  }

 private:
  std::mt19937 random_{11};
  std::vector<std::unique_ptr<Packed>> packed_;
  std::vector<std::unique_ptr<Guarded>> biases_;
  std::unique_ptr<Guarded> x_, input_sums_;
  Guarded semaphores_{kGemmSemaphores * sizeof(uint32_t), 0};
  int64_t width_ = 0, element_ = 0, gap_ = 0;
  std::array<int64_t, 4> started_{};  // what start_ is for: tokens, width_, gap_ and element_
  std::vector<uint8_t> start_;
  std::unique_ptr<Guarded> out_;

  // Gives out_ what outputs start as. Most launches of a test have the same, which takes longer to make than to copy.
  void start() {
    const int64_t stride = width_ + gap_;
    const std::array<int64_t, 4> wanted{args_.tokens, width_, gap_, element_};
    if (started_ == wanted) {
      out_->write(start_);
      return;
    }
    started_ = wanted;
    start_.assign(static_cast<size_t>(args_.tokens * stride * element_), 0x3c);
    for (int32_t token = 0; token < args_.tokens && element_ == 4; ++token) {
      for (int64_t i = 0; i < width_; ++i) {
        const float number = static_cast<float>((token * width_ + i) * 2654435761 % 4093) * 0x1p-12f;
        std::memcpy(&start_[static_cast<size_t>((token * stride + i) * 4)], &number, 4);
      }
    }
    out_ = std::make_unique<Guarded>(start_);
  }

 protected:
  GemmArgs args_;
};

std::string type_name(const testing::TestParamInfo<int32_t>& info) {
  for (const TypeName& t : kTypeNames)
    if (t.type == info.param) return t.name;
  return {};
}

// Every type that has m128 tiles, also if a cluster processes several and spare warps finish them, and if slices have
// no columns, one group or several.
using M128Tiles = Tiles;
INSTANTIATE_TEST_SUITE_P(All, M128Tiles,
                         testing::Values(kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ5_K, kQ6_K, kIQ4_NL, kQ2_K, kQ3_K, kIQ2_XS),
                         type_name);

TEST_P(M128Tiles, GiveTheSameBits) {
  const Shape shapes[] = {{{1}, 1, 8, Epilogue::kStoreF32},
                          {{176}, 1, 2304, Epilogue::kAddF32},
                          {{300, 17, 130}, 3, 1025, Epilogue::kStoreF32},
                          {{129, 64}, 2, 72, Epilogue::kStoreF32},
                          {{150, 150}, 2, 768, Epilogue::kSwiGLU},
                          {{200}, 1, 4352, Epilogue::kStoreF32},
                          {{9000, 9000}, 2, 640, Epilogue::kSwiGLU},
                          {{26000}, 1, 576, Epilogue::kAddF32}};
  for (Shape shape : shapes) {
    shape.cols = round_up(shape.cols, reference::shape(GetParam()).block);
    make(shape);
    for (const int32_t tokens : {1, 33, 64, 65, 128, 130, 300}) expect_m128_as_alone(tokens);
  }
}

// Also if tokens are loaded while the kernel that sums them runs; all GEMMs of the chain use the same sums.
TEST_P(M128Tiles, WaitForTheTokens) {
  int device = 0;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  if (!wgmma_available(device)) GTEST_SKIP() << "no wgmma here: GPUs of compute capability 9.0 have it";
  make({{1280}, 1, 1280, Epilogue::kStoreF32});
  for (const int32_t tokens : {70, 128, 300}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens");
    give(acts_of(GetParam())[0], tokens);
    expect_to_wait([&](const GemmArgs& a, const Stream& on) { return launch_m128_wgmma_as(M128Share::kK, device, a, 0, 1, on); });
    if (!has_token_tiles()) continue;
    expect_to_wait([&](const GemmArgs& a, const Stream& on) { return launch_m128_wgmma_as(M128Share::kTokens, device, a, 0, 1, on); });
  }
}

// Every tile and cluster of the prefill class: one row and one token, edges of tiles, rows and columns that do not fill
// panels and units, more tiles than clusters, fewer tiles than a cluster has blocks, and weights that share a launch.
using PrefillTiles = Tiles;
INSTANTIATE_TEST_SUITE_P(All, PrefillTiles,
                         testing::Values(kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ5_K, kQ6_K, kIQ4_NL, kQ2_K,
                                         kIQ3_S),
                         type_name);

TEST_P(PrefillTiles, GiveTheSameBits) {
  const int64_t block = reference::shape(GetParam()).block;
  const Shape shapes[] = {{{1}, 1, 8, Epilogue::kStoreF32},
                          {{64}, 1, 64, Epilogue::kAddF32},
                          {{67, 1, 130}, 3, 200, Epilogue::kStoreF32},
                          {{129, 64}, 2, 1025, Epilogue::kStoreF32},
                          {{176}, 1, 2304, Epilogue::kAddF32},
                          {{17, 17}, 2, 72, Epilogue::kSwiGLU},
                          {{150, 150}, 2, 768, Epilogue::kSwiGLU},
                          {{520}, 1, 4352, Epilogue::kStoreF32},
                          {{200, 8, 132}, 3, 200, Epilogue::kAddF32},
                          {{136, 72}, 2, 1025, Epilogue::kStoreF32},
                          {{24, 24}, 2, 72, Epilogue::kSwiGLU},
                          {{152, 152}, 2, 768, Epilogue::kSwiGLU}};
  for (Shape s : shapes) {
    s.cols = round_up(s.cols, block);
    make(s);
    for (const Act act : acts_of(GetParam())) {
      for (const int32_t tokens : {1, 31, 33, 64, 65, 129, 300}) expect_prefill_as_alone(act, tokens);
    }
  }
}

// With 300 and 490 tokens the pairs' last round is in halves, the second of which is empty or short, on devices that
// run 66 clusters.
TEST_P(PrefillTiles, GiveTheSameBitsWhereBlocksTakeSeveral) {
  const Shape shapes[] = {{{9100}, 1, 768, Epilogue::kAddF32},
                          {{9000, 300}, 2, 512, Epilogue::kStoreF32},
                          {{4500, 4500}, 2, 512, Epilogue::kSwiGLU},
                          {{4504, 4504}, 2, 512, Epilogue::kSwiGLU}};
  for (const Shape& s : shapes) {
    make(s);
    for (const int32_t tokens : {130, 300, 490, 530}) expect_prefill_as_alone(acts_of(GetParam())[0], tokens);
  }
}

// Sums in several K partitions (gemm.h): concurrently, also if a cluster has more blocks than there are tiles, and in
// sequence; stored by TMA and by threads.
TEST_P(PrefillTiles, GiveTheSameBitsInParts) {
  const Shape shapes[] = {{{64}, 1, 8192, Epilogue::kAddF32},
                          {{67}, 1, 8448, Epilogue::kAddF32},
                          {{136}, 1, 14336, Epilogue::kAddF32},
                          {{200, 24}, 2, 16640, Epilogue::kAddF32},
                          {{72}, 1, 24832, Epilogue::kAddF32}};
  for (const Shape& s : shapes) {
    make(s);
    for (const int32_t tokens : {1, 33, 130}) expect_prefill_as_alone(acts_of(GetParam())[0], tokens);
  }
  if (GetParam() != kBF16 && GetParam() != kQ4_K) return;
  for (const int64_t rows : {9100, 9101}) {
    make({{rows}, 1, 8448, Epilogue::kAddF32});
    expect_prefill_as_alone(acts_of(GetParam())[0], 270);
  }
}

TEST_P(PrefillTiles, WaitForTheTokens) {
  int device = 0;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  if (!wgmma_available(device)) GTEST_SKIP() << "no wgmma here: GPUs of compute capability 9.0 have it";
  make({{1280}, 1, 1280, Epilogue::kStoreF32});
  for (const int32_t tokens : {1, 70, 300}) {
    give(acts_of(GetParam())[0], tokens);
    args_.kind = GemmClass::kPrefill;
    for (int32_t form = 0; form < kPrefillForms; ++form) {
      for (const PrefillCluster& cluster : kPrefillClusters) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens, form " << form << ", clusters of " << cluster.rows << " x "
                                        << cluster.tokens);
        expect_to_wait([&](const GemmArgs& a, const Stream& on) {
          const cudaError_t error = launch_prefill_wgmma_as({form, cluster}, device, a, 0, 1, on);
          return error == cudaErrorNotSupported ? cudaSuccess : error;
        });
      }
    }
  }
}

// Tiles of 64 rows by 128 tokens, at most one for each cluster, where tiles of 64 tokens exceed the 66 clusters of an
// H200.
using SingleTiles = Tiles;
INSTANTIATE_TEST_SUITE_P(All, SingleTiles, testing::Values(kF16, kBF16), type_name);

TEST_P(SingleTiles, GiveTheSameBits) {
  make({{4200}, 1, 576, Epilogue::kAddF32});
  for (const int32_t tokens : {65, 128}) expect_single_as_alone(tokens);
  make({{2500, 900, 600}, 3, 1025, Epilogue::kStoreF32});
  for (const int32_t tokens : {100, 127}) expect_single_as_alone(tokens);
  make({{1070, 1070}, 2, 2304, Epilogue::kSwiGLU});
  for (const int32_t tokens : {66, 128}) expect_single_as_alone(tokens);
  make({{2100}, 1, 72, Epilogue::kStoreF32});
  for (const int32_t tokens : {193, 256}) expect_single_as_alone(tokens);
}

// More than 64 tokens, through launch_gemm: rows so few that 64 x 64 tiles take no more rounds than m128 tiles, and
// rows for which m128 is chosen; with input sums and without.
using ManyTokens = Tiles;
INSTANTIATE_TEST_SUITE_P(All, ManyTokens,
                         testing::Values(kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ5_K, kQ6_K, kIQ4_NL, kQ2_K, kIQ4_XS), type_name);

TEST_P(ManyTokens, GetTheSameBits) {
  const Shape shapes[] = {{{300, 17, 130}, 3, 2304, Epilogue::kStoreF32},
                          {{4200}, 1, 1024, Epilogue::kAddF32},
                          {{4100, 4100}, 2, 768, Epilogue::kSwiGLU},
                          {{6000, 1100}, 2, 256, Epilogue::kStoreF32}};
  for (const Shape& s : shapes) {
    make(s);
    for (const int32_t tokens : {65, 100, 128, 129, 200, 256}) {
      SCOPED_TRACE(testing::Message() << s.rows[0] << " x " << s.cols << ", " << tokens << " tokens");
      give(Act::kF16, tokens);
      const std::vector<uint8_t> alone = outputs(1);
      ASSERT_TRUE(outputs(tokens) == alone);
      if (reads_input_sums(GetParam())) {
        ASSERT_EQ(launch_input_sums({args_.x, args_.x_stride, tokens, static_cast<int32_t>(s.cols), args_.input_sums}, Stream{}),
                  cudaSuccess);
        args_.summed = true;
        ASSERT_TRUE(outputs(tokens) == alone) << "with sums that are there already";
        args_.summed = false;
      }
      args_.input_sums = nullptr;
      ASSERT_TRUE(outputs(tokens) == alone) << "without terms";
    }
  }
}

// Up to eight tokens, whose inputs a block keeps or streams.
class FewTokens : public Tiles {
 protected:
  // Sixteen tokens have the same bits together and in pieces, and so have 70 together and in pieces of 8.
  void expect_the_same_bits(const Shape& s) {
    make(s);
    give(Act::kF16, 16);
    const std::vector<uint8_t> together = outputs(16);
    for (const int32_t piece : {1, 2, 5, 8}) {
      SCOPED_TRACE(testing::Message() << s.rows[0] << " rows, " << s.cols << " columns, " << piece << " tokens");
      ASSERT_TRUE(outputs(piece) == together);
    }
    give(Act::kF16, 70);
    ASSERT_TRUE(outputs(8) == outputs(70)) << s.rows[0] << " rows, " << s.cols << " columns, 70 tokens";
  }
};

INSTANTIATE_TEST_SUITE_P(All, FewTokens, testing::Values(kQ8_0, kQ5_0, kQ4_K, kQ5_K, kQ6_K, kQ2_K, kIQ3_XXS), type_name);

// Slices without columns, of one and two groups, and of many.
TEST_P(FewTokens, GetTheSameBitsInFewTiles) {
  for (const Shape& s : {Shape{{67}, 1, 256, Epilogue::kStoreF32}, Shape{{300, 17, 130}, 3, 2304, Epilogue::kStoreF32},
                         Shape{{150, 150}, 2, 768, Epilogue::kSwiGLU}, Shape{{600}, 1, 4096, Epilogue::kStoreF32},
                         Shape{{200, 200}, 2, 4096, Epilogue::kSwiGLU}})
    expect_the_same_bits(s);
}

// Rows that make the pipeline wrap around, and one panel more than tiles of two panels have.
TEST_P(FewTokens, GetTheSameBitsInManyTiles) {
  for (const Shape& s : {Shape{{8500}, 1, 2304, Epilogue::kAddF32}, Shape{{8500, 8500}, 2, 2304, Epilogue::kSwiGLU},
                         Shape{{17000}, 1, 4096, Epilogue::kStoreF32}, Shape{{2150}, 1, 4352, Epilogue::kAddF32},
                         Shape{{4300}, 1, 4352, Epilogue::kAddF32}, Shape{{4320}, 1, 4352, Epilogue::kStoreF32},
                         Shape{{2200, 40}, 2, 4608, Epilogue::kStoreF32}})
    expect_the_same_bits(s);
}

}  // namespace
}  // namespace mr::cuda
