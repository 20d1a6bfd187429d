// api: the edge of the CPU engine.
#include <cstdio>

#include "buffer.h"
#include "codebook.h"
#include "device.h"
#include "edge.h"
#include "model.h"
#include "ops.h"
#include "roofs.h"
#include "runner.h"
#include "trainer.h"
#include "vector_edge.h"

namespace mr::cpu {
namespace {

struct CpuEngine {
  using Device = cpu::Device;
  using Buffer = cpu::Buffer;
  using Model = cpu::Model;
  using Runner = cpu::Runner;
  using Operands = cpu::Operands;
  using Trainer = cpu::Trainer;
  using Codebook = cpu::Codebook;
  static int32_t device_count() { return 1; }
  static uint64_t run_op(Device& device, const mr_op_args& args, const Operands& operands) {
    return cpu::run_op(device, args, operands);
  }
  static double measure_roof(Device& device, int32_t what, uint64_t duration_ns) {
    return cpu::measure_roof(device, what, duration_ns);
  }
  [[noreturn]] static void* host_alloc(Device&, uint64_t) {
    fail(MR_UNIMPLEMENTED, "host memory: any is as good for the CPU's buffers");
  }
  static void host_free(Device&, void*) { fail(MR_INVALID_ARGUMENT, "host memory that was never given"); }
};

char build_text[256] = "millrace-cpu; g++ " __VERSION__ "; sources unknown";

const mr_vector_api vectors = VectorEdge<CpuEngine>::table();
const mr_api table = Edge<CpuEngine>::table(build_text, &vectors);

}  // namespace
}  // namespace mr::cpu

extern "C" {

// Who links the engine statically names the digest of the sources here, before it asks for the table.
void mr_cpu_name_sources(const char* digest) {
  std::snprintf(mr::cpu::build_text, sizeof mr::cpu::build_text, "millrace-cpu; g++ %s; sources %s", __VERSION__, digest);
}

const mr_api* mr_engine_api(uint32_t abi_major, uint32_t* supported) {
  if (supported != nullptr) *supported = MR_ABI_MAJOR;
  return abi_major == MR_ABI_MAJOR ? &mr::cpu::table : nullptr;
}

}  // extern "C"
