// step_bytes: what a step has to read, for holding its time against the memory's rate.
#pragma once

#include <cstdint>

#include "cpu/step_plan.h"
#include "kernels/kv.h"
#include "src/model.h"

namespace mr::cuda {

// Every weight once, though decode and prefill rows of a step have products of their own; the embedding by row; keys and values of every
// position that a segment sees, with their scales. Bytes.
uint64_t step_bytes(const Model& model, const KvLayout& kv, const cpu::StepPlan& plan);

}  // namespace mr::cuda
