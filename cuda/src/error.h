// error: functions of the CUDA engine fail by throwing an Error, with the cudaError_t as its native code (kernels/check.h).
// The edge of the ABI turns it into an mr_error.
#pragma once

#include "cpu/error.h"
#include "kernels/check.h"

namespace mr::cuda {

using mr::fail;
using mr::guard;

}  // namespace mr::cuda
