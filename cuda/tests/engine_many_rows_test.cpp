// Steps of many rows, up to the maximum, give each row the same bits every time.
//
// At the widths of an 8B model GEMMs use several tiles of many tokens, and kernels begin before those ahead have ended.
// A read that is too early, or a write that is too early, shows here and in no smaller shape. Two steps are in
// flight, as in serving. A failure reports from which step on rows differ, and which: all rows at once point to a GEMM,
// a single row to something of its own.
#include <sstream>

#include "tests/engine_step.h"
#include "tests/gemm_fixture.h"

namespace mr::cuda::test {
namespace {

constexpr int32_t kSteps = 80, kBlocks = (kSteps + 16) / 16, kRows = 256;

UniformShape wide_desc(int32_t vocab) {
  UniformShape d = desc_of(32, 8, 128);
  d.hidden = 4096;
  d.ffn = 14336;
  d.vocab = vocab;
  return d;
}

std::shared_ptr<Model> wide_model(const std::shared_ptr<Device>& device, int32_t type, int32_t vocab) {
  const UniformShape desc = wide_desc(vocab);
  const auto matrix = [](const mr_tensor_desc& t, std::mt19937& random) { return ordinary_file(t.type, t.dims[1], t.dims[0], random); };
  return bound_model(device, desc, random_tensors(desc, type, matrix));
}

mr_runner_config wide_config() {
  mr_runner_config c = config_of(MR_KV_F16);
  c.kv_blocks = kRows * kBlocks;
  c.max_sequences = c.max_sample_rows = kRows;
  return c;
}

struct Case {
  int32_t type;
  const char* name;
  int32_t rows, vocab = 8192;
};

// Rows of one token each: step 0 computes their prompts, every later one uses the tokens that the one before sampled.
StepMaker step_of(int32_t rows, int32_t at) {
  StepMaker maker;
  for (int32_t slot = 0; slot < rows; ++slot) {
    if (at == 0) maker.set(slot, params_of(1));
    const std::vector<int32_t> ids = {at == 0 ? (31 * slot + 7) % 8192 : -1};
    const int32_t token = maker.feed(slot, at == 0 ? MR_CLASS_PREFILL : MR_CLASS_DECODE, at, ids, range(slot * kBlocks, kBlocks));
    maker.sample(token, slot, at + 1);
  }
  return maker;
}

std::vector<std::vector<Row>> play(Runner& runner, int32_t rows) {
  std::vector<std::vector<Row>> steps;
  runner.submit(step_of(rows, 0).step());
  for (int32_t at = 1; at < kSteps; ++at) {
    runner.submit(step_of(rows, at).step());
    steps.push_back(collect(runner));
  }
  steps.push_back(collect(runner));
  return steps;
}

// Returns "", or where two plays first differ.
std::string difference(const std::vector<std::vector<Row>>& want, const std::vector<std::vector<Row>>& got) {
  for (size_t at = 0; at < want.size(); ++at) {
    std::ostringstream rows;
    int32_t others = 0, tokens = 0;
    for (size_t r = 0; r < want[at].size(); ++r) {
      if (want[at][r] == got[at][r]) continue;
      ++others;
      tokens += want[at][r].token != got[at][r].token ? 1 : 0;
      if (others <= 40) rows << " " << r;
    }
    if (others > 0) {
      std::ostringstream text;
      text << "step " << at << ": " << others << " rows differ, " << tokens << " of them in their token:" << rows.str();
      return text.str();
    }
  }
  return {};
}

class ManyRows : public testing::TestWithParam<Case> {};

TEST_P(ManyRows, GetTheSameBitsEveryTime) {
  const Case& c = GetParam();
  const std::shared_ptr<Device> device = open_device(uint64_t{8} << 30);
  const std::shared_ptr<Model> model = wide_model(device, c.type, c.vocab);
  std::vector<std::vector<Row>> want;
  for (const RunnerOptions options : {RunnerOptions{false, false}, RunnerOptions{false, true}, RunnerOptions{true, true}}) {
    Runner runner(model, wide_config(), options);
    runner.settle();
    const int32_t plays = options.dependent ? 40 : 2;
    for (int32_t i = 0; i < plays; ++i) {
      const std::vector<std::vector<Row>> got = play(runner, c.rows);
      if (want.empty()) {
        want = got;
        for (const std::vector<Row>& step : want)
          for (const Row& row : step) ASSERT_EQ(row.status, MR_ROW_OK);
      }
      ASSERT_EQ(difference(want, got), "") << "play " << i << ", graphs " << options.graphs << ", dependent " << options.dependent;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ManyRows,
                         testing::Values(Case{kQ4_K, "Q4_K", 256}, Case{kQ4_K, "Q4_K_of_128256_", 256, 128256},
                                         Case{kQ4_K, "Q4_K", 144},
                                         Case{kQ4_K, "Q4_K", 128}, Case{kQ4_K, "Q4_K", 64}, Case{kQ8_0, "Q8_0", 256},
                                         Case{kQ6_K, "Q6_K", 256},
                                         Case{kF16, "F16", 256}, Case{kBF16, "BF16", 256}),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name + std::to_string(info.param.rows); });

}  // namespace
}  // namespace mr::cuda::test
