#include "src/ops.h"

#include <cmath>
#include <initializer_list>
#include <vector>

#include "cpu/shape.h"
#include "kernels/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/repack.h"
#include "kernels/ops/ops.h"
#include "kernels/rows.h"
#include "src/error.h"

namespace mr::cuda {
namespace {

// The product of sizes, each at least 1, or a refusal.
uint64_t product(std::initializer_list<int64_t> sizes) {
  uint64_t result = 1;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(result, static_cast<uint64_t>(size), &result) || result > uint64_t{1} << 60)
      fail(MR_INVALID_ARGUMENT, "the operation's sizes are beyond any memory");
  return result;
}

void check_size(const char* field, int64_t value) {
  if (value < 1) fail(MR_INVALID_ARGUMENT, "%s is %lld: want at least 1", field, static_cast<long long>(value));
}

// Sizes that a kernel counts in 32 bits.
int32_t small_size(const char* field, int64_t value) {
  check_size(field, value);
  if (value > INT32_MAX)
    fail(MR_INVALID_ARGUMENT, "%s is %lld: want at most %d", field, static_cast<long long>(value), INT32_MAX);
  return static_cast<int32_t>(value);
}

void check_finite(const char* field, float value) {
  if (!std::isfinite(value)) fail(MR_INVALID_ARGUMENT, "%s is %g: want a finite number", field, static_cast<double>(value));
}

void check_bytes(const char* field, const std::shared_ptr<Buffer>& buffer, uint64_t bytes) {
  if (buffer == nullptr) fail(MR_INVALID_ARGUMENT, "buffer %s is null", field);
  if (buffer->size() < bytes)
    fail(MR_INVALID_ARGUMENT, "buffer %s has %llu bytes: the operation's sizes want %llu", field,
         static_cast<unsigned long long>(buffer->size()), static_cast<unsigned long long>(bytes));
}

struct Call {
  Device& device;
  const mr_op_args& args;
  const Operands& operands;
  const StreamHandle stream;
  const EventHandle begin{cudaEventDefault}, end{cudaEventDefault};

  Call(Device& d, const mr_op_args& a, const Operands& o) : device(d), args(a), operands(o), stream(0) {}

  Stream on() const { return {stream, false}; }
  const float* read(const char* field, const std::shared_ptr<Buffer>& buffer, uint64_t floats) const {
    check_bytes(field, buffer, floats * sizeof(float));
    return reinterpret_cast<const float*>(buffer->data());
  }
  float* write(uint64_t floats) const {
    check_bytes("out", operands.out, floats * sizeof(float));
    return reinterpret_cast<float*>(operands.out->data());
  }
  void check_apart(const char* field, const std::shared_ptr<Buffer>& buffer) const {
    if (buffer == operands.out) fail(MR_INVALID_ARGUMENT, "buffer out is also %s: this operation needs another one", field);
  }

  // Queues work() and gives the time the device took over it. Nothing is under way any more when it throws.
  template <class Work>
  uint64_t timed(Work work) const {
    const Rest rest(stream);
    CUDA_CHECK(cudaEventRecord(begin, stream));
    work();
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    return static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6);
  }
};

// The operands of a GEMM, checked.
struct Product {
  const mr_op_args& args;
  bool alone, halves;  // with vectors, one after another; operands in f16
  int32_t tokens;      // of all problems of the batch
  const float* x;
  float* y;

