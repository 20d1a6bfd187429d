#include "runner_config.h"

#include "error.h"

namespace mr {
namespace {

void check_field(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    fail(MR_INVALID_ARGUMENT, "runner configuration: %s is %lld, wanted %lld .. %lld", field,
         static_cast<long long>(value), static_cast<long long>(low), static_cast<long long>(high));
}

}  // namespace

void check_config(const mr_runner_config& c, const Description& model) {
  constexpr int64_t many = 1 << 20;
  check_field("kv_blocks", c.kv_blocks, 1, INT32_MAX);
  if (c.block_size != 16 && c.block_size != 32)
    fail(MR_INVALID_ARGUMENT, "runner configuration: block_size is %d, wanted 16 or 32", c.block_size);
  check_field("max_sequences", c.max_sequences, 1, many);
  check_field("max_batched_tokens", c.max_batched_tokens, 1, many);
  check_field("max_sample_rows", c.max_sample_rows, 1, many);
  check_field("max_score_rows", c.max_score_rows, 0, many);
  check_field("max_hidden_rows", c.max_hidden_rows, 0, many);
  if (c.reserved0 != 0) fail(MR_UNIMPLEMENTED, "runner configuration: reserved0 is %d, wanted 0", c.reserved0);
  check_field("max_top_n", c.max_top_n, 0, 64);
  if (c.kv_type != MR_KV_F32 && c.kv_type != MR_KV_F16 && c.kv_type != MR_KV_BF16 && c.kv_type != MR_KV_F8)
    fail(MR_INVALID_ARGUMENT, "runner configuration: kv_type is %d, wanted 0 (f32), 1 (f16), 30 (bf16) or 256 (f8)", c.kv_type);
  if (c.act_type != 0 && c.act_type != MR_KV_F16 && c.act_type != MR_KV_BF16)
    fail(MR_INVALID_ARGUMENT, "runner configuration: act_type is %d, wanted 0 (the engine's own), 1 (f16) or 30 (bf16)", c.act_type);
  for (int32_t i = 0; i < model.layer_count(); ++i)
    if (c.kv_type == MR_KV_F8 && by_latent(model.mixer(i)))  // one scale would be of both the latent and the rotated key
      fail(MR_UNIMPLEMENTED,
           "runner configuration: model layer %d has attention over a latent, of which no cache of f8 is built, wanted f32, f16 or bf16",
           i);
  check_field("host_blocks", c.host_blocks, 0, INT32_MAX);
  check_field("window_blocks", c.window_blocks, 0, INT32_MAX - 1);
  check_field("host_window_blocks", c.host_window_blocks, 0, INT32_MAX);
  if (group_window(model) == 0 && (c.window_blocks != 0 || c.host_window_blocks != 0))
    fail(MR_INVALID_ARGUMENT,
         "runner configuration: window_blocks is %d and host_window_blocks %d, wanted 0: no layer of the model has a window that is "
         "shorter than the context", c.window_blocks, c.host_window_blocks);
  if (c.window_blocks == 0 && c.host_window_blocks != 0)
    fail(MR_INVALID_ARGUMENT, "runner configuration: host_window_blocks is %d, wanted 0 without window_blocks", c.host_window_blocks);
  check_field("saved_states", c.saved_states, 0, many);
  check_field("host_states", c.host_states, 0, many);
  if (state_floats(model) == 0 && (c.saved_states != 0 || c.host_states != 0))
    fail(MR_INVALID_ARGUMENT,
         "runner configuration: saved_states is %d and host_states %d, wanted 0: no layer of the model carries a state", c.saved_states,
         c.host_states);
}

uint64_t states_bytes(const mr_runner_config& c, uint64_t state_bytes) {
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(state_count(c)), state_bytes, &bytes))
    fail(MR_RESOURCE_EXHAUSTED, "runner configuration: %lld states of %llu bytes are beyond any memory",
         static_cast<long long>(state_count(c)), static_cast<unsigned long long>(state_bytes));
  return bytes;
}

uint64_t pool_bytes(const mr_runner_config& c, bool window, uint64_t block_bytes) {
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(pool_blocks(c, window)), block_bytes, &bytes))
    fail(MR_RESOURCE_EXHAUSTED, "runner configuration: %d %s of %llu bytes are beyond any memory",
         window ? c.window_blocks : c.kv_blocks, window ? "window_blocks" : "kv_blocks", static_cast<unsigned long long>(block_bytes));
  return bytes;
}

}  // namespace mr
