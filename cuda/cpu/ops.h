// ops: the plain operations on buffers, by the same kernels as a step.
#pragma once

#include <cstdint>
#include <memory>

#include "buffer.h"
#include "device.h"
#include "millrace/engine.h"

namespace mr::cpu {

struct Operands {
  std::shared_ptr<Buffer> a, b, c, out;  // b and c are null where not given
};

// Runs one operation and gives the nanoseconds its kernels took; the transient packing of a product's weights, which a
// model does once when it is loaded, and the rounding of F16 operands are not counted. Throws INVALID_ARGUMENT naming the argument, before anything is
// written.
uint64_t run_op(Device& device, const mr_op_args& args, const Operands& operands);

}  // namespace mr::cpu