  explicit Product(const Call& call)
      : args(call.args), alone(args.op == MR_OP_MATVEC || args.op == MR_OP_MATVEC_F16),
        halves(args.op == MR_OP_MATMUL_F16 || args.op == MR_OP_MATVEC_F16) {
    check_size("inner", args.inner);
    if (alone && args.rows != 1)
      fail(MR_INVALID_ARGUMENT, "rows is %lld: want 1 for a product with a vector", static_cast<long long>(args.rows));
    const uint64_t file = weight_file_bytes(args.a_type, args.cols, args.inner);
    if (file == 0)
      fail(MR_INVALID_ARGUMENT, "a_type is %d and inner %lld: no type this engine runs, rows that are not whole blocks, or a "
           "matrix beyond any memory", args.a_type, static_cast<long long>(args.inner));
    const uint64_t in_floats = product({args.batch, args.rows, args.inner});
    const uint64_t out_floats = product({args.batch, args.rows, args.cols});
    tokens = small_size("batch times rows", static_cast<int64_t>(product({args.batch, args.rows})));
    call.check_apart("a", call.operands.a);
    call.check_apart("b", call.operands.b);
    check_bytes("a", call.operands.a, file);
    x = call.read("b", call.operands.b, in_floats);
    y = call.write(out_floats);
  }
};

// Straight from the file's bytes, which nothing packs.
uint64_t product_f32(const Call& call, const Product& of) {
  const mr_op_args& args = call.args;
  OpMatmulArgs p{};
  p.a = call.operands.a->data();
  p.a_type = args.a_type;
  p.b = of.x;
  p.out = of.y;
  p.rows = of.alone ? 1 : of.tokens;
  p.cols = args.cols;
  p.inner = args.inner;
  p.sm_count = call.device.properties.multiProcessorCount;
  return call.timed([&] {
    if (!of.alone) CUDA_CHECK(launch_op_matmul(p, call.on()));
    for (int32_t i = 0; of.alone && i < of.tokens; ++i) {
      CUDA_CHECK(launch_op_matvec(p, call.on()));
      p.b += args.inner;
      p.out += args.cols;
    }
  });
}

// By a model's own kernels: weights are packed and inputs become f16 before the clock starts, as a load and the kernels of a
// step do it. Kernels of a prompt have F32 weights in tiles of one size, which round them in each block, so those are rounded first.
uint64_t product_f16(const Call& call, const Product& of) {
  const mr_op_args& args = call.args;
  Device& device = call.device;
  // Activations as a step has them: f16 rows, padded with zeros to whole units of the weight's columns.
  const int64_t stride = (args.inner + kUnitCols - 1) / kUnitCols * kUnitCols;
  const uint64_t padded = product({of.tokens, stride}), elements = product({args.cols, args.inner});
  const bool rounded = args.a_type == kF32 && !of.alone;
  const int32_t type = rounded ? int32_t{kF16} : args.a_type;
  const Memory file = device.ledger.allocate(rounded ? elements * kActBytes : 0, MR_PURPOSE_WORKSPACE);
  const Memory weights = device.ledger.allocate(weight_packed_bytes(type, args.cols, args.inner), MR_PURPOSE_WORKSPACE);
  const Memory wide = device.ledger.allocate(padded * sizeof(float), MR_PURPOSE_WORKSPACE);
  const Memory activations = device.ledger.allocate(padded * kActBytes, MR_PURPOSE_WORKSPACE);
  const Rest rest(call.stream);
  const PackedWeight weight{type, args.cols, args.inner, weights.data()};
  const uint8_t* from = call.operands.a->data();
  if (rounded) {
    CUDA_CHECK(launch_to_act({reinterpret_cast<const float*>(from), file.data(), Act::kF16, static_cast<int64_t>(elements)}, call.on()));
    from = file.data();
  }
  CUDA_CHECK(launch_repack(from, weight, call.on()));
  CUDA_CHECK(cudaMemsetAsync(wide.data(), 0, wide.size(), call.stream));
  const size_t row_bytes = static_cast<size_t>(args.inner) * sizeof(float);
  CUDA_CHECK(cudaMemcpy2DAsync(wide.data(), static_cast<size_t>(stride) * sizeof(float), of.x, row_bytes, row_bytes,
                               static_cast<size_t>(of.tokens), cudaMemcpyDeviceToDevice, call.stream));
  CUDA_CHECK(launch_to_act({wide.as<float>(), activations.data(), Act::kF16, static_cast<int64_t>(padded)}, call.on()));

  GemmArgs p;
  p.count = 1;
  p.targets[0].weight = weight;
  p.targets[0].out_stride = args.cols;
  p.kind = of.alone ? GemmClass::kDecode : GemmClass::kPrefill;
  p.x_stride = stride;
  p.tokens = of.alone ? 1 : of.tokens;
  return call.timed([&] {
    for (int32_t first = 0; first < of.tokens; first += p.tokens) {
      p.x = activations.data() + static_cast<uint64_t>(first) * static_cast<uint64_t>(stride) * kActBytes;
      p.targets[0].out = of.y + int64_t{first} * args.cols;
      CUDA_CHECK(launch_gemm(p, call.on()));
    }
  });
}

