// GEMMs against float64, and the guarantee that a row's bits depend neither on the number of tokens nor on the row's
// index.
#include "kernels/gemm/input_sums.h"
#include "tests/gemm_fixture.h"

namespace mr::cuda {
namespace {

uint16_t bits_of(Act act, float value) {
  const __half f16 = __float2half(value);
  const __nv_bfloat16 bf16 = __float2bfloat16(value);
  uint16_t bits;
  if (act == Act::kF16) std::memcpy(&bits, &f16, 2);
  else std::memcpy(&bits, &bf16, 2);
  return bits;
}

double value_of(Act act, uint16_t bits) {
  if (act == Act::kF16) return reference::half_value(reinterpret_cast<const uint8_t*>(&bits));
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float v;
  std::memcpy(&v, &wide, 4);
  return static_cast<double>(v);
}

struct Expected {
  double value, magnitude;  // the sum, and the sum of magnitudes
};

// (rows, tokens) sums in float64.
std::vector<Expected> expected_sums(int32_t type, const std::vector<uint8_t>& file, int64_t rows, int64_t cols,
                                    const Inputs& in, int64_t tokens) {
  std::vector<Expected> out;
  std::vector<reference::Weight> w(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    reference::decode_parts(type, file.data() + static_cast<size_t>(r) * (file.size() / static_cast<size_t>(rows)), cols, w.data());
    for (int64_t t = 0; t < tokens; ++t) {
      Expected e{0, 0};
      for (int64_t k = 0; k < cols; ++k) {
        const double x = in.values[static_cast<size_t>(t * cols + k)], a = w[static_cast<size_t>(k)].scaled * x;
        const double b = w[static_cast<size_t>(k)].shift * x;
        e.value += a + b;
        e.magnitude += std::fabs(a) + std::fabs(b);
      }
      out.push_back(e);
    }
  }
  return out;
}

// Bounds in units of the sum of magnitudes. The tensor cores' f32 sums lose at most 2^-22 in a step of 16, of which a
// slice has cols/128 (prefill: cols/16); scaling and reduction add 16 more; two bf16 terms hold an f32 weight to 2^-16.
// Weights that are not of the activation type are rounded, to 2^-8 as bf16, 2^-11 as f16; in decode only those that are
// quantised and do not fold.
double bound(int32_t type, Act act, int64_t cols, bool prefill) {
  const double steps = static_cast<double>(prefill ? cols / 16 : cols / 128) + 16;
  const bool folds = type == kQ4_K || type == kQ5_K;
  if (!prefill && (folds || !quantised(type))) return steps * 0x1p-22 + (type == kF32 ? 0x1p-16 : 0);
  const bool same = type == (act == Act::kF16 ? kF16 : kBF16);
  return steps * 0x1p-22 + (same ? 0 : act == Act::kF16 ? 0x1p-11 : 0x1p-8);
}

// Ordered and inside a finite bound: NaN never passes.
bool close(double got, double want, double limit) {
  return std::isfinite(limit) && std::fabs(got - want) <= limit;
}

struct Case {
  int32_t type;
  Act act;
  GemmClass kind;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const TypeName& t : kTypeNames) {
    for (const Act act : acts_of(t.type)) {
      for (const GemmClass kind : {GemmClass::kDecode, GemmClass::kPrefill}) out.push_back({t.type, act, kind});
    }
  }
  return out;
}

class Gemm : public testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() { ASSERT_EQ(prepare_gemms(), cudaSuccess); }

  GemmArgs args_for(const PackedWeight& weight, const Guarded& x, int64_t stride, int32_t tokens, void* out) const {
    GemmArgs a;
    a.targets[0] = {weight, nullptr, out, weight.rows};
    a.count = 1;
    a.kind = GetParam().kind;
    a.x = x.data();
    a.x_stride = stride;
    a.act = GetParam().act;
    a.tokens = tokens;
    a.input_sums = input_sums_.data();
    a.semaphores = semaphores_.as<uint32_t>();
    return a;
  }
  bool prefill() const { return GetParam().kind == GemmClass::kPrefill; }

