#include "ops.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ledger.h"
#include "linear.h"
#include "ops_call.h"
#include "shape.h"

namespace mr::cpu {
namespace {

constexpr int64_t kElementwiseGrain = 16384;  // floats: below it a second thread costs more than it gives

uint64_t softmax(const Call& call) {
  const mr_op_args& args = call.args;
  const uint64_t floats = product({args.batch, args.rows, args.cols});
  const float* const a = call.read("a", call.operands.a, floats);
  call.check_out(floats);
  float* const out = call.write(floats);
  const Timer timer;
  call.device.threads.split(args.batch * args.rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) call.ops.softmax(a + row * args.cols, args.cols, out + row * args.cols);
  });
  return timer.nanoseconds();
}

uint64_t rms_norm(const Call& call) {
  const mr_op_args& args = call.args;
  check_finite("eps", args.eps);
  if (args.eps < 0) fail(MR_INVALID_ARGUMENT, "eps is %g: want 0 or more", static_cast<double>(args.eps));
  const uint64_t floats = product({args.batch, args.rows, args.cols});
  const float* const a = call.read("a", call.operands.a, floats);
  const float* const b = call.read("b", call.operands.b, product({args.batch, args.cols}));
  call.check_apart("b", call.operands.b);
  call.check_out(floats);
  float* const out = call.write(floats);
  const Timer timer;
  call.device.threads.split(args.batch * args.rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      call.ops.rms_norm(a + row * args.cols, b + row / args.rows * args.cols, args.eps, args.cols, out + row * args.cols);
  });
  return timer.nanoseconds();
}

uint64_t elementwise(const Call& call) {
  const mr_op_args& args = call.args;
  const bool binary = args.op == MR_OP_ADD || args.op == MR_OP_MUL || args.op == MR_OP_SWIGLU;
  const uint64_t floats = product({args.batch, args.rows, args.cols});
  const float* const a = call.read("a", call.operands.a, floats);
  const float* const b = binary ? call.read("b", call.operands.b, floats) : nullptr;
  call.check_out(floats);
  float* const out = call.write(floats);
  const Timer timer;
  call.device.threads.split(static_cast<int64_t>(floats), kElementwiseGrain, [&](int64_t begin, int64_t end, int) {
    const int64_t n = end - begin;
    switch (args.op) {
      case MR_OP_ADD: return call.ops.add(a + begin, b + begin, n, out + begin);
      case MR_OP_MUL: return call.ops.mul(a + begin, b + begin, n, out + begin);
      case MR_OP_SCALE: return call.ops.scale(a + begin, args.scale, n, out + begin);
      case MR_OP_SILU: return call.ops.silu(a + begin, n, out + begin);
      case MR_OP_SWIGLU: return call.ops.swiglu(a + begin, b + begin, n, out + begin);
      default: std::memmove(out + begin, a + begin, static_cast<size_t>(n) * sizeof(float));
    }
  });
  return timer.nanoseconds();
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
  const int64_t width = static_cast<int64_t>(product({args.heads, args.cols}));
  const uint64_t floats = product({args.batch, args.rows, width});
  const float* const a = call.read("a", call.operands.a, floats);
  call.check_out(floats);
  float* const out = call.write(floats);
  const int32_t dims = static_cast<int32_t>(args.cols);
  std::vector<double> frequencies(static_cast<size_t>(dims / 2));
  rope_frequencies(dims, args.rope_base, 1.0f, nullptr, frequencies.data());
  const Timer timer;
  call.device.threads.split(args.rows, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<float> turns(static_cast<size_t>(rope_floats(dims)));
    for (int64_t row = begin; row < end; ++row) {
      rope_turns(frequencies.data(), dims, args.rope_style, args.first_position + row, 1.0f, turns.data());
      for (int64_t batch = 0; batch < args.batch; ++batch) {
        const int64_t at = (batch * args.rows + row) * width;
        std::memmove(out + at, a + at, static_cast<size_t>(width) * sizeof(float));
        for (int32_t head = 0; head < args.heads; ++head)
          call.ops.rope(out + at + head * args.cols, turns.data(), dims, args.rope_style);
      }
    }
  });
  return timer.nanoseconds();
}

// One attention problem: keys and values go into a cache of their own, block after block, as a runner's do.
struct Attention {
  const Call& call;
  const KvLayout layout;
  const int64_t tile;  // tokens a task
  uint8_t *keys, *values;
  const int32_t* blocks;
  float* scratch;
  int64_t scratch_stride;  // floats a thread

