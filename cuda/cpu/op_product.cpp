// op_product: MATMUL and MATVEC in f32, and their forms with operands in f16.
//
// The f32 forms keep F32, F16 and BF16 weights as they are and take quantised ones apart into f32; inputs are f32 in both.
// The F16 forms round inputs and weights to f16 first, whose products are exact in f32. Either way the weights are packed and
// the inputs rounded before the clock starts, and a row's sum is that of linear.h: runs of 128 inputs, then over the runs.
#include <algorithm>
#include <cstring>
#include <vector>

#include "half.h"
#include "ledger.h"
#include "linear.h"
#include "ops_call.h"

namespace mr::cpu {
namespace {

// The path whose products take inputs in f32, for every type that run_product packs.
Isa f32_isa(Isa isa) { return isa >= Isa::avx512bf16 ? Isa::avx512vnni : isa; }

// What weights of a type are multiplied as.
int32_t packed_type(bool halves, int32_t type) {
  if (halves) return type_f16;
  return type == type_f16 || type == type_bf16 ? type : static_cast<int32_t>(type_f32);
}

// Packs rows [begin, end), begin being a multiple of a panel, from the file bytes of the first of them.
void pack_as(Matrix& matrix, int32_t type, const uint8_t* file, int64_t begin, int64_t end) {
  if (type == matrix.type) return pack_rows(matrix, file, begin, end - begin);
  const uint64_t row_bytes = file_size(type, matrix.in, 1);
  std::vector<float> values(static_cast<size_t>(panel_rows * matrix.in));
  std::vector<uint16_t> halves(matrix.type == type_f16 ? values.size() : 0);
  for (int64_t row = begin; row < end; row += panel_rows) {
    const int64_t n = std::min(panel_rows, end - row);
    decode_rows(type, file + static_cast<uint64_t>(row - begin) * row_bytes, matrix.in, n, values.data());
    const void* bytes = values.data();
    if (matrix.type == type_f16) {
      std::transform(values.begin(), values.begin() + n * matrix.in, halves.begin(), float_to_half);
      bytes = halves.data();
    }
    pack_rows(matrix, static_cast<const uint8_t*>(bytes), row, n);
  }
}

// y = x * W^T, all threads: tokens are prepared, then panels multiplied.
void multiply_all(Device& device, const Matrix& matrix, const float* x, int64_t tokens, void* activations, float* y) {
  const Isa isa = f32_isa(device.isa);
  device.threads.split(tokens, 1, [&](int64_t begin, int64_t end, int) {
    prepare_activations(isa, Activation::f32, x, matrix.in, matrix.in, tokens, begin, end, activations);
  });
  device.threads.split(panels(matrix.out), 1, [&](int64_t begin, int64_t end, int) {
    multiply(isa, matrix, activations, tokens, y, matrix.out, begin, end, nullptr);
  });
}

}  // namespace

uint64_t run_product(const Call& call) {
  const mr_op_args& args = call.args;
  const bool alone = args.op == MR_OP_MATVEC || args.op == MR_OP_MATVEC_F16;
  const bool halves = args.op == MR_OP_MATMUL_F16 || args.op == MR_OP_MATVEC_F16;
  check_size("inner", args.inner);
  if (alone && args.rows != 1)
    fail(MR_INVALID_ARGUMENT, "rows is %lld: want 1 for a product with a vector", static_cast<long long>(args.rows));
  if (!supported(args.a_type, args.inner))
    fail(MR_INVALID_ARGUMENT, "a_type is %d and inner %lld: no type this engine runs, or rows that are not whole blocks",
         args.a_type, static_cast<long long>(args.inner));
  const int32_t type = packed_type(halves, args.a_type);
  const uint64_t file = file_size(args.a_type, args.inner, args.cols);
  const uint64_t resident = packed_size(type, args.inner, args.cols);
  if (file == 0 || resident == 0) fail(MR_INVALID_ARGUMENT, "the weight matrix a is too large");
  const uint64_t in_floats = product({args.batch, args.rows, args.inner});
  const uint64_t out_floats = product({args.batch, args.rows, args.cols});
  call.check_apart("a", call.operands.a);
  call.check_apart("b", call.operands.b);
  check_bytes("a", call.operands.a, file);
  const float* x = call.read("b", call.operands.b, in_floats);
  call.check_out(out_floats);

  Device& device = call.device;
  // A vector runs alone whatever the batch, as a decode step of one sequence does.
  const int64_t tokens = alone ? 1 : args.batch * args.rows, calls = alone ? args.batch : 1;
  const Memory weights = device.ledger.allocate(resident, MR_PURPOSE_WORKSPACE, true);
  const Memory activations =
      device.ledger.allocate(activation_size(Activation::f32, args.inner, tokens), MR_PURPOSE_WORKSPACE, false);
  Memory rounded;
  if (halves) {
    rounded = device.ledger.allocate(in_floats * sizeof(float), MR_PURPOSE_WORKSPACE, false);
    std::transform(x, x + in_floats, rounded.as<float>(), [](float v) { return half_to_float(float_to_half(v)); });
    x = rounded.as<float>();
  }
  Matrix matrix{type, args.inner, args.cols, weights.as<uint8_t>(), resident};
  const uint8_t* const rows = call.operands.a->readable(file);
  const uint64_t row_bytes = file_size(args.a_type, args.inner, 1);
  device.threads.split(args.cols, panel_rows, [&](int64_t begin, int64_t end, int) {
    pack_as(matrix, args.a_type, rows + static_cast<uint64_t>(begin) * row_bytes, begin, end);
  });
  float* const y = call.write(out_floats);
  const Timer timer;
  for (int64_t i = 0; i < calls; ++i)
    multiply_all(device, matrix, x + i * tokens * args.inner, tokens, activations.data(), y + i * tokens * args.cols);
  return timer.nanoseconds();
}

}  // namespace mr::cpu