 private:
  mutable Guarded input_sums_{static_cast<size_t>(input_sum_bytes(512, 8192))};
  mutable Guarded semaphores_{kGemmSemaphores * sizeof(uint32_t), 0};
};

INSTANTIATE_TEST_SUITE_P(All, Gemm, testing::ValuesIn(cases()), [](const testing::TestParamInfo<Case>& info) {
  std::string name;
  for (const TypeName& t : kTypeNames) {
    if (t.type == info.param.type) name = t.name;
  }
  return name + (info.param.act == Act::kF16 ? "_f16" : "_bf16") +
         (info.param.kind == GemmClass::kPrefill ? "_prefill" : "_decode");
});

TEST_P(Gemm, IsCloseToFloat64OnOddShapes) {
  const auto [type, act, kind] = GetParam();
  const int64_t block = reference::shape(type).block, odd = block == 1 ? 1 : block;
  const int64_t shapes[][2] = {{1, odd}, {15, block == 1 ? 72 : 2 * block}, {17, block == 1 ? 63 : 3 * block},
                               {127, 768}, {129, 512}, {200, block == 1 ? 1025 : 1280}};
  std::mt19937 random(4);
  for (const auto& shape : shapes) {
    const int64_t rows = shape[0], cols = shape[1], stride = round_up(cols, 8) + 8;
    const std::vector<uint8_t> file = ordinary_file(type, rows, cols, random);
    const Packed packed(type, rows, cols, file);
    const Inputs in = random_inputs(act, 256, cols, stride, random);
    const std::vector<Expected> want = expected_sums(type, file, rows, cols, in, 256);
    Guarded x(in.bits);
    for (const int32_t tokens : {1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 129, 256}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", " << tokens << " tokens");
      Guarded out(static_cast<size_t>(rows * tokens) * 4);
      ASSERT_EQ(launch_gemm(args_for(packed.weight, x, stride, tokens, out.data()), Stream{}), cudaSuccess);
      const std::vector<float> got = out.read<float>();
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t r = 0; r < rows; ++r) {
          const Expected& e = want[static_cast<size_t>(r * 256 + t)];
          ASSERT_TRUE(close(got[static_cast<size_t>(t * rows + r)], e.value, bound(type, act, cols, prefill()) * e.magnitude + 1e-30))
              << "row " << r << " token " << t << ": " << got[static_cast<size_t>(t * rows + r)] << " for " << e.value;
        }
      }
    }
  }
}

TEST_P(Gemm, IsCloseToFloat64OnARealShape) {
  const auto [type, act, kind] = GetParam();
  const int64_t rows = 272, cols = 14336, tokens = 9;
  std::mt19937 random(5);
  const std::vector<uint8_t> file = ordinary_file(type, rows, cols, random);
  const Packed packed(type, rows, cols, file);
  const Inputs in = random_inputs(act, tokens, cols, cols, random);
  const std::vector<Expected> want = expected_sums(type, file, rows, cols, in, tokens);
  Guarded x(in.bits), out(rows * tokens * 4);
  GemmArgs a = args_for(packed.weight, x, cols, tokens, out.data());
  ASSERT_EQ(launch_gemm(a, Stream{}), cudaSuccess);
  const std::vector<float> got = out.read<float>();
  a.epilogue = Epilogue::kAddF32;  // of the prefill class in K partitions
  ASSERT_EQ(launch_gemm(a, Stream{}), cudaSuccess);
  const std::vector<float> twice = out.read<float>();
  double worst = 0;
  for (int64_t i = 0; i < rows * tokens; ++i) {
    const Expected& e = want[static_cast<size_t>(i % rows * tokens + i / rows)];
    const double limit = bound(type, act, cols, prefill()) * e.magnitude;
    ASSERT_TRUE(close(got[static_cast<size_t>(i)], e.value, limit));
    ASSERT_TRUE(close(twice[static_cast<size_t>(i)], 2 * e.value, 2 * limit));
    worst = std::max(worst, std::fabs(got[static_cast<size_t>(i)] - e.value) / limit);
  }
  RecordProperty("share_of_bound", std::to_string(worst));
}

