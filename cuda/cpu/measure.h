// Roofs of the processor: the sustained rates that products are compared with. Each call loads one thread; a caller
// starts as many at once as it wants measured together and adds the rates up.
#ifndef MILLRACE_CPU_MEASURE_H
#define MILLRACE_CPU_MEASURE_H

#include <stdint.h>

#include "isa.h"

namespace mr::cpu {

// Reads [data, data+bytes) once, front to back, as fast as the path can, and returns a fold of the bytes, so that the
// compiler drops no read. data is 64-byte aligned; bytes is a multiple of 4096 and, over all threads, should be far above the
// last-level cache, else the cache is measured. Bytes a second = bytes / time taken.
uint64_t read_stream(Isa isa, const uint8_t* data, uint64_t bytes);

// Runs `rounds` rounds from registers and returns the operations done, a multiply-add counting two. `sink` receives a
// value that depends on all of them.
double int8_rounds(Isa isa, int64_t rounds, float* sink); // the widest int8 dot product of the path
double f32_rounds(Isa isa, int64_t rounds, float* sink);  // fused multiply-adds; multiply and add on paths without them
double bf16_rounds(Isa isa, int64_t rounds, float* sink); // what BF16 weights run on: BF16 dot products, else as f32_rounds

} // namespace mr::cpu

#endif
