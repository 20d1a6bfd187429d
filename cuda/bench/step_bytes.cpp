// step_bytes: one step under a profiler. A profiler that starts when the program says so sees that step alone, so its
// counters can be compared with the bytes that the step claims to read. Prints the claim. The step decodes a token of
// each sequence or, with --prefill, computes a prompt of that many tokens.
//
//   cuda_bench_step_bytes [--type bf16] [--batch 1] [--context 128] [--layers 8] [--prefill 512]
//
// The model has the shapes of an 8B Llama and random weights.
#include <cuda_profiler_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/shape.h"
#include "kernels/gemm/weight.h"
#include "src/buffer.h"
#include "src/error.h"
#include "src/model.h"
#include "src/runner.h"
#include "tests/uniform.h"

namespace {

using namespace mr::cuda;

struct NamedType {
  const char* name;
  int32_t type, block_bytes, halves;  // halves: f16 scales that a block begins with
};
constexpr NamedType kTypes[] = {{"bf16", kBF16, 2, 0}, {"f16", kF16, 2, 0}, {"q8_0", kQ8_0, 34, 1}, {"q4_k", kQ4_K, 144, 2}};

// Returns blocks of random bits that are small finite numbers.
std::vector<uint8_t> random_blocks(const NamedType& type) {
  constexpr size_t kBlocks = size_t{1} << 18;
  std::vector<uint8_t> bytes(kBlocks * static_cast<size_t>(type.block_bytes));
  std::mt19937 random(1);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(type.block_bytes)) {
    // Below 2^-6, both in f16 and in bf16.
    for (int32_t i = 0; i < std::max(type.halves, type.block_bytes == 2 ? 1 : 0); ++i) {
      uint8_t& high = bytes[at + static_cast<size_t>(i) * 2 + 1];
      high = static_cast<uint8_t>(type.type == kBF16 ? (high & 0x80) | 0x3c : (high & 0x80) | 0x10);
    }
  }
  return bytes;
}

UniformShape desc_of(int32_t layers) {
  UniformShape d{};
  d.layers = layers;
  d.hidden = 4096;
  d.heads = 32;
  d.kv_heads = 8;
  d.head_dim = d.rope_dims = 128;
  d.ffn = 14336;
  d.vocab = 128256;
  d.context = 8192;
  d.rope_base = 500000;
  d.rope_scale = 1;
  d.norm_eps = 1e-5f;
  return d;
}

std::shared_ptr<Model> make_model(const std::shared_ptr<Device>& device, const UniformShape& desc, const NamedType& type) {
  const mr::Description described = description_of(desc);
  auto model = std::make_shared<Model>(device, described);
  const std::vector<uint8_t> blocks = random_blocks(type);
  const std::vector<float> ones(static_cast<size_t>(desc.hidden), 1.0f);
  for (int32_t role = 0; role < MR_ROLE_COUNT; ++role) {
    if (!mr::has_role(described, role, 0)) continue;
    for (int32_t layer = 0; layer < (mr::in_layer(role) ? desc.layers : 1); ++layer) {
      mr_tensor_desc t{};
      t.struct_size = sizeof t;
      t.role = role;
      t.layer = mr::in_layer(role) ? layer : -1;
      t.type = mr::is_vector(role) ? kF32 : type.type;
      t.ndims = mr::is_vector(role) ? 1 : 2;
      mr::role_dims(described, role, 0, t.dims);
      const uint64_t size = mr::tensor_file_size(t);
      auto staging = std::make_shared<Buffer>(device, size, MR_PURPOSE_STAGING);
      const void* const source = mr::is_vector(role) ? static_cast<const void*>(ones.data()) : blocks.data();
      for (uint64_t at = 0; at < size; at += blocks.size())
        staging->write(at, source, std::min<uint64_t>(blocks.size(), size - at));
      model->bind(t, std::move(staging));
    }
  }
  model->seal();
  return model;
}

// Batch is sequences that step together, each with blocks of its own.
class Batch {
 public:
  Batch(Runner& runner, int32_t size, int32_t blocks) : runner_(runner), blocks_(blocks), results_(static_cast<size_t>(size)) {
    params_.struct_size = sizeof params_;
    params_.prompt_length = 1;
    params_.top_p = params_.typical_p = params_.repetition_penalty = 1;
    params_.allowed_count = -1;
  }

