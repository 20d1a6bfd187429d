// Simple replacements of the kernels that are not compiled for the emulated device: dense GEMMs, attention, gathers, what begins a step.
// A result depends on the same operands as the original's. A gather is done when the last rank launches it.
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/latent.h"
#include "kernels/gather.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/repack.h"
#include "kernels/qkv.h"
#include "kernels/sampler/sampler.h"
#include "kernels/states/states.h"
#include "src/device_memory.h"
#include "src/step_input.h"
#include "tests/emulated/divided/stand_ins.h"

namespace mr::cuda {
namespace {

float value_of(Act act, uint16_t bits) {
  if (act == Act::kF16) return __half2float({bits});
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

uint16_t bits_of(Act act, float value) {
  if (act == Act::kF16) return __float2half(value).bits;
  uint32_t wide;
  std::memcpy(&wide, &value, 4);
  return static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

std::map<const void*, std::vector<float>> decoded_weights;

// The numbers of F32, F16 and Q8_0.
const std::vector<float>& decoded(const PackedWeight& w) {
  std::vector<float>& out = decoded_weights[w.data];
  if (!out.empty()) return out;
  std::vector<uint8_t> file(weight_file_bytes(w.type, w.rows, w.cols));
  EXPECT_EQ(launch_unpack(w, 0, file.size(), file.data(), Stream{}), cudaSuccess);
  out.resize(static_cast<size_t>(w.rows * w.cols));
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half;
    if (w.type == kF32) {
      std::memcpy(&out[i], &file[4 * i], 4);
    } else if (w.type == kF16) {
      std::memcpy(&half, &file[2 * i], 2);
      out[i] = __half2float({half});
    } else {
      EXPECT_EQ(w.type, kQ8_0);
      std::memcpy(&half, &file[i / 32 * 34], 2);
      out[i] = __half2float({half}) * static_cast<float>(static_cast<int8_t>(file[i / 32 * 34 + 2 + i % 32]));
    }
  }
  return out;
}

std::vector<float> multiplied(const GemmArgs& a, const GemmTarget& target) {
  const std::vector<float>& w = decoded(target.weight);
  const int64_t rows = target.weight.rows, cols = target.weight.cols;
  std::vector<float> y(static_cast<size_t>(a.tokens * rows)), x(static_cast<size_t>(cols));
  for (int32_t t = 0; t < a.tokens; ++t) {
    for (int64_t c = 0; c < cols; ++c) x[static_cast<size_t>(c)] = value_of(a.act, static_cast<const uint16_t*>(a.x)[t * a.x_stride + c]);
    for (int64_t r = 0; r < rows; ++r) {
      float sum = 0;
      for (int64_t c = 0; c < cols; ++c) sum += x[static_cast<size_t>(c)] * w[static_cast<size_t>(r * cols + c)];
      y[static_cast<size_t>(t * rows + r)] = sum * a.x_scale + (target.bias == nullptr ? 0 : target.bias[r]);
    }
  }
  return y;
}

int32_t previous_place = -1, previous_index = -1;
GatherArgs first_of_gather;

}  // namespace

int32_t step_rows = 0;

void forget_weights() { decoded_weights.clear(); }

bool gemm_fuses_norm(const GemmArgs&) { return false; }
bool gemm_fuses_heads(const GemmArgs&) { return false; }
bool gemm_reads_input_sums(const GemmArgs&) { return false; }

cudaError_t launch_gemm(const GemmArgs& a, const Stream&) {
  if (a.epilogue == Epilogue::kSwiGLU) {
    const std::vector<float> gate = multiplied(a, a.targets[0]), up = multiplied(a, a.targets[1]);
    const int64_t rows = a.targets[0].weight.rows;
    for (size_t i = 0; i < gate.size(); ++i) {
      uint16_t* const out = static_cast<uint16_t*>(a.targets[0].out) + static_cast<int64_t>(i) / rows * a.targets[0].out_stride;
      out[static_cast<int64_t>(i) % rows] = bits_of(a.act, gate[i] / (1 + std::exp(-(a.gelu ? 2 : 1) * gate[i])) * up[i] / a.pair_scale);
    }
    return cudaSuccess;
  }
  for (int32_t k = 0; k < a.count; ++k) {
    const GemmTarget& target = a.targets[k];
    const std::vector<float> y = multiplied(a, target);
    for (size_t i = 0; i < y.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / target.weight.rows, column = static_cast<int64_t>(i) % target.weight.rows;
      float& out = static_cast<float*>(target.out)[row * target.out_stride + column];
      out = a.epilogue == Epilogue::kAddF32 ? out + y[i] : y[i];
    }
  }
  return cudaSuccess;
}

void rope_frequencies(int32_t, float, float, const double*, double*) {}

cudaError_t launch_begin(const BeginArgs& a, const Stream&) {
  for (int32_t i = 0; i < a.count; ++i) a.token[i] = a.token_in[i];
  if (a.expert_bytes != nullptr) *a.expert_bytes = 0;
  return cudaSuccess;
}

// Row r has its keys and values at position r of the cache, in f16.
cudaError_t launch_finish_qkv(const FinishQkvArgs& a, const Stream&) {
  const int32_t dim = a.layout.head_dim, kv_heads = a.layout.kv_heads, stride = a.query_gates ? 2 * dim : dim;
  for (int32_t r = 0; r < a.count; ++r) {
    const float* const q = static_cast<const float*>(a.qkv) + r * a.qkv_stride;
    const float *const k = q + a.heads * stride, *const v = a.value_is_key ? k : k + kv_heads * dim;
    for (int32_t i = 0; i < a.heads * dim; ++i) {
      const float value = q[i / dim * stride + i % dim] + (a.q_bias == nullptr ? 0 : a.q_bias[i]);
      static_cast<uint16_t*>(a.q_out)[r * a.q_stride + i / dim * a.layout.padded_dim + i % dim] =
          bits_of(a.layout.act, a.q_norm == nullptr ? value : value * a.q_norm[i % dim]);
    }
    for (int32_t i = 0; i < kv_heads * dim && !a.queries_only; ++i) {
      const float key = k[i] + (a.k_bias == nullptr ? 0 : a.k_bias[i]);
      static_cast<uint16_t*>(a.keys)[r * kv_heads * dim + i] = bits_of(a.layout.act, a.k_norm == nullptr ? key : key * a.k_norm[i % dim]);
      static_cast<uint16_t*>(a.values)[r * kv_heads * dim + i] = bits_of(a.layout.act, v[i] + (a.v_bias == nullptr ? 0 : a.v_bias[i]));
    }
  }
  return cudaSuccess;
}

namespace {

// A head sees its own row alone.
void attend(const AttentionArgs& a, int32_t first, int32_t count, const void* q, void* out) {
  const int32_t dim = a.layout.head_dim, kv_heads = a.layout.kv_heads;
  for (int32_t r = 0; r < count; ++r)
    for (int32_t i = 0; i < a.heads * dim; ++i) {
      const int32_t head = i / dim, at = ((first + r) * kv_heads + head / (a.heads / kv_heads)) * dim + i % dim;
      const float query = value_of(a.layout.act, static_cast<const uint16_t*>(q)[r * a.q_stride + head * a.layout.padded_dim + i % dim]);
      const float key = value_of(a.layout.act, static_cast<const uint16_t*>(a.keys)[at]);
      const float value = value_of(a.layout.act, static_cast<const uint16_t*>(a.values)[at]);
      static_cast<uint16_t*>(out)[r * a.out_stride + i] =
          bits_of(a.out_act, 0.25f * query + 0.5f * key + value + (a.sinks == nullptr ? 0 : a.sinks[head]));
    }
}

}  // namespace

cudaError_t launch_decode_attention(const DecodeAttentionArgs& a, const Stream&) {
  attend(a.common, 0, a.count, a.common.q, a.common.out);
  return cudaSuccess;
}

// The rows after the decode rows, of which item_count is the number.
cudaError_t launch_prefill_attention(const PrefillAttentionArgs& a, const Stream&) {
  const int32_t first = a.item_count;
  attend(a.common, first, step_rows - first, static_cast<const uint16_t*>(a.common.q) + first * a.common.q_stride,
         static_cast<uint16_t*>(a.common.out) + first * a.common.out_stride);
  return cudaSuccess;
}

namespace {

// A head sees the latent and the key of its own row alone, where the cache has them.
void attend_latents(const AttentionArgs& a, int32_t count, const void* q, void* out, const Rows& rows) {
  const int32_t dim = a.layout.head_dim, width = a.layout.padded_dim, size = a.layout.block_size;
  for (int32_t r = 0; r < count; ++r) {
    const int32_t position = rows.position[r];
    const int64_t block = rows.slot[r] < 0 ? 0 : rows.block_ids[rows.table[r] + position / size];
    const int64_t at = block * a.layout.block_elements() + position % size * width;
    const uint16_t* const key = static_cast<const uint16_t*>(a.keys) + at;
    for (int32_t h = 0; h < a.heads; ++h) {
      const uint16_t* const query = static_cast<const uint16_t*>(q) + r * a.q_stride + h * width;
      float score = 0;
      for (int32_t d = 0; d < width; ++d) score += value_of(a.layout.act, query[d]) * value_of(a.layout.act, key[d]);
      for (int32_t d = 0; d < dim; ++d)
        static_cast<uint16_t*>(out)[r * a.out_stride + h * dim + d] =
            rows.slot[r] < 0 ? 0 : bits_of(a.out_act, value_of(a.layout.act, key[d]) + a.scale * score);
    }
  }
}

}  // namespace

cudaError_t launch_decode_latent(const DecodeAttentionArgs& a, const Stream&) {
  attend_latents(a.common, a.count, a.common.q, a.common.out, a.common.rows);
  return cudaSuccess;
}

// The rows after the decode rows, as of launch_prefill_attention.
cudaError_t launch_prefill_latent(const PrefillAttentionArgs& a, const Stream&) {
  const int32_t first = a.item_count;
  const Rows& all = a.common.rows;
  attend_latents(a.common, step_rows - first, static_cast<const uint16_t*>(a.common.q) + first * a.common.q_stride,
                 static_cast<uint16_t*>(a.common.out) + first * a.common.out_stride,
                 {all.slot + first, all.position + first, all.table + first, all.block_ids});
  return cudaSuccess;
}

cudaError_t launch_gate_output(const GateOutputArgs& a, const Stream&) {
  for (int32_t r = 0; r < a.rows; ++r)
    for (int32_t i = 0; i < a.heads * a.dim; ++i) {
      uint16_t& out = static_cast<uint16_t*>(a.out)[r * a.out_stride + i];
      const float gate = a.q[r * a.q_stride + i / a.dim * 2 * a.dim + a.dim + i % a.dim];
      out = bits_of(a.act, value_of(a.act, out) / (1 + std::exp(-gate)));
    }
  return cudaSuccess;
}

int64_t gather_packet_bytes(int32_t) { return 256; }

cudaError_t launch_gather(const GatherArgs& a, const Stream&) {
  if (a.links.rank == a.links.ranks - 1) {  // the first that launches it
    if (a.index == 0) previous_index = -1;
    EXPECT_GT(a.index, previous_index);
    EXPECT_LT(a.index, a.most);
    EXPECT_NE(a.place, previous_place);
    previous_index = a.index;
    previous_place = a.place;
    first_of_gather = a;
  }
  EXPECT_EQ(a.index, first_of_gather.index);
  EXPECT_EQ(a.place, first_of_gather.place);
  EXPECT_EQ(a.rows, first_of_gather.rows);
  if (a.links.rank != 0) return cudaSuccess;
  for (int32_t from = 0; from < a.links.ranks; ++from) {
    const GatherPart& part = a.parts[from];
    EXPECT_GT(part.bytes, 0);
    EXPECT_LE(part.first + part.bytes, a.stride);
    for (int32_t to = 0; to < a.links.ranks; ++to)
      for (int32_t r = 0; r < a.rows && to != from; ++r)
        std::memcpy(a.rows_of[to] + r * a.stride + part.first, a.rows_of[from] + r * a.stride + part.first, static_cast<size_t>(part.bytes));
  }
  return cudaSuccess;
}

// Functions that the ranks do not call here.
cudaError_t launch_sample(const SampleArgs&, const Stream&) { return cudaSuccess; }
int64_t sampler_bytes(int32_t, int32_t) { return 256; }
cudaError_t launch_slot_sets(const SlotTables&, const SlotSet*, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }
cudaError_t launch_convolve(const ConvolveArgs&, const Stream&) { return cudaErrorNotSupported; }
cudaError_t launch_store_inputs(const StoreInputsArgs&, const Stream&) { return cudaErrorNotSupported; }
cudaError_t launch_delta(const DeltaArgs&, const Stream&) { return cudaErrorNotSupported; }
cudaError_t launch_gate_norm(const GateNormArgs&, const Stream&) { return cudaErrorNotSupported; }
int32_t decode_attention_capacity(int32_t rows, int32_t) { return rows; }
int64_t decode_attention_bytes(int32_t, int32_t, int32_t, int32_t) { return 256; }
int64_t prefill_attention_bytes(int32_t, int32_t, int32_t) { return 256; }
int32_t prefill_attention_capacity(int32_t, int32_t) { return 1; }
cudaError_t prefill_wide_blocks(const KvLayout&, int64_t, int32_t* blocks) { return *blocks = 0, cudaSuccess; }
int64_t prefill_wide_bytes(const KvLayout&, int32_t) { return 0; }
cudaError_t launch_prefill_widen(const PrefillWidenArgs&, const Stream&) { return cudaErrorNotSupported; }
int32_t attention_shared_bytes(int32_t) { return 0; }
int64_t decode_latent_bytes(int32_t, int32_t, int32_t, int32_t) { return 256; }
int64_t prefill_latent_bytes(int32_t, int32_t, int32_t) { return 256; }
int32_t latent_shared_bytes(int32_t) { return 0; }
void check_device_memory(const void*, int, const std::string&) {}
uint64_t StepInput::record_capacity(const Description&, const mr_runner_config&, int32_t) { return 0; }
uint64_t StepInput::mask_capacity(const Description&, const mr_runner_config&) { return 0; }
uint64_t StepInput::capacity(const mr_runner_config&, const Sizes&) { return uint64_t{1} << 16; }

StepShape::StepShape(int32_t rows_in, int32_t decode_in, int32_t jobs_in, int32_t chains_in)
    : rows(rows_in), decode_rows(decode_in), jobs(jobs_in), chains(chains_in) {
  const uint64_t each = 4 * static_cast<uint64_t>(rows);
  position = each;
  table = 2 * each;
  window_table = 3 * each;
  token = 4 * each;
  gather = 5 * each;
  job = block_ids = bytes = 6 * each;
}

}  // namespace mr::cuda