// A row alone, and at every index of batches of several sizes.
TEST_P(Gemm, GivesARowTheSameBitsInAnyCompany) {
  const auto [type, act, kind] = GetParam();
  const int64_t rows = 176, cols = 2304, tokens = 300;
  std::mt19937 random(6);
  const Packed packed(type, rows, cols, ordinary_file(type, rows, cols, random));
  const Inputs in = random_inputs(act, tokens, cols, cols, random);
  Guarded x(in.bits), alone(rows * tokens * 4);
  for (int64_t t = 0; t < tokens; ++t) {
    GemmArgs a = args_for(packed.weight, x, cols, 1, alone.as<float>() + t * rows);
    a.x = x.as<uint16_t>() + t * cols;
    ASSERT_EQ(launch_gemm(a, Stream{}), cudaSuccess);
  }
  const std::vector<uint32_t> want = alone.read<uint32_t>();
  for (const int32_t size : {2, 5, 8, 12, 16, 31, 64, 100, 128, 256, 300}) {
    for (const int32_t first : {0, 3, 44}) {
      if (first + size > tokens) continue;
      Guarded out(static_cast<size_t>(rows * size) * 4);
      GemmArgs a = args_for(packed.weight, x, cols, size, out.data());
      a.x = x.as<uint16_t>() + first * cols;
      ASSERT_EQ(launch_gemm(a, Stream{}), cudaSuccess);
      const std::vector<uint32_t> got = out.read<uint32_t>();
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], want[static_cast<size_t>(first * rows) + i]) << size << " tokens from " << first << ", element " << i;
      }
    }
  }
}

TEST_P(Gemm, AddsBiasAndResidual) {
  const auto [type, act, kind] = GetParam();
  const int64_t rows = 67, cols = 512, stride = rows + 2;
  std::mt19937 random(7);
  const std::vector<uint8_t> file = ordinary_file(type, rows, cols, random);
  const Packed packed(type, rows, cols, file);
  for (const int32_t tokens : {1, 11, 70}) {
    const Inputs in = random_inputs(act, tokens, cols, cols, random);
    const std::vector<Expected> want = expected_sums(type, file, rows, cols, in, tokens);
    std::vector<float> bias, residual;
    for (int64_t i = 0; i < rows; ++i) bias.push_back(static_cast<float>(i) * 0.01f - 0.3f);
    for (int64_t i = 0; i < stride * tokens; ++i) residual.push_back(static_cast<float>(i % 13) - 6);
    Guarded x(in.bits), bias_memory(bias), sum(residual);
    GemmArgs a = args_for(packed.weight, x, cols, tokens, sum.data());
    a.targets[0].bias = bias_memory.as<float>();
    a.targets[0].out_stride = stride;
    a.epilogue = Epilogue::kAddF32;
    ASSERT_EQ(launch_gemm(a, Stream{}), cudaSuccess);
    const std::vector<float> sums = sum.read<float>();
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t r = 0; r < stride; ++r) {
        const size_t at = static_cast<size_t>(t * stride + r);
        if (r >= rows) {
          ASSERT_EQ(sums[at], residual[at]);
          continue;
        }
        const Expected& e = want[static_cast<size_t>(r * tokens + t)];
        const double limit = bound(type, act, cols, prefill()) * (e.magnitude + 10), y = e.value + bias[static_cast<size_t>(r)];
        ASSERT_TRUE(close(sums[at], y + residual[at], limit));
      }
    }
  }
}

