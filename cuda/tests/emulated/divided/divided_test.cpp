// Models on several emulated GPUs: the shards, the ranks and the stages between gathers are the engine's, and so are the kernels of
// experts, norms and ends of branches. The residual stream and the logits must be those of one GPU on every rank. And models of attention
// over a latent on one emulated GPU, with the grouped GEMMs of its matrices of heads.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "src/forward.h"
#include "tests/divided_cases.h"
#include "tests/emulated/divided/stand_ins.h"

namespace mr::cuda::test {
namespace {

constexpr int32_t kRows = 5, kPromptRows = 60;

mr_runner_config config_of() {
  mr_runner_config c{};
  c.struct_size = sizeof c;
  c.kv_blocks = 4;
  c.block_size = 16;
  c.max_sequences = 1;
  c.max_batched_tokens = c.max_sample_rows = kPromptRows;
  c.kv_type = MR_KV_F16;
  return c;
}

struct Results {
  std::vector<uint32_t> x, logits;
};

// Runs a step of tokens, the last of whose decode rows is padding if there are several.
std::vector<Results> results_of(const std::shared_ptr<const Model>& model, int32_t decode_rows, int32_t rows) {
  const Sizes sizes(model->desc(), config_of(), model->ranks());
  Forward forward(model, config_of(), sizes);
  StepShape shape(rows, decode_rows, rows, 0);
  for (StepShape::Prefill& prefill : shape.prefill)
    if (rows > decode_rows) prefill.group_count = 1, prefill.groups[0].items = decode_rows;
  step_rows = rows;
  const Lanes lanes(static_cast<size_t>(model->ranks()));
  for (int32_t r = 0; r < model->ranks(); ++r) {
    const auto at = [&](uint64_t offset) { return reinterpret_cast<int32_t*>(forward.rank(r).space().input + offset); };
    for (int32_t i = 0; i < rows; ++i) {
      at(shape.token)[i] = (i * 83 + 5) % model->desc().vocab;
      at(shape.gather)[i] = at(shape.position)[i] = i;
    }
    for (int32_t block = 0; block < config_of().kv_blocks; ++block) at(shape.block_ids)[block] = config_of().kv_blocks - 1 - block;
    if (decode_rows > 1) at(shape.slot)[decode_rows - 1] = -1;
  }
  for (int32_t step = 0; step < 2; ++step) forward.queue(shape, lanes);
  std::vector<Results> all;
  const auto bits = [](const float* values, int64_t stride, int32_t count, int32_t width) {
    std::vector<uint32_t> out(static_cast<size_t>(count * width));
    for (int32_t i = 0; i < count; ++i)
      std::memcpy(&out[static_cast<size_t>(i * width)], values + i * stride, static_cast<size_t>(width) * 4);
    return out;
  };
  for (int32_t r = 0; r < model->ranks(); ++r) {
    const Workspace& space = forward.rank(r).space();
    all.push_back({bits(space.x, sizes.hidden_stride, rows, model->desc().hidden),
                   bits(space.logits, sizes.vocab_stride, rows, model->desc().vocab)});
  }
  return all;
}

std::shared_ptr<Model> bound(int32_t ranks, const Description& desc, const std::vector<TensorBytes>& tensors) {
  forget_weights();
  auto model = std::make_shared<Model>(ranks, desc);
  for (const TensorBytes& t : tensors) model->bind(t.desc, t.bytes);
  return model;
}

// A case with narrower layers and fewer experts.
DividedCase small(DividedCase c) {
  c.desc.hidden = 128;
  c.desc.vocab = 101;
  for (mr_layer_desc& layer : c.desc.layers) {
    if (layer.mlp.kind == MR_MLP_DENSE) layer.mlp.width = 160;
    layer.experts.count = std::min(layer.experts.count, 6);
    layer.experts.used = std::min(layer.experts.used, 3);
  }
  return c;
}

struct Param {
  int32_t ranks;
  size_t index;  // of the case
};

class DividedBetween : public testing::TestWithParam<Param> {
 protected:
  static int32_t ranks() { return GetParam().ranks; }
  static std::pair<std::string, DividedCase> chosen() { return divided_cases(ranks())[GetParam().index]; }
};

TEST_P(DividedBetween, EveryRankHasTheBitsOfOneGpu) {
  const auto [name, full] = chosen();
  const DividedCase c = small(full);
  const std::vector<TensorBytes> tensors = described_tensors(c.desc, c.type, random_bytes);
  const auto one = bound(1, c.desc, tensors), all = bound(ranks(), c.desc, tensors);
  for (const auto& [decode_rows, rows] : std::vector<std::pair<int32_t, int32_t>>{{1, 1}, {3, kRows}}) {
    const Results want = results_of(one, decode_rows, rows)[0];
    for (const uint32_t word : want.logits) ASSERT_NE(word & 0x7f800000, 0x7f800000u) << name << ": not a number";
    const std::vector<Results> got = results_of(all, decode_rows, rows);
    for (size_t r = 0; r < got.size(); ++r) {
      EXPECT_TRUE(got[r].x == want.x) << name << ": " << decode_rows << " of " << rows << " rows, rank " << r;
      EXPECT_TRUE(got[r].logits == want.logits) << name << ": logits of " << decode_rows << " of " << rows << " rows, rank " << r;
    }
  }
}

// The comparison sees a share that is wrong: a changed weight of any rank's part of an expert changes the results.
TEST(Divided, AChangedShareIsSeen) {
  constexpr int32_t kRanks = 2;
  const DividedCase c = small(divided_cases(kRanks).front().second);
  const std::vector<TensorBytes> tensors = described_tensors(c.desc, c.type, random_bytes);
  const auto model = bound(kRanks, c.desc, tensors);
  const Results want = results_of(model, 3, kRows)[0];
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].desc.role != MR_ROLE_EXPERT_DOWN) continue;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      // All experts' matrices of this rank change, so that the choice of the router does not matter.
      Shard& shard = const_cast<Shard&>(model->shard(rank));
      const uint64_t each = shard.size(static_cast<int32_t>(i)) / static_cast<uint64_t>(tensors[i].desc.dims[2]);
      const auto flip = [&] {
        for (int64_t e = 0; e < tensors[i].desc.dims[2]; ++e)
          shard.flip_bit(static_cast<int32_t>(i), static_cast<uint64_t>(e) * each * 8 + 14);
      };
      flip();
      EXPECT_FALSE(results_of(model, 3, kRows)[0].x == want.x) << "layer " << tensors[i].desc.layer << ", rank " << rank;
      flip();
    }
  }
  EXPECT_TRUE(results_of(model, 3, kRows)[0].x == want.x);
}

