// step_bytes: the bytes that a step must read, to compare its time with the memory rate.
#pragma once

#include <cstdint>

#include "cpu/step_plan.h"
#include "kernels/kv.h"
#include "src/model.h"

namespace mr::cuda {

// Every weight once, though decode and prefill rows of a step have GEMMs of their own; the embedding by row; keys and values of every
// position that a segment sees, with their scales; the state that a segment begins with. Bytes. Without the experts of mixtures, whose
// choice the device counts.
uint64_t step_bytes(const Model& model, Kv kv, const StepPlan& plan);

}  // namespace mr::cuda
