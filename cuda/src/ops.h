// ops: the plain operations on buffers.
#pragma once

#include <cstdint>
#include <memory>

#include "millrace/engine.h"
#include "src/buffer.h"
#include "src/device.h"

namespace mr::cuda {

struct Operands {
  std::shared_ptr<Buffer> a, b, c, out;  // b and c are null where not given
};

// Runs one operation and gives the nanoseconds its kernels took on the device. Of a GEMM in f16 neither the packing of
// the weights, which a model does once when it is loaded, nor the rounding of b, which a step's kernels have done before, is
// counted. Throws INVALID_ARGUMENT naming the argument, before anything is written.
uint64_t run_op(Device& device, const mr_op_args& args, const Operands& operands);

}  // namespace mr::cuda
