// math: the functions of kernels/math.cuh on the host, with those that only device code has.
#pragma once

#include <cuda_runtime.h>

#define __CUDACC__
#include "../../../../kernels/math.cuh"
#undef __CUDACC__
