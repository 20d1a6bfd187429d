// The GEMMs of several layers give the same bits launched one by one and as programmatic dependents, again and again.
//
// At the widths of an 8B model: norm, o, norm, gate and up, down, over one residual stream, each with buffers of its
// own that start as NaN. A value that is read before it is written shows as NaN, and one that is added to too early as
// another number.
#include "kernels/gemm/input_sums.h"
#include "kernels/norm.h"
#include "tests/gemm_fixture.h"

namespace mr::cuda {
namespace {

constexpr int32_t kHidden = 4096, kFfn = 14336, kLayers = 3;

struct Layer {
  Guarded before_o, before_gate, ffn, input_sums;
  explicit Layer(int32_t tokens)
      : before_o(static_cast<size_t>(tokens) * kHidden * 2, 0xff), before_gate(static_cast<size_t>(tokens) * kHidden * 2, 0xff),
        ffn(static_cast<size_t>(tokens) * kFfn * 2, 0xff), input_sums(static_cast<size_t>(input_sum_bytes(tokens, kFfn)), 0xff) {}

  void spoil(int32_t tokens, cudaStream_t stream) const {
    EXPECT_EQ(cudaMemsetAsync(before_o.data(), 0xff, static_cast<size_t>(tokens) * kHidden * 2, stream), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(before_gate.data(), 0xff, static_cast<size_t>(tokens) * kHidden * 2, stream), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(ffn.data(), 0xff, static_cast<size_t>(tokens) * kFfn * 2, stream), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(input_sums.data(), 0xff, static_cast<size_t>(input_sum_bytes(tokens, kFfn)), stream), cudaSuccess);
  }
};

class Chain : public testing::TestWithParam<TypeName> {
 protected:
  void SetUp() override {
    ASSERT_EQ(prepare_gemms(), cudaSuccess);
    const int32_t type = GetParam().type;
    act_ = type == kBF16 ? Act::kBF16 : Act::kF16;
    const auto make = [&](int64_t rows, int64_t cols) {
      return std::make_unique<Packed>(type, rows, cols, ordinary_file(type, rows, cols, random_));
    };
    o_ = make(kHidden, kHidden);
    gate_ = make(kFfn, kHidden);
    up_ = make(kFfn, kHidden);
    down_ = make(kHidden, kFfn);
    norm_ = std::make_unique<Guarded>(std::vector<float>(kHidden, 0.5f));
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
  }
  void TearDown() override { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }

  // Queues the layers over x, which is (tokens, kHidden).
  void queue(const std::vector<std::unique_ptr<Layer>>& layers, float* x, int32_t tokens, bool dependent) const {
    const Stream on{stream_, dependent};
    const auto normed = [&](const Guarded& out) {
      const RmsNormArgs a{x, norm_->as<float>(), nullptr, out.data(), act_, tokens, kHidden, kHidden, kHidden, 1e-5f};
      ASSERT_EQ(launch_rms_norm(a, on), cudaSuccess);
    };
    for (const auto& layer : layers) {
      GemmArgs a;
      a.act = act_;
      a.tokens = tokens;
      a.input_sums = layer->input_sums.data();
      a.count = 1;
      normed(layer->before_o);
      a.x = layer->before_o.data();
      a.x_stride = kHidden;
      a.epilogue = Epilogue::kAddF32;
      a.targets[0] = {o_->weight, nullptr, x, kHidden};
      ASSERT_EQ(launch_gemm(a, on), cudaSuccess);
      normed(layer->before_gate);
      a.x = layer->before_gate.data();
      a.epilogue = Epilogue::kSwiGLU;
      a.count = 2;
      a.pair_scale = 16;
      a.targets[0] = {gate_->weight, nullptr, layer->ffn.data(), kFfn};
      a.targets[1] = {up_->weight, nullptr, nullptr, 0};
      ASSERT_EQ(launch_gemm(a, on), cudaSuccess);
      a.x = layer->ffn.data();
      a.x_stride = kFfn;
      a.epilogue = Epilogue::kAddF32;
      a.count = 1;
      a.pair_scale = 1;
      a.x_scale = 16;
      a.targets[0] = {down_->weight, nullptr, x, kHidden};
      ASSERT_EQ(launch_gemm(a, on), cudaSuccess);
    }
  }

  std::mt19937 random_{19};
  std::unique_ptr<Packed> o_, gate_, up_, down_;
  std::unique_ptr<Guarded> norm_;
  cudaStream_t stream_ = nullptr;
  Act act_ = Act::kF16;
};

TEST_P(Chain, GivesTheSameBitsEveryTime) {
  for (const int32_t tokens : {64, 128, 144, 256}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens");
    const Guarded start(normals(int64_t{tokens} * kHidden, 1, random_));
    Guarded x(static_cast<size_t>(tokens) * kHidden * 4);
    std::vector<std::unique_ptr<Layer>> layers;
    for (int32_t i = 0; i < kLayers; ++i) layers.push_back(std::make_unique<Layer>(tokens));
    std::vector<uint32_t> want;
    for (int32_t time = 0; time < 200; ++time) {
      for (const auto& layer : layers) layer->spoil(tokens, stream_);
      ASSERT_EQ(cudaMemcpyAsync(x.data(), start.data(), static_cast<size_t>(tokens) * kHidden * 4, cudaMemcpyDeviceToDevice, stream_),
                cudaSuccess);
      queue(layers, x.as<float>(), tokens, time > 0 && has_dependents());
      if (HasFatalFailure()) return;
      const std::vector<uint32_t> got = x.read<uint32_t>();
      if (time == 0) {
        want = got;
        for (const uint32_t bits : want) ASSERT_NE(bits & 0x7f800000u, 0x7f800000u) << "the numbers have grown too large to tell anything";
        continue;
      }
      if (got == want) continue;
      int64_t others = 0, unwritten = 0;
      std::vector<int64_t> of_token(static_cast<size_t>(tokens)), of_row(kHidden);
      for (size_t i = 0; i < want.size(); ++i) {
        if (got[i] == want[i]) continue;
        ++others;
        unwritten += (got[i] & 0x7f800000u) == 0x7f800000u ? 1 : 0;
        ++of_token[i / kHidden];
        ++of_row[i % kHidden];
      }
      const auto met = [](const std::vector<int64_t>& counts) {
        return std::count_if(counts.begin(), counts.end(), [](int64_t n) { return n > 0; });
      };
      FAIL() << "time " << time << ": " << others << " numbers differ, " << unwritten << " are none; of " << met(of_token) << " tokens and "
             << met(of_row) << " rows";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Chain,
                         testing::Values(TypeName{kQ4_K, "Q4_K"}, TypeName{kQ5_K, "Q5_K"}, TypeName{kQ8_0, "Q8_0"}, TypeName{kQ6_K, "Q6_K"},
                                         TypeName{kF16, "F16"}, TypeName{kBF16, "BF16"}),
                         name_of);

}  // namespace
}  // namespace mr::cuda
