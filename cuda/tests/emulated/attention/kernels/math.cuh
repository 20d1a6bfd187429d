// math: the functions of kernels/math.cuh, and the exponential of attention, on the host.
#pragma once

#include <cuda_runtime.h>

#include "../../../../kernels/math.cuh"

namespace mr::cuda {

inline float exp2_approx(float x) { return std::exp2(x); }

}  // namespace mr::cuda
