// runner_config: what a runner's configuration may be, on any engine.
#pragma once

#include "millrace/engine.h"

namespace mr::cpu {

// Throws INVALID_ARGUMENT naming the first field outside its range, and its value.
void check_config(const mr_runner_config& config);

}  // namespace mr::cpu