  // Adds `count` tokens of sequence `slot`, or of every one (-1), from position `first` on; a position of 0 begins a
  // sequence. Returns the bytes claimed.
  uint64_t step(int32_t slot, int32_t first, int32_t count, int32_t kernel_class) {
    std::vector<mr_segment> segments;
    std::vector<mr_sample_row> samples;
    std::vector<mr_pre_op> pre_ops;
    std::vector<int32_t> tokens, blocks;
    for (int32_t s = slot < 0 ? 0 : slot; s < (slot < 0 ? static_cast<int32_t>(results_.size()) : slot + 1); ++s) {
      if (first == 0) {
        mr_pre_op op{};
        op.struct_size = sizeof op;
        op.slot = s;
        op.slot_generation = 1;
        op.params = &params_;
        pre_ops.push_back(op);
      }
      mr_segment segment{};
      segment.slot = s;
      segment.slot_generation = 1;
      segment.kernel_class = kernel_class;
      segment.first_position = first;
      segment.count = count;
      segment.block_offset = static_cast<int32_t>(blocks.size());
      segment.block_count = blocks_;
      for (int32_t b = 0; b < blocks_; ++b) blocks.push_back(s * blocks_ + b);
      for (int32_t i = 0; i < count; ++i) tokens.push_back((s * 131 + (first + i) * 7) % 32000);
      samples.push_back({static_cast<int32_t>(tokens.size()) - 1, s, 1, first + count, -1});
      segments.push_back(segment);
    }
    mr_step step{};
    step.struct_size = sizeof step;
    step.segment_stride = sizeof(mr_segment);
    step.sample_stride = sizeof(mr_sample_row);
    step.score_stride = sizeof(mr_score_row);
    step.pre_op_stride = sizeof(mr_pre_op);
    step.segments = segments.data();
    step.segment_count = static_cast<int32_t>(segments.size());
    step.token_count = static_cast<int32_t>(tokens.size());
    step.tokens = tokens.data();
    step.block_ids = blocks.data();
    step.block_id_count = static_cast<int32_t>(blocks.size());
    step.samples = samples.data();
    step.sample_count = static_cast<int32_t>(samples.size());
    step.pre_ops = pre_ops.data();
    step.pre_op_count = static_cast<int32_t>(pre_ops.size());
    runner_.submit(step);
    mr_step_result result{};
    result.struct_size = sizeof result;
    result.row_stride = sizeof(mr_row_result);
    result.samples = results_.data();
    result.sample_capacity = static_cast<int32_t>(results_.size());
    runner_.wait(600'000'000'000, &result);
    for (int32_t i = 0; i < result.sample_count; ++i)
      if (const int32_t status = results_[static_cast<size_t>(i)].status; status != MR_ROW_OK)
        fail(MR_INTERNAL, "row %d of a step has status %d", i, status);
    return result.bytes_read;
  }

 private:
  Runner& runner_;
  const int32_t blocks_;
  mr_slot_params params_{};
  std::vector<mr_row_result> results_;
};

void run(const NamedType& type, int32_t size, int32_t context, int32_t layers, int32_t prefill) {
  mr_device_options options{};
  options.struct_size = sizeof options;
  const auto device = std::make_shared<Device>(options);
  const auto model = make_model(device, desc_of(layers), type);
  mr_runner_config config{};
  config.struct_size = sizeof config;
  config.block_size = 16;
  const int32_t blocks = context / config.block_size + 1;
  config.kv_blocks = size * blocks;
  config.max_sequences = config.max_sample_rows = size;
  config.max_batched_tokens = std::max({size, 2048, prefill});
  config.kv_type = MR_KV_F16;  // a worker's default
  Runner runner(model, config);
  runner.settle();
  Batch batch(runner, size, blocks);
  constexpr int32_t kWarm = 2;
  for (int32_t slot = 0; slot < size; ++slot)
    for (int32_t first = 0; first < context - kWarm; first += 2048)
      (void)batch.step(slot, first, std::min(2048, context - kWarm - first), MR_CLASS_PREFILL);
  for (int32_t i = 0; i < kWarm; ++i) (void)batch.step(-1, context - kWarm + i, 1, MR_CLASS_DECODE);
  if (prefill > 0) (void)batch.step(0, 0, prefill, MR_CLASS_PREFILL);
  CUDA_CHECK(cudaProfilerStart());
  const uint64_t claimed = prefill > 0 ? batch.step(0, 0, prefill, MR_CLASS_PREFILL) : batch.step(-1, context, 1, MR_CLASS_DECODE);
  CUDA_CHECK(cudaProfilerStop());
  std::printf("%s, batch %d, context %d, %d layers: one step claims to read %llu bytes\n", type.name, size, context, layers,
              static_cast<unsigned long long>(claimed));
}

}  // namespace

int main(int argc, char** argv) {
  std::string type = "bf16";
  int32_t batch = 1, context = 128, layers = 8, prefill = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--type") type = argv[i + 1];
    if (flag == "--batch") batch = std::atoi(argv[i + 1]);
    if (flag == "--context") context = std::atoi(argv[i + 1]);
    if (flag == "--layers") layers = std::atoi(argv[i + 1]);
    if (flag == "--prefill") prefill = std::atoi(argv[i + 1]);
  }
  const auto* const named = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const NamedType& t) { return type == t.name; });
  context = std::max(context, prefill);
  if (named == std::end(kTypes) || batch < 1 || context < 8 || layers < 1 || prefill < 0) {
    std::fprintf(stderr, "usage: %s [--type bf16|f16|q8_0|q4_k] [--batch N] [--context N] [--layers N] [--prefill N]\n", argv[0]);
    return 2;
  }
  try {
    run(*named, batch, context, layers, prefill);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.message.c_str());
    return 1;
  }
  return 0;
}
