// The size of an 8-bit cache and of the scratch for its widened blocks, and the bytes that its steps claim to read.
#include "src/step_bytes.h"
#include "src/workspace.h"
#include "tests/engine_step.h"

namespace mr::cuda::test {
namespace {

TEST(F8Cache, TakesAByteAnElementAndAScaleAHead) {
  const auto device = open_device();
  for (const int32_t head_dim : {32, 40, 64, 80, 96, 128, 256}) {
    const UniformShape desc = desc_of(4, 2, head_dim);
    const auto model = random_model(device, desc, kF16);
    mr_runner_cost cost{};
    Runner::cost(*model, config_of(MR_KV_F8), &cost);
    const int32_t padded = pad_head_dim(head_dim);
    const uint64_t planes = 2 * static_cast<uint64_t>(desc.layers), kv_heads = 2;
    EXPECT_EQ(cost.bytes_per_block, planes * kv_heads * 16 * static_cast<uint64_t>(padded + 4)) << head_dim;
    EXPECT_EQ(cost.kv_bytes, cost.bytes_per_block * 512u);

    StepPlan plan;
    plan.tokens = {1};
    mr_segment segment{};
    segment.first_position = 99;
    segment.count = 1;
    plan.segments = {segment};
    const uint64_t eight = step_bytes(*model, Kv::kF8, plan);
    const uint64_t sixteen = step_bytes(*model, Kv::kAct, plan);
    EXPECT_EQ(sixteen - eight, 100 * planes * kv_heads * static_cast<uint64_t>(head_dim - 4)) << head_dim;
  }
}

// The scratch is as large as the pool or as what a step sees, and part of the workspace that the cost names.
TEST(F8Cache, CountsTheScratchOfWidenedBlocks) {
  const auto device = open_device();
  const auto model = random_model(device, desc_of(4, 2, 64), kF16);
  mr_runner_cost eight{}, sixteen{};
  Runner::cost(*model, config_of(MR_KV_F8), &eight);
  Runner::cost(*model, config_of(MR_KV_BF16), &sixteen);
  const Sizes sizes(model->desc(), config_of(MR_KV_F8)), without(model->desc(), config_of(MR_KV_BF16));
  EXPECT_EQ(without.wide_blocks[0], 0);
  const int32_t seen = (sizes.positions + sizes.tokens) / 16 + 1;
  EXPECT_EQ(sizes.wide_blocks[0], device->properties.major == 9 && device->properties.minor == 0 ? std::min(512, seen) : 0);
  const uint64_t bytes = static_cast<uint64_t>(sizes.wide_blocks[0]) * 2 * 16 * 2 * 64 * sizeof(uint16_t);
  EXPECT_EQ(eight.workspace_bytes - sixteen.workspace_bytes, (bytes + 255) / 256 * 256);
}

// Logprobs of a prompt's tokens.
std::vector<float> scores_of(const std::shared_ptr<Model>& model, const mr_runner_config& config) {
  Runner runner(model, config, {false, false});
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 40; ++i) prompt.push_back(i * 37 % 509);
  const Output output = play(runner, {{3, prompt, 16, 1}})[0];
  std::vector<float> scores;
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    EXPECT_NE(output.bits[2 * i], static_cast<uint32_t>(-1)) << "token " << i + 1;
    float score;
    std::memcpy(&score, &output.bits[2 * i + 1], sizeof score);
    scores.push_back(score);
  }
  return scores;
}

TEST(F8Cache, StandsBesideActivationsOfEitherType) {
  const auto device = open_device();
  const auto model = random_model(device, desc_of(4, 2, 64), kF16);
  const std::vector<float> sixteen = scores_of(model, config_of(MR_KV_BF16));
  for (const int32_t act_type : {0, int32_t{MR_KV_BF16}, int32_t{MR_KV_F16}}) {
    mr_runner_config config = config_of(MR_KV_F8);
    config.act_type = act_type;
    const Sizes sizes(model->desc(), config);
    EXPECT_EQ(sizes.layouts[0].act, act_type == MR_KV_F16 ? Act::kF16 : Act::kBF16) << act_type;
    EXPECT_EQ(sizes.layouts[0].kv, Kv::kF8);
    const std::vector<float> eight = scores_of(model, config);
    for (size_t i = 0; i < sixteen.size(); ++i) EXPECT_NEAR(eight[i], sixteen[i], 0.25) << act_type << " token " << i + 1;
    EXPECT_NE(eight, sixteen);
  }
}

// Returns the scores of a prompt of slot 0 that is computed in chunks, the first of them in a step with 400 tokens of slot 1.
std::vector<Row> scores_in_chunks(Runner& runner, const std::vector<int32_t>& prompt, int32_t chunk) {
  const int32_t length = static_cast<int32_t>(prompt.size());
  std::vector<Row> rows;
  for (int32_t at = 0; at < length; at += chunk) {
    const int32_t end = std::min(at + chunk, length);
    StepMaker maker;
    if (at == 0) maker.set(1, params_of(400)), maker.set(0, params_of(length));
    if (at == 0) (void)maker.feed(1, MR_CLASS_PREFILL, 0, random_ids(5, 400), range(100, 25));
    const int32_t first = maker.feed(0, MR_CLASS_PREFILL, at, {prompt.begin() + at, prompt.begin() + end}, range(0, 40));
    for (int32_t p = at; p < end && p + 1 < length; ++p) maker.score(first + p - at, prompt[static_cast<size_t>(p) + 1]);
    const std::vector<Row> more = run(runner, maker);
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

// Blocks of long prompts are widened ahead on compute capability 9.0, those of short ones and of first chunks by each tile.
TEST(F8Cache, GivesTheSameBitsHoweverAPromptIsCut) {
  const auto device = open_device();
  const auto model = random_model(device, desc_of(4, 2, 128), kF16);
  Runner runner(model, config_of(MR_KV_F8), {true, true});
  const std::vector<int32_t> prompt = random_ids(4, 600);
  const std::vector<Row> whole = scores_in_chunks(runner, prompt, 600);
  ASSERT_EQ(whole.size(), 599u);
  for (const int32_t chunk : {301, 100, 33}) EXPECT_EQ(scores_in_chunks(runner, prompt, chunk), whole) << "chunks of " << chunk;
}

}  // namespace
}  // namespace mr::cuda::test
