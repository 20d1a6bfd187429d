// api: the edge of the CUDA engine, and the only symbol that the library exports.
#include "cpu/edge.h"
#include "cpu/vector_edge.h"
#include "kernels/types.h"
#include "millrace/engine.h"
#include "src/buffer.h"
#include "src/vectors/codebook.h"
#include "src/device.h"
#include "src/measure.h"
#include "src/model.h"
#include "src/ops.h"
#include "src/runner.h"
#include "src/vectors/trainer.h"

namespace mr::cuda {
namespace {

struct CudaEngine {
  using Device = cuda::Device;
  using Buffer = cuda::Buffer;
  using Model = cuda::Model;
  using Runner = cuda::Runner;
  using Operands = cuda::Operands;
  using Trainer = cuda::Trainer;
  using Codebook = cuda::Codebook;
  static int32_t device_count() { return cuda::device_count(); }
  static uint64_t run_op(Device& device, const mr_op_args& args, const Operands& operands) {
    return cuda::run_op(device, args, operands);
  }
  static double measure_roof(Device& device, int32_t what, uint64_t duration_ns) {
    return cuda::measure_roof(device, what, duration_ns);
  }
  static void* host_alloc(Device& device, uint64_t size) { return device.transfers.host_alloc(size); }
  static void host_free(Device& device, void* memory) { device.transfers.host_free(memory); }
};

#define MILLRACE_TEXT(x) #x
#define MILLRACE_NUMBER(x) MILLRACE_TEXT(x)

constexpr char build_text[] =
    "millrace-cuda; cuda " MILLRACE_NUMBER(CUDART_VERSION) "; g++ " __VERSION__ "; sources " MILLRACE_SOURCES;

const mr_vector_api vectors = VectorEdge<CudaEngine>::table();
const mr_api table = mr::Edge<CudaEngine>::table(build_text, &vectors);

}  // namespace
}  // namespace mr::cuda

extern "C" __attribute__((visibility("default"))) const mr_api* mr_engine_api(uint32_t abi_major, uint32_t* supported) {
  if (supported != nullptr) *supported = MR_ABI_MAJOR;
  return abi_major == MR_ABI_MAJOR ? &mr::cuda::table : nullptr;
}
