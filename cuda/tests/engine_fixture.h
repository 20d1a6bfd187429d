// engine_fixture: a small model of random weights on the first GPU, and a player of requests, for tests of the engine.
#pragma once

#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "cpu/shape.h"
#include "kernels/gemm/weight.h"
#include "millrace/engine.h"
#include "src/buffer.h"
#include "src/device.h"
#include "src/error.h"
#include "src/model.h"
#include "tests/random_tensors.h"
#include "tests/uniform.h"
#include "src/runner.h"

namespace mr::cuda::test {

inline std::shared_ptr<Device> open_device(uint64_t limit = uint64_t{4} << 30, uint64_t pool_limit = 0) {
  mr_device_options options{};
  options.struct_size = sizeof options;
  options.bytes_limit = limit;
  options.pool_limit = pool_limit;
  return std::make_shared<Device>(options);
}

template <class Matrix>
std::vector<TensorBytes> random_tensors(const UniformShape& desc, int32_t type, Matrix matrix) {
  return described_tensors(description_of(desc), [type](int32_t) { return type; }, matrix);
}
inline std::vector<TensorBytes> random_tensors(const UniformShape& desc, int32_t type) {
  return random_tensors(desc, type, random_bytes);
}

inline std::shared_ptr<Model> bound_model(const std::shared_ptr<Device>& device, const Description& desc,
                                          const std::vector<TensorBytes>& tensors) {
  auto model = std::make_shared<Model>(device, desc);
  for (const TensorBytes& t : tensors) {
    auto staging = std::make_shared<Buffer>(device, t.bytes.size(), MR_PURPOSE_STAGING);
    staging->write(0, t.bytes.data(), t.bytes.size());
    model->bind(t.desc, std::move(staging));
  }
  model->seal();
  return model;
}

inline std::shared_ptr<Model> bound_model(const std::shared_ptr<Device>& device, const UniformShape& desc,
                                          const std::vector<TensorBytes>& tensors) {
  return bound_model(device, description_of(desc), tensors);
}

inline std::shared_ptr<Model> random_model(const std::shared_ptr<Device>& device, const UniformShape& desc, int32_t type) {
  return bound_model(device, desc, random_tensors(desc, type));
}

inline mr_runner_config config_of(int32_t kv_type) {
  mr_runner_config c{};
  c.struct_size = sizeof c;
  c.kv_blocks = 512;
  c.block_size = 16;
  c.max_sequences = 72;
  c.max_batched_tokens = 1024;
  c.max_sample_rows = 72;
  c.max_score_rows = 1024;
  c.max_top_n = 4;
  c.kv_type = kv_type;
  return c;
}

struct Request {
  int32_t slot;
  std::vector<int32_t> prompt;
  int32_t chunk;     // prompt tokens a step
  int32_t generate;  // tokens
  uint64_t seed = 1;
  float temperature = 0.8f;
};

// Output is a request's exact result: the logprob of each prompt token but the first, then token and logprob of each
// generated one.
struct Output {
  std::vector<uint32_t> bits;
  bool operator==(const Output& other) const { return bits == other.bits; }
};

// Plays requests together to their ends; slot s has 7 blocks from s * 7 on.
inline std::vector<Output> play(Runner& runner, const std::vector<Request>& requests) {
  std::vector<Output> outputs(requests.size());
  std::vector<int32_t> done(requests.size(), 0), last(requests.size(), -1);
  for (;;) {
    std::vector<mr_segment> segments;
    std::vector<mr_sample_row> samples;
    std::vector<mr_score_row> scores;
    std::vector<mr_pre_op> pre_ops;
    std::vector<mr_slot_params> params(requests.size());
    std::vector<int32_t> tokens, blocks;
    std::vector<size_t> sampled, scored;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Request& r = requests[i];
      const int32_t length = static_cast<int32_t>(r.prompt.size());
      if (done[i] >= length + r.generate - 1) continue;
      if (done[i] == 0) {
        mr_slot_params& p = params[i];
        p.struct_size = sizeof p;
        p.seed = r.seed;
        p.prompt_length = length;
        p.temperature = r.temperature;
        p.top_p = p.typical_p = p.repetition_penalty = 1;
        p.allowed_count = -1;
        mr_pre_op op{};
        op.struct_size = sizeof op;
        op.slot = r.slot;
        op.slot_generation = 1;
        op.params = &p;
        pre_ops.push_back(op);
      }
      mr_segment s{};
      s.slot = r.slot;
      s.slot_generation = 1;
      s.first_position = done[i];
      s.block_offset = static_cast<int32_t>(blocks.size());
      s.block_count = 7;
      for (int32_t b = 0; b < 7; ++b) blocks.push_back(r.slot * 7 + b);
      const int32_t first = static_cast<int32_t>(tokens.size());
      if (done[i] < length) {
        s.count = std::min(r.chunk, length - done[i]);
        tokens.insert(tokens.end(), r.prompt.begin() + done[i], r.prompt.begin() + done[i] + s.count);
        for (int32_t k = done[i]; k < done[i] + s.count && k + 1 < length; ++k) {
          scores.push_back({first + k - done[i], r.prompt[static_cast<size_t>(k) + 1], 0});
          scored.push_back(i);
        }
      } else {
        s.count = 1;
        s.kernel_class = MR_CLASS_DECODE;
        tokens.push_back(last[i]);
      }
      segments.push_back(s);
      done[i] += s.count;
      if (done[i] >= length) {
        samples.push_back({first + s.count - 1, r.slot, 1, done[i], -1});
        sampled.push_back(i);
      }
    }
    if (segments.empty()) return outputs;
    mr_step step{};
    step.struct_size = sizeof step;
    step.segment_stride = sizeof(mr_segment);
    step.sample_stride = sizeof(mr_sample_row);
    step.score_stride = sizeof(mr_score_row);
    step.pre_op_stride = sizeof(mr_pre_op);
    step.segments = segments.data();
    step.segment_count = static_cast<int32_t>(segments.size());
    step.tokens = tokens.data();
    step.token_count = static_cast<int32_t>(tokens.size());
    step.block_ids = blocks.data();
    step.block_id_count = static_cast<int32_t>(blocks.size());
    step.samples = samples.data();
    step.sample_count = static_cast<int32_t>(samples.size());
    step.scores = scores.data();
    step.score_count = static_cast<int32_t>(scores.size());
    step.pre_ops = pre_ops.data();
    step.pre_op_count = static_cast<int32_t>(pre_ops.size());
    runner.submit(step);
    std::vector<mr_row_result> sample_rows(samples.size()), score_rows(scores.size());
    mr_step_result result{};
    result.struct_size = sizeof result;
    result.row_stride = sizeof(mr_row_result);
    result.samples = sample_rows.data();
    result.sample_capacity = static_cast<int32_t>(sample_rows.size());
    result.scores = score_rows.data();
    result.score_capacity = static_cast<int32_t>(score_rows.size());
    runner.wait(60'000'000'000, &result);
    const auto keep = [&](size_t i, const mr_row_result& row) {
      uint32_t bits = 0;
      std::memcpy(&bits, &row.logprob, 4);
      outputs[i].bits.push_back(static_cast<uint32_t>(row.status == MR_ROW_OK ? row.token : -1));
      outputs[i].bits.push_back(bits);
    };
    for (size_t k = 0; k < scored.size(); ++k) keep(scored[k], score_rows[k]);
    for (size_t k = 0; k < sampled.size(); ++k) {
      keep(sampled[k], sample_rows[k]);
      last[sampled[k]] = sample_rows[k].token;
    }
  }
}

}  // namespace mr::cuda::test
