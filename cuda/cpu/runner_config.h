// runner_config: valid configurations of a runner, on any engine.
#pragma once

#include "millrace/engine.h"
#include "shape.h"

namespace mr {

// Throws INVALID_ARGUMENT naming the first field outside its range, and its value.
void check_config(const mr_runner_config& config, const Description& model);

// The states of a runner: first those of the slots, then the saved ones. A slot names its own with 0.
inline int64_t state_count(const mr_runner_config& config) { return int64_t{config.max_sequences} + config.saved_states; }
inline int32_t state_index(const mr_runner_config& config, int32_t slot, int32_t id) {
  return id == 0 ? slot : config.max_sequences + id - 1;
}
// Bytes of all of them, of which one takes state_bytes. Throws RESOURCE_EXHAUSTED for what 64 bits do not count.
uint64_t states_bytes(const mr_runner_config& config, uint64_t state_bytes);

// The blocks of the pool of a group. The window group has one more than the configuration says, which holds zeros.
inline int64_t pool_blocks(const mr_runner_config& config, bool window) {
  if (!window) return config.kv_blocks;
  return config.window_blocks == 0 ? 0 : int64_t{config.window_blocks} + 1;
}
// Bytes of the whole pool of a group, a block of which takes block_bytes. Throws RESOURCE_EXHAUSTED for what 64 bits do not count.
uint64_t pool_bytes(const mr_runner_config& config, bool window, uint64_t block_bytes);

}  // namespace mr