  void store(const float* k, const float* v) const {
    const mr_op_args& args = call.args;
    const int64_t width = int64_t{args.kv_heads} * args.cols;
    // By blocks: two threads never write one.
    call.device.threads.split(args.inner, layout.block_size, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i)
        for (int32_t head = 0; head < args.kv_heads; ++head)
          call.ops.kv_store(k + i * width + head * args.cols, v + i * width + head * args.cols, layout,
                            static_cast<int32_t>(i / layout.block_size), static_cast<int32_t>(i % layout.block_size), head,
                            keys, values);
    });
  }

  void attend(const float* q, float* out) const {
    const mr_op_args& args = call.args;
    const int64_t width = int64_t{args.heads} * args.cols, group = args.heads / args.kv_heads;
    const int64_t tiles = (args.rows + tile - 1) / tile;
    call.device.threads.run(tiles * args.kv_heads, [&](int64_t task, int thread) {
      const int64_t kv_head = task % args.kv_heads, first = task / args.kv_heads * tile;
      const int64_t last = std::min(args.rows, first + tile);
      std::vector<const float*> from;
      std::vector<float*> to;
      std::vector<int32_t> visible;
      for (int64_t row = first; row < last; ++row)
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          from.push_back(q + row * width + head * args.cols);
          to.push_back(out + row * width + head * args.cols);
          visible.push_back(static_cast<int32_t>(args.inner - args.rows + row + 1));
        }
      AttentionArgs a{};
      a.q = from.data();
      a.out = to.data();
      a.visible = visible.data();
      a.rows = static_cast<int32_t>(visible.size());
      a.scale = args.scale;
      a.layout = layout;
      a.kv_head = static_cast<int32_t>(kv_head);
      a.blocks = blocks;
      a.keys = keys;
      a.values = values;
      a.scratch = scratch + thread * scratch_stride;
      call.ops.attend(a);
    });
  }
};

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
  const uint64_t q_floats = product({args.rows, args.heads, args.cols});
  const uint64_t kv_floats = product({args.inner, args.kv_heads, args.cols});
  const uint64_t all_q = product({args.batch, static_cast<int64_t>(q_floats)});
  const uint64_t all_kv = product({args.batch, static_cast<int64_t>(kv_floats)});
  call.check_apart("a", call.operands.a);
  call.check_apart("b", call.operands.b);
  call.check_apart("c", call.operands.c);
  const float* const q = call.read("a", call.operands.a, all_q);
  const float* const k = call.read("b", call.operands.b, all_kv);
  const float* const v = call.read("c", call.operands.c, all_kv);
  call.check_out(all_q);

  const int32_t head_dim = static_cast<int32_t>(args.cols);
  const KvLayout layout{MR_KV_F32, 32, args.kv_heads, head_dim, pad_dim(head_dim)};
  const int64_t blocks = (args.inner + layout.block_size - 1) / layout.block_size;
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  const int64_t group = args.heads / args.kv_heads;
  const int64_t tile = std::max<int64_t>(1, call.ops.attention_tile / group);
  const int64_t stride = (attention_scratch(tile * group, layout.padded_dim) + 15) / 16 * 16;
  Ledger& ledger = call.device.ledger;
  const uint64_t cache = product({blocks, layout.block_stride()});
  const Memory keys = ledger.allocate(cache, MR_PURPOSE_WORKSPACE, true);
  const Memory values = ledger.allocate(cache, MR_PURPOSE_WORKSPACE, true);
  const Memory scratch = ledger.allocate(product({stride, call.device.threads.size(), static_cast<int64_t>(sizeof(float))}),
                                         MR_PURPOSE_WORKSPACE, false);
  const Attention run{call, layout, tile, keys.as<uint8_t>(), values.as<uint8_t>(), table.data(), scratch.as<float>(), stride};
  float* const out = call.write(all_q);
  uint64_t nanoseconds = 0;
  for (uint64_t batch = 0; batch < static_cast<uint64_t>(args.batch); ++batch) {
    run.store(k + batch * kv_floats, v + batch * kv_floats);
    const Timer timer;
    run.attend(q + batch * q_floats, out + batch * q_floats);
    nanoseconds += timer.nanoseconds();
  }
  return nanoseconds;
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
  if (!is_product(args.op) && args.a_type != type_f32)
    fail(MR_INVALID_ARGUMENT, "a_type is %d: want 0 (F32) but for products of weights", args.a_type);
  for (const std::shared_ptr<Buffer>& buffer : {operands.a, operands.b, operands.c, operands.out})
    if (buffer != nullptr && buffer->device().get() != &device)
      fail(MR_INVALID_ARGUMENT, "an operand lies on another device");
  const Call call{device, args, operands, vec_ops(device.isa)};
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

}  // namespace mr::cpu
