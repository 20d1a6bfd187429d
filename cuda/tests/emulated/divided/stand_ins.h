// stand_ins: what the stand-ins of kernels cannot read from their arguments.
#pragma once

#include <cstdint>

namespace mr::cuda {

extern int32_t step_rows;  // of the step that is queued

// The stand-in of dense GEMMs decodes a weight once. Called when memory of weights may have been given to others.
void forget_weights();

}  // namespace mr::cuda
