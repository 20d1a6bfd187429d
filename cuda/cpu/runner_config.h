// runner_config: valid configurations of a runner, on any engine.
#pragma once

#include "millrace/engine.h"

namespace mr {

// Throws INVALID_ARGUMENT naming the first field outside its range, and its value.
void check_config(const mr_runner_config& config);

// Bytes of the whole pool, a block of which takes block_bytes. Throws RESOURCE_EXHAUSTED for what 64 bits do not count.
uint64_t pool_bytes(const mr_runner_config& config, uint64_t block_bytes);

}  // namespace mr
