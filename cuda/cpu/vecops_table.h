// vecops_table: the functions of the including file's path as a VecOps.
#pragma once

#include "attention_kernels.h"
#include "delta_kernels.h"
#include "sampler_kernels.h"
#include "vecops.h"
#include "vecops_kernels.h"

namespace mr::cpu {

// Constant-initialised: nothing of a raised path runs before it is chosen.
extern const VecOps vec_ops_portable;
#if defined(__x86_64__)
extern const VecOps vec_ops_avx2;
extern const VecOps vec_ops_avx512;
#endif

namespace {

constexpr VecOps table() {
  return VecOps{rms_norm, softmax,      silu,          swiglu,  geglu,         clamped_glu,   cap,         add,     mul,     scale,   exp_row,
                rope,     convolve, unit, delta, kv_store,     attend,        attend_chunks, merge_chunks, kTileRows, greatest, find_greater,
                find_at_least, sum_exp, count_greater, count_equal, weights, mass_at_least, mask};
}

}  // namespace
}  // namespace mr::cpu