uint64_t run_product(const Call& call) {
  const Product of(call);
  return of.halves ? product_f16(call, of) : product_f32(call, of);
}

uint64_t softmax(const Call& call) {
  const mr_op_args& args = call.args;
  const uint64_t floats = product({args.batch, args.rows, args.cols});
  const float* const a = call.read("a", call.operands.a, floats);
  float* const out = call.write(floats);
  return call.timed([&] { CUDA_CHECK(launch_op_softmax(a, args.batch * args.rows, args.cols, out, call.on())); });
}

uint64_t rms_norm(const Call& call) {
  const mr_op_args& args = call.args;
  check_finite("eps", args.eps);
  if (args.eps < 0) fail(MR_INVALID_ARGUMENT, "eps is %g: want 0 or more", static_cast<double>(args.eps));
  const uint64_t floats = product({args.batch, args.rows, args.cols});
  const float* const a = call.read("a", call.operands.a, floats);
  const float* const b = call.read("b", call.operands.b, product({args.batch, args.cols}));
  call.check_apart("b", call.operands.b);
  float* const out = call.write(floats);
  return call.timed([&] {
    CUDA_CHECK(launch_op_rms_norm(a, b, args.eps, args.batch * args.rows, args.rows, args.cols, out, call.on()));
  });
}

uint64_t elementwise(const Call& call) {
  const mr_op_args& args = call.args;
  const bool binary = args.op == MR_OP_ADD || args.op == MR_OP_MUL || args.op == MR_OP_SWIGLU;
  const uint64_t floats = product({args.batch, args.rows, args.cols});
  const float* const a = call.read("a", call.operands.a, floats);
  const float* const b = binary ? call.read("b", call.operands.b, floats) : nullptr;
  float* const out = call.write(floats);
  return call.timed([&] {
    CUDA_CHECK(launch_op_elementwise(args.op, a, b, args.scale, static_cast<int64_t>(floats), out, call.on()));
  });
}

uint64_t rope(const Call& call) {
  const mr_op_args& args = call.args;
  check_size("heads", args.heads);
  if (args.cols % 2 != 0 || args.cols > 1 << 16)
    fail(MR_INVALID_ARGUMENT, "cols is %lld: want an even number of dims, at most 65536", static_cast<long long>(args.cols));
  if (args.rope_style != MR_ROPE_NORM && args.rope_style != MR_ROPE_NEOX)
    fail(MR_INVALID_ARGUMENT, "rope_style is %d: want 0 or 1", args.rope_style);
  check_finite("rope_base", args.rope_base);
  if (args.rope_base <= 0) fail(MR_INVALID_ARGUMENT, "rope_base is %g: want more than 0", static_cast<double>(args.rope_base));
  if (args.first_position < 0 || args.rows > kMostPositions - std::min(args.first_position, kMostPositions))
    fail(MR_INVALID_ARGUMENT, "first_position is %d with %lld rows: want positions 0 to %d", args.first_position,
         static_cast<long long>(args.rows), kMostPositions - 1);
  const uint64_t floats = product({args.batch, args.rows, args.heads, args.cols});
  const float* const a = call.read("a", call.operands.a, floats);
  float* const out = call.write(floats);
  const int32_t dims = static_cast<int32_t>(args.cols);
  std::vector<double> frequencies(static_cast<size_t>(dims / 2));
  rope_frequencies(dims, args.rope_base, 1.0f, nullptr, frequencies.data());
  const uint64_t bytes = frequencies.size() * sizeof(double);
  const Memory table = call.device.ledger.allocate(bytes, MR_PURPOSE_WORKSPACE);
  call.device.transfers.upload(table.data(), frequencies.data(), bytes);
  return call.timed([&] {
    CUDA_CHECK(launch_op_rope(a, table.as<double>(), args.rope_style, args.batch, args.rows, args.heads, dims,
                              args.first_position, out, call.on()));
  });
}

