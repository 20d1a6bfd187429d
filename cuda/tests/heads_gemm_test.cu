// A GEMM with the heads epilogue gives the bits of the plain GEMM followed by launch_finish_qkv.
#include "kernels/gemm/input_sums.h"
#include "kernels/gemm/skinny_wgmma.h"
#include "kernels/norm.h"
#include "kernels/qkv.h"
#include "millrace/engine.h"
#include "tests/gemm_fixture.h"

namespace mr::cuda {
namespace {

class HeadsGemm : public testing::TestWithParam<TypeName> {
 protected:
  static void SetUpTestSuite() { ASSERT_EQ(prepare_gemms(), cudaSuccess); }
};

INSTANTIATE_TEST_SUITE_P(All, HeadsGemm, testing::ValuesIn(kTypeNames), name_of);

struct Heads {
  int32_t heads, kv_heads, dim, rope_dims, block_size;
  bool bias, normed, padding;
};

// type: of keys and values; q_type: of queries. If c says so, the last token is padding.
void check(int32_t q_type, int32_t type, Act act, Act cache, int32_t tokens, const Heads& c, std::mt19937& random) {
  SCOPED_TRACE(testing::Message() << tokens << " tokens, " << c.heads << "+" << c.kv_heads << " heads of " << c.dim << ", " << c.rope_dims
                                  << " turned, activations " << static_cast<int>(act) << ", cache " << static_cast<int>(cache));
  const int64_t cols = 768, q_rows = c.heads * c.dim, kv_rows = c.kv_heads * c.dim, width = q_rows + 2 * kv_rows;
  const Packed q(q_type, q_rows, cols, ordinary_file(q_type, q_rows, cols, random));
  const Packed k(type, kv_rows, cols, ordinary_file(type, kv_rows, cols, random));
  const Packed v(type, kv_rows, cols, ordinary_file(type, kv_rows, cols, random));
  std::vector<float> biases_of_rows = normals(width, 1, random);
  for (int64_t i = 3; i < width; i += 29) biases_of_rows[static_cast<size_t>(i)] *= 2e5f;  // some beyond f16
  Guarded bias(biases_of_rows), rope_table(normals(std::max(c.rope_dims, 1) * tokens, 1, random));
  // Tokens are in the second and the third of three blocks each.
  std::vector<int32_t> slots, positions, tables, ids;
  for (int32_t t = 0; t < tokens; ++t) {
    slots.push_back(c.padding && t + 1 == tokens ? -1 : t);
    positions.push_back(slots[static_cast<size_t>(t)] < 0 ? 0 : c.block_size + (5 + t) % (2 * c.block_size));
    tables.push_back(3 * t);
    for (int32_t b = 0; b < 3; ++b) ids.push_back(3 * tokens - 1 - (3 * t + b));
  }
  Guarded slot(slots), position(positions), table(tables), blocks(ids);
  GemmHeads heads;
  heads.rows = {slot.as<int32_t>(), position.as<int32_t>(), table.as<int32_t>(), blocks.as<int32_t>()};
  heads.rope_table = rope_table.as<float>();
  heads.rope_dims = c.rope_dims;
  heads.rope_style = MR_ROPE_NORM;
  heads.layout = {cache, c.block_size, c.kv_heads, c.dim, pad_head_dim(c.dim)};
  const size_t plane = static_cast<size_t>(heads.layout.block_bytes()) * 3 * static_cast<size_t>(tokens);

  const Inputs inputs = random_inputs(act, tokens, cols, cols, random);
  Guarded x(inputs.bits), row(normals(cols, 3, random)), weight(normals(cols, 1, random)), normed(static_cast<size_t>(cols) * 2);
  ASSERT_EQ(launch_rms_norm({row.as<float>(), weight.as<float>(), nullptr, normed.data(), act, 1, static_cast<int32_t>(cols), cols, cols,
                             1e-5f}, Stream{}), cudaSuccess);
  Guarded sums(static_cast<size_t>(width * tokens) * 4), input_sums(static_cast<size_t>(input_sum_bytes(tokens, cols)));
  GemmArgs args;
  args.targets[0] = {q.weight, nullptr, sums.data(), width};
  args.targets[1] = {k.weight, nullptr, sums.data() + q_rows * 4, width};
  args.targets[2] = {v.weight, nullptr, sums.data() + (q_rows + kv_rows) * 4, width};
  args.count = 3;
  args.x = c.normed && tokens == 1 ? normed.data() : x.data();
  args.x_stride = cols;
  args.act = act;
  args.tokens = tokens;
  args.input_sums = input_sums.data();
  ASSERT_EQ(launch_gemm(args, Stream{}), cudaSuccess);
  float* const biases[3] = {bias.as<float>(), bias.as<float>() + q_rows, bias.as<float>() + q_rows + kv_rows};
  const int64_t q_stride = q_rows + 8;
  Guarded want_q(static_cast<size_t>(q_stride * tokens) * 2), want_k(plane), want_v(plane);
  FinishQkvArgs finish{};
  finish.rows = heads.rows;
  finish.count = tokens;
  finish.qkv = sums.as<float>();
  finish.qkv_stride = width;
  if (c.bias) finish.q_bias = biases[0], finish.k_bias = biases[1], finish.v_bias = biases[2];
  finish.rope_table = heads.rope_table;
  finish.rope_dims = c.rope_dims;
  finish.rope_style = heads.rope_style;
  finish.heads = c.heads;
  finish.q_out = want_q.data();
  finish.q_stride = q_stride;
  finish.layout = heads.layout;
  finish.keys = want_k.data();
  finish.values = want_v.data();
  ASSERT_EQ(launch_finish_qkv(finish, Stream{}), cudaSuccess);

  Guarded got_q(static_cast<size_t>(q_stride * tokens) * 2), got_k(plane), got_v(plane);
  args.heads = heads;
  args.epilogue = Epilogue::kHeads;
  ASSERT_TRUE(gemm_fuses_heads(args));
  args.targets[0].out_stride = q_stride;
  uint8_t* const outs[3] = {got_q.data(), got_k.data(), got_v.data()};
  for (int i = 0; i < 3; ++i) args.targets[i].out = outs[i], args.targets[i].bias = c.bias ? biases[i] : nullptr;
  if (c.normed && tokens == 1) args.norm = {row.as<float>(), weight.as<float>(), 1e-5f};
  const auto gives_the_bits = [&](auto&& run) {
    got_q.write(std::vector<uint8_t>(static_cast<size_t>(q_stride * tokens) * 2, 0xa5));
    for (Guarded* out : {&got_k, &got_v}) out->write(std::vector<uint8_t>(plane, 0xa5));
    ASSERT_EQ(run(), cudaSuccess);
    EXPECT_TRUE(got_q.read<uint16_t>() == want_q.read<uint16_t>()) << "queries";
    EXPECT_TRUE(got_k.read<uint16_t>() == want_k.read<uint16_t>()) << "keys";
    EXPECT_TRUE(got_v.read<uint16_t>() == want_v.read<uint16_t>()) << "values";
  };
  gives_the_bits([&] { return launch_gemm(args, Stream{}); });
  if (tokens <= 8 || kernel_type(q_type) != kernel_type(type)) return;
  int32_t device = 0;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  for (const int32_t form : {kSkinnySixtyFour - 1, kSkinnySixtyFour}) {  // tiles of 32 and of 64 tokens
    SCOPED_TRACE(testing::Message() << "form " << form);
    gives_the_bits([&] { return launch_skinny_wgmma_as(form, device, args, 0, 3, Stream{}); });
  }
}

// Returns whether the heads epilogue supports weights of a type.
bool fuses(int32_t type, Act act, int32_t tokens) {
  Guarded memory(16, 0);
  GemmArgs args;
  args.act = act;
  args.tokens = tokens;
  for (GemmTarget& t : args.targets) t.weight = {type, 64, 256, memory.data()};
  args.count = 3;
  args.heads.rope_style = MR_ROPE_NORM;
  args.heads.layout = {Act::kF16, 16, 1, 64, 64};
  return gemm_fuses_heads(args);
}

// Returns the most tokens up to which it supports them.
int32_t few_tokens(int32_t type, Act act) {
  int32_t few = 0;
  while (few < 64 && fuses(type, act, few + 1)) ++few;
  return few;
}

constexpr Heads kCases[] = {{4, 2, 64, 64, 16, false, true, false}, {3, 1, 128, 128, 32, true, false, false},
                            {1, 1, 32, 32, 16, true, true, false},  {5, 5, 80, 32, 16, false, false, false},
                            {2, 1, 96, 2, 32, true, true, false},   {2, 1, 256, 0, 16, false, true, false},
                            {32, 8, 128, 128, 16, false, true, false},  // more tiles than there are blocks at once
                            {2, 2, 64, 64, 16, true, true, true},   {1, 1, 512, 128, 16, false, true, false}};
constexpr const Heads& kPadded = kCases[7];

TEST_P(HeadsGemm, GivesTheBitsOfBothKernels) {
  const int32_t type = GetParam().type;
  std::mt19937 random(23);
  for (const Act act : acts_of(type)) {
    const int32_t most = few_tokens(type, act);
    ASSERT_GE(most, 1);
    for (const Heads& c : kCases) {
      check(type, type, act, act, 1, c, random);
      if (most > 1) check(type, type, act, act, most, c, random);
    }
    for (int32_t tokens = 2; tokens < most; ++tokens) check(type, type, act, act, tokens, kPadded, random);
    check(type, type, act, act == Act::kF16 ? Act::kBF16 : Act::kF16, 1, kCases[0], random);
    if (act == Act::kF16) check(kQ8_0, type, act, act, 1, kCases[0], random);
  }
}

// By skinny kernels.
TEST_P(HeadsGemm, GivesTheBitsOfBothKernelsForManyTokens) {
  const int32_t type = GetParam().type;
  int32_t device = 0;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  std::mt19937 random(24);
  bool runs = false;
  for (const Act act : acts_of(type)) {
    for (const int32_t tokens : {17, 64}) ASSERT_EQ(fuses(type, act, tokens), skinny_wgmma_available(device, type, act)) << tokens;
    if (!skinny_wgmma_available(device, type, act)) continue;
    runs = true;
    for (const Heads& c : kCases) check(type, type, act, act, 39, c, random);
    for (const int32_t tokens : {17, 31, 32, 33, 64}) check(type, type, act, act, tokens, kPadded, random);
    if (act == Act::kF16 && type != kQ8_0) check(kQ8_0, type, act, act, 40, kCases[0], random);
  }
  if (!runs) GTEST_SKIP() << "no skinny kernels multiply this type here: GPUs of compute capability 9.0 have them for most types";
}

TEST(GemmHeadsEpilogue, OfDecodedTokensWhoseNeighboursTurn) {
  ASSERT_EQ(prepare_gemms(), cudaSuccess);
  int32_t device = 0;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  const bool wgmma = wgmma_available(device);
  EXPECT_EQ(few_tokens(kBF16, Act::kBF16), 1);
  EXPECT_EQ(few_tokens(kQ8_0, Act::kF16), 2);
  EXPECT_EQ(few_tokens(kQ4_K, Act::kF16), 8);
  for (const int32_t tokens : {9, 16, 65, 128}) EXPECT_FALSE(fuses(kQ4_K, Act::kF16, tokens)) << tokens;
  for (const int32_t tokens : {17, 40, 64}) EXPECT_EQ(fuses(kQ4_K, Act::kF16, tokens), wgmma) << tokens;
  EXPECT_FALSE(fuses(kBF16, Act::kF16, 40)) << "in several terms";
  Guarded memory(16, 0);
  GemmArgs args;
  for (GemmTarget& t : args.targets) t.weight = {kQ4_K, 128, 256, memory.data()};
  args.count = 3;
  args.tokens = 8;
  args.heads.rope_dims = 64;
  args.heads.rope_style = MR_ROPE_NORM;
  args.heads.layout = {Act::kF16, 16, 2, 64, 64};
  EXPECT_TRUE(gemm_fuses_heads(args));
  args.targets[2].weight.type = kQ8_0;  // its eight tokens use another kernel
  EXPECT_FALSE(gemm_fuses_heads(args));
  args.tokens = 20;
  EXPECT_EQ(gemm_fuses_heads(args), wgmma);
  args.targets[2].out = memory.data() + 2;
  EXPECT_FALSE(gemm_fuses_heads(args));
  args.targets[2].out = nullptr;
  args.targets[0].out_stride = 129;
  EXPECT_FALSE(gemm_fuses_heads(args));
  args.targets[0].out_stride = 0;
  args.tokens = 1;
  EXPECT_TRUE(gemm_fuses_heads(args));
  args.kind = GemmClass::kPrefill;
  EXPECT_FALSE(gemm_fuses_heads(args));
  args.kind = GemmClass::kDecode;
  args.heads.rope_style = MR_ROPE_NEOX;
  EXPECT_FALSE(gemm_fuses_heads(args));
  args.heads.rope_style = MR_ROPE_NORM;
  args.heads.layout.kv = Kv::kF8;
  EXPECT_FALSE(gemm_fuses_heads(args));
  args.heads.layout.kv = Kv::kAct;
  args.targets[1].weight.rows = 192;  // more than the cache has heads for
  EXPECT_FALSE(gemm_fuses_heads(args));
  args.targets[1].weight.rows = 128;
  EXPECT_TRUE(gemm_fuses_heads(args));
  args.heads.rope_dims = 8;
  for (const int32_t dim : {0, 8, 20, 48, 112}) {
    for (GemmTarget& t : args.targets) t.weight.rows = 2 * dim;
    args.heads.layout.head_dim = dim;
    args.heads.layout.padded_dim = pad_head_dim(dim);
    EXPECT_FALSE(gemm_fuses_heads(args)) << dim;
  }
}

TEST(HeadsGemmArgs, AreRefusedWhereHeadsAreNotEnded) {
  ASSERT_EQ(prepare_gemms(), cudaSuccess);
  Guarded memory(1 << 16, 0);
  GemmArgs args;
  for (GemmTarget& t : args.targets) t = {{kF16, 64, 64, memory.data()}, nullptr, memory.data(), 64};
  args.count = 3;
  args.epilogue = Epilogue::kHeads;
  args.x = memory.data();
  args.x_stride = 64;
  args.tokens = 1;
  args.heads.layout = {Act::kF16, 16, 1, 64, 64};
  ASSERT_TRUE(gemm_fuses_heads(args));
  args.heads.rope_style = MR_ROPE_NEOX;
  EXPECT_EQ(launch_gemm(args, Stream{}), cudaErrorInvalidValue);
  args.heads.rope_style = MR_ROPE_NORM;
  args.count = 2;
  EXPECT_EQ(launch_gemm(args, Stream{}), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace mr::cuda