TEST_P(Gemm, JoinsGateAndUp) {
  const auto [type, act, kind] = GetParam();
  std::mt19937 random(8);
  for (const int64_t rows : {1, 16, 104, 150}) {
    const int64_t cols = 256, stride = rows + 1;
    const std::vector<uint8_t> files[2] = {ordinary_file(type, rows, cols, random), ordinary_file(type, rows, cols, random)};
    const Packed gate(type, rows, cols, files[0]), up(type, rows, cols, files[1]);
    for (const int32_t tokens : {1, 8, 13, 40, 150}) {
      const Inputs in = random_inputs(act, tokens, cols, cols, random);
      const std::vector<Expected> want[2] = {expected_sums(type, files[0], rows, cols, in, tokens),
                                             expected_sums(type, files[1], rows, cols, in, tokens)};
      Guarded x(in.bits), out(static_cast<size_t>(stride * tokens) * 2);
      GemmArgs a = args_for(gate.weight, x, cols, tokens, out.data());
      a.targets[0].out_stride = stride;
      a.targets[1].weight = up.weight;
      a.count = 2;
      a.epilogue = Epilogue::kSwiGLU;
      ASSERT_EQ(launch_gemm(a, Stream{}), cudaSuccess);
      const std::vector<uint16_t> got = out.read<uint16_t>();
      const double step = act == Act::kF16 ? 0x1p-11 : 0x1p-8;
      for (int64_t t = 0; t < tokens; ++t) {
        ASSERT_EQ(got[static_cast<size_t>(t * stride + rows)], 0xa5a5);
        for (int64_t r = 0; r < rows; ++r) {
          const Expected& g = want[0][static_cast<size_t>(r * tokens + t)];
          const Expected& u = want[1][static_cast<size_t>(r * tokens + t)];
          const double silu = g.value / (1 + std::exp(-g.value)), y = silu * u.value, relative = bound(type, act, cols, prefill());
          const double limit = relative * (1.2 * g.magnitude * std::fabs(u.value) + u.magnitude * std::fabs(silu)) +
                               (step + 1e-5) * std::fabs(y) + 1e-6;
          ASSERT_TRUE(close(value_of(act, got[static_cast<size_t>(t * stride + r)]), y, limit))
              << rows << " rows, row " << r << " token " << t << " of " << tokens;
        }
      }
    }
  }
}

// Inputs that f16 cannot hold are stored divided by a power of two: sums have the same bits as without the division.
TEST_P(Gemm, TakesAPowerOfTwoOffItsInputs) {
  const auto [type, act, kind] = GetParam();
  const int64_t rows = 104, cols = 512;
  std::mt19937 random(10);
  const Packed gate(type, rows, cols, ordinary_file(type, rows, cols, random)), up(type, rows, cols, ordinary_file(type, rows, cols, random));
  for (const int32_t tokens : {1, 6, 20, 70, 150}) {
    const Inputs in = random_inputs(act, tokens, cols, cols, random);
    std::vector<uint16_t> large = in.bits;
    for (uint16_t& bits : large) bits = bits_of(act, 64 * static_cast<float>(value_of(act, bits)));
    Guarded x(in.bits), large_x(large);
    for (const Epilogue epilogue : {Epilogue::kStoreF32, Epilogue::kSwiGLU}) {
      const size_t bytes = static_cast<size_t>(rows * tokens) * (epilogue == Epilogue::kStoreF32 ? 4 : 2);
      const auto result = [&](const Guarded& from, float scale) {
        Guarded out(bytes);
        GemmArgs a = args_for(gate.weight, from, cols, tokens, out.data());
        a.epilogue = epilogue;
        if (epilogue == Epilogue::kSwiGLU) {
          a.targets[1].weight = up.weight;
          a.count = 2;
        }
        a.x_scale = scale;
        EXPECT_EQ(launch_gemm(a, Stream{}), cudaSuccess);
        return out.read<uint16_t>();
      };
      ASSERT_EQ(result(x, 64), result(large_x, 1)) << tokens << " tokens, end " << static_cast<int32_t>(epilogue);
      ASSERT_NE(result(x, 64), result(x, 1));
    }
  }
}

