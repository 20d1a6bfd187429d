// activations: the inputs of a runner's GEMMs.
#pragma once

#include "kernels/types.h"
#include "millrace/engine.h"
#include "src/shard.h"

namespace mr::cuda {

struct Activations {
  Act act;
  float ffn_scale;  // the outputs of SwiGLU lie divided by this power of two
};

// As the configuration says; where it leaves the choice, f16 if every matrix is F16 or quantised and no norm can pass f16's
// range, else bf16, whatever the cache. Of a sealed model, whose shards all give the same.
Activations activations_of(const Shard& shard, const mr_runner_config& config);

}  // namespace mr::cuda