uint64_t attention(const Call& call) {
  const mr_op_args& args = call.args;
  check_size("inner", args.inner);
  check_size("heads", args.heads);
  check_size("kv_heads", args.kv_heads);
  check_finite("scale", args.scale);
  if (args.heads % args.kv_heads != 0)
    fail(MR_INVALID_ARGUMENT, "kv_heads is %d: want a divisor of heads, which is %d", args.kv_heads, args.heads);
  if (args.cols > 4096) fail(MR_INVALID_ARGUMENT, "cols is %lld: want at most 4096", static_cast<long long>(args.cols));
  if (args.inner < args.rows || args.inner > kMostPositions)
    fail(MR_INVALID_ARGUMENT, "inner is %lld: want rows (%lld) to %d keys", static_cast<long long>(args.inner),
         static_cast<long long>(args.rows), kMostPositions);
  const uint64_t all_q = product({args.batch, args.rows, args.heads, args.cols});
  const uint64_t all_kv = product({args.batch, args.inner, args.kv_heads, args.cols});
  call.check_apart("a", call.operands.a);
  call.check_apart("b", call.operands.b);
  call.check_apart("c", call.operands.c);
  OpAttentionArgs p{};
  p.q = call.read("a", call.operands.a, all_q);
  p.k = call.read("b", call.operands.b, all_kv);
  p.v = call.read("c", call.operands.c, all_kv);
  p.out = call.write(all_q);
  p.batch = args.batch;
  p.rows = args.rows;
  p.inner = args.inner;
  p.heads = args.heads;
  p.kv_heads = args.kv_heads;
  p.cols = static_cast<int32_t>(args.cols);
  p.scale = args.scale;
  return call.timed([&] { CUDA_CHECK(launch_op_attention(p, call.on())); });
}

bool is_product(int32_t op) {
  return op == MR_OP_MATMUL || op == MR_OP_MATVEC || op == MR_OP_MATMUL_F16 || op == MR_OP_MATVEC_F16;
}

}  // namespace

uint64_t run_op(Device& device, const mr_op_args& args, const Operands& operands) {
  if (args.op < 0 || args.op >= MR_OP_COUNT) fail(MR_INVALID_ARGUMENT, "op is %d: want 0 to %d", args.op, MR_OP_COUNT - 1);
  check_size("rows", args.rows);
  check_size("cols", args.cols);
  check_size("batch", args.batch);
  if (!is_product(args.op) && args.a_type != kF32)
    fail(MR_INVALID_ARGUMENT, "a_type is %d: want 0 (F32) but for products of weights", args.a_type);
  for (const std::shared_ptr<Buffer>& buffer : {operands.a, operands.b, operands.c, operands.out})
    if (buffer != nullptr && buffer->device().get() != &device)
      fail(MR_INVALID_ARGUMENT, "an operand lies on another device");
  device.enter();
  const Call call(device, args, operands);
  switch (args.op) {
    case MR_OP_MATMUL:
    case MR_OP_MATVEC:
    case MR_OP_MATMUL_F16:
    case MR_OP_MATVEC_F16: return run_product(call);
    case MR_OP_SOFTMAX: return softmax(call);
    case MR_OP_RMS_NORM: return rms_norm(call);
    case MR_OP_ROPE: return rope(call);
    case MR_OP_ATTENTION: return attention(call);
    default: return elementwise(call);
  }
}

}  // namespace mr::cuda
