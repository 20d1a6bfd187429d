// math: the exponential of attention on the host.
#pragma once

#include <cmath>

namespace mr::cuda {

inline float exp2_approx(float x) { return std::exp2(x); }

}  // namespace mr::cuda