TEST_P(Gemm, DividesGateTimesUpByAPowerOfTwo) {
  const auto [type, act, kind] = GetParam();
  const int64_t rows = 104, cols = 512;
  std::mt19937 random(11);
  const Packed gate(type, rows, cols, ordinary_file(type, rows, cols, random)), up(type, rows, cols, ordinary_file(type, rows, cols, random));
  for (const int32_t tokens : {1, 6, 20, 70, 150}) {
    Guarded x(random_inputs(act, tokens, cols, cols, random).bits);
    const auto result = [&](float scale) {
      Guarded out(static_cast<size_t>(rows * tokens) * 2);
      GemmArgs a = args_for(gate.weight, x, cols, tokens, out.data());
      a.epilogue = Epilogue::kSwiGLU;
      a.targets[1].weight = up.weight;
      a.count = 2;
      a.pair_scale = scale;
      EXPECT_EQ(launch_gemm(a, Stream{}), cudaSuccess);
      return out.read<uint16_t>();
    };
    const std::vector<uint16_t> whole = result(1), part = result(64);
    for (size_t i = 0; i < whole.size(); ++i) {
      const double y = value_of(act, whole[i]);
      if (std::isinf(y) || std::fabs(y) < 0x1p-8) continue;  // below it f16 loses bits once the value is divided
      ASSERT_EQ(64 * value_of(act, part[i]), y) << tokens << " tokens, element " << i;
    }
  }
}

TEST_P(Gemm, KeepsANaNToItsOwnToken) {
  const auto [type, act, kind] = GetParam();
  const int64_t rows = 40, cols = 512;
  std::mt19937 random(9);
  const Packed packed(type, rows, cols, ordinary_file(type, rows, cols, random));
  for (const int64_t tokens : {7, 20}) {
    Inputs in = random_inputs(act, tokens, cols, cols, random);
    in.bits[5 * cols + 17] = 0x7fff;
    Guarded x(in.bits), out(rows * tokens * 4);
    ASSERT_EQ(launch_gemm(args_for(packed.weight, x, cols, tokens, out.data()), Stream{}), cudaSuccess);
    const std::vector<float> got = out.read<float>();
    for (int64_t i = 0; i < rows * tokens; ++i)
      ASSERT_EQ(std::isnan(got[static_cast<size_t>(i)]), i / rows == 5) << i << " of " << tokens << " tokens";
  }
}

// As many weights as a GEMM may have, of several types and sizes.
void expect_to_share_one_input(const int32_t (&types)[kGemmTargets]) {
  const int64_t cols = 512;
  const int64_t rows[kGemmTargets] = {130, 34, 50, 2}, all = 216;
  std::mt19937 random(10);
  for (const GemmClass kind : {GemmClass::kDecode, GemmClass::kPrefill}) {
    for (const int32_t tokens : {1, 24, 80}) {
      const Inputs in = random_inputs(Act::kF16, tokens, cols, cols, random);
      Guarded x(in.bits), out(static_cast<size_t>(all * tokens) * 4);
      GemmArgs a;
      a.count = kGemmTargets;
      a.kind = kind;
      a.x = x.data();
      a.x_stride = cols;
      a.tokens = tokens;
      std::vector<std::unique_ptr<Packed>> packed;
      std::vector<std::vector<Expected>> want;
      int64_t at = 0;
      for (int i = 0; i < kGemmTargets; ++i) {
        const std::vector<uint8_t> file = ordinary_file(types[i], rows[i], cols, random);
        packed.push_back(std::make_unique<Packed>(types[i], rows[i], cols, file));
        want.push_back(expected_sums(types[i], file, rows[i], cols, in, tokens));
        a.targets[i] = {packed.back()->weight, nullptr, out.as<float>() + at, all};
        at += rows[i];
      }
      ASSERT_EQ(launch_gemm(a, Stream{}), cudaSuccess);
      const std::vector<float> got = out.read<float>();
      at = 0;
      for (int i = 0; i < kGemmTargets; ++i) {
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t r = 0; r < rows[i]; ++r) {
            const Expected& e = want[static_cast<size_t>(i)][static_cast<size_t>(r * tokens + t)];
            ASSERT_TRUE(close(got[static_cast<size_t>(t * all + at + r)], e.value,
                              bound(types[i], Act::kF16, cols, kind == GemmClass::kPrefill) * e.magnitude));
          }
        }
        at += rows[i];
      }
    }
  }
}