// The parts of a stack, restored in the order of the file.
TEST_P(DividedBetween, PartsAreRestoredToTheFile) {
  const auto [name, full] = chosen();
  const DividedCase c = small(full);
  const std::vector<TensorBytes> tensors = described_tensors(c.desc, c.type, random_bytes);
  const auto model = bound(ranks(), c.desc, tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const mr_tensor_desc& t = tensors[i].desc;
    if (held_by_all(t.role)) continue;
    std::vector<uint64_t> held;
    for (int32_t r = 0; r < ranks(); ++r) held.push_back(model->shard(r).file_size(static_cast<int32_t>(i)));
    std::vector<uint8_t> file(tensors[i].bytes.size());
    for (uint64_t at = 0; at < file.size();) {
      const FilePart part = file_part(held.data(), ranks(), members_in(t), at, file.size() - at);
      model->shard(part.rank).restore(static_cast<int32_t>(i), part.offset, part.bytes, &file[at], nullptr);
      at += part.bytes;
    }
    EXPECT_TRUE(file == tensors[i].bytes) << name << ": " << tensor_name(t.role, t.layer);
  }
}

// As DeepSeek V2-Lite and V3, of small and odd sizes: with queries from the residual stream and from a latent.
Description latents() {
  Description desc = description_of(desc_of(2, 2, 32));
  desc.hidden = 128;
  desc.vocab = 101;
  desc.ropes[0].dims = 8;
  for (int32_t i = 0; i < desc.layer_count(); ++i) {
    mr_mixer_desc m{};
    m.kind = MR_MIX_LATENT;
    m.heads = 3;
    m.kv_heads = 1;
    m.key_dim = 8 + 20;
    m.value_dim = 12;
    m.latent = 24 + 16 * i;
    m.query_latent = 40 * i;
    desc.layers[static_cast<size_t>(i)].mixer = m;
    desc.layers[static_cast<size_t>(i)].mlp.width = 160;
  }
  return desc;
}

// Prompts of 48 rows and more are multiplied by other kernels of the grouped GEMMs than shorter ones, which give the same bits.
TEST(Latents, RowsOfAPromptHaveTheBitsOfShorterOnes) {
  const Description desc = latents();
  const auto model = bound(1, desc, described_tensors(desc, types(kF16, kF16), random_bytes));
  const Results all = results_of(model, 0, kPromptRows)[0];
  for (const uint32_t word : all.logits) ASSERT_NE(word & 0x7f800000, 0x7f800000u) << "not a number";
  for (const int32_t rows : {1, 47, 48}) {
    const Results some = results_of(model, 0, rows)[0];
    EXPECT_TRUE(std::equal(some.x.begin(), some.x.end(), all.x.begin())) << rows << " rows";
    EXPECT_TRUE(std::equal(some.logits.begin(), some.logits.end(), all.logits.begin())) << "logits of " << rows << " rows";
  }
}

// The rows of a prompt do not depend on the rows that are decoded in the same step.
TEST(Latents, PromptsHaveTheSameBitsAfterDecodeRows) {
  const Description desc = latents();
  const auto model = bound(1, desc, described_tensors(desc, types(kF16, kF16), random_bytes));
  const Results alone = results_of(model, 0, kPromptRows)[0], mixed = results_of(model, 3, kPromptRows)[0];
  const int64_t decoded = int64_t{3} * desc.hidden;
  EXPECT_TRUE(std::equal(alone.x.begin() + decoded, alone.x.end(), mixed.x.begin() + decoded));
}

std::vector<Param> params() {
  std::vector<Param> all;
  for (size_t i = 0; i < divided_cases(2).size(); ++i) all.push_back({2, i});
  all.push_back({4, 2});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, DividedBetween, testing::ValuesIn(params()), [](const auto& info) {
  return std::to_string(info.param.ranks) + "RanksCase" + std::to_string(info.param.index);
});

}  // namespace
}  // namespace mr::cuda::test