TEST(GemmTargets, ShareOneInput) {
  ASSERT_EQ(prepare_gemms(), cudaSuccess);
  expect_to_share_one_input({kQ4_K, kQ4_K, kQ6_K, kQ6_K});
  expect_to_share_one_input({kQ4_K, kQ4_K, kQ4_K, kQ4_K});
}

// Types with the layout of codes share one launch, in which each group has the values of its own type.
TEST(GemmTargets, OfCodesShareOneLaunch) {
  ASSERT_EQ(prepare_gemms(), cudaSuccess);
  expect_to_share_one_input({kIQ3_S, kQ3_K, kIQ2_XXS, kIQ4_XS});
  expect_to_share_one_input({kIQ4_XS, kIQ2_S, kQ2_K, kIQ3_S});
}

TEST(GemmRefusals, NameWhatIsWrongBeforeAnythingRuns) {
  ASSERT_EQ(prepare_gemms(), cudaSuccess);
  Guarded memory(4096);
  GemmArgs a;
  a.targets[0] = {{kF16, 16, 64, memory.data()}, nullptr, memory.data(), 16};
  a.count = 1;
  a.x = memory.data();
  a.x_stride = 64;
  EXPECT_EQ(launch_gemm(a, Stream{}), cudaSuccess) << "no tokens is no work";
  a.tokens = 1;
  a.x_stride = 63;
  EXPECT_EQ(launch_gemm(a, Stream{}), cudaErrorInvalidValue);
  a.x_stride = 64;
  const float* const norm = memory.as<float>();
  for (const GemmNorm bad : {GemmNorm{nullptr, norm, 1e-5f}, GemmNorm{norm + 1, norm, 1e-5f}, GemmNorm{norm, norm + 1, 1e-5f}}) {
    a.norm = bad;
    EXPECT_EQ(launch_gemm(a, Stream{}), cudaErrorInvalidValue);
  }
  a.norm = {};
  a.epilogue = Epilogue::kSwiGLU;
  EXPECT_EQ(launch_gemm(a, Stream{}), cudaErrorInvalidValue);
  a.epilogue = Epilogue::kStoreF32;
  a.targets[0].weight.type = kQ8_0;
  for (const GemmClass kind : {GemmClass::kDecode, GemmClass::kPrefill}) {
    a.kind = kind;
    a.act = Act::kBF16;
    EXPECT_EQ(launch_gemm(a, Stream{}), cudaErrorInvalidValue) << "quantised weights multiply f16 alone";
    a.act = Act::kF16;
    EXPECT_EQ(launch_gemm(a, Stream{}), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
}

TEST(Comparator, RefusesNaN) {
  EXPECT_FALSE(close(std::nan(""), 1, 1));
  EXPECT_FALSE(close(1, std::nan(""), 1));
  EXPECT_FALSE(close(1, 1, std::nan("")));
  EXPECT_FALSE(close(INFINITY, INFINITY, 1));
  EXPECT_TRUE(close(1, 1, 0));
}

}  // namespace
}  // namespace mr::cuda
