/* The plain operations against double. NaN fails every comparison. */
#include <math.h>

#include "check.h"

static mr_device *device;
static uint64_t state = 42;

static int close_to(double got, double want) { return fabs(got - want) <= 1e-5 + 1e-5 * fabs(want); }

static float *random_floats(size_t count) {
  float *values = malloc(count * sizeof *values);
  size_t i;
  CHECK(values != NULL);
  for (i = 0; i < count; ++i) values[i] = next_float(&state) * 3;
  return values;
}

static mr_op_args args_of(int32_t op, int64_t rows, int64_t cols) {
  mr_op_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.op = op;
  args.rows = rows;
  args.cols = cols;
  args.batch = 1;
  args.heads = args.kv_heads = 1;
  args.scale = 1;
  args.rope_base = 10000;
  return args;
}

/* Runs an operation over fresh buffers; the result is the caller's. */
static float *run(mr_op_args args, const float *a, size_t a_count, const float *b, size_t b_count, const float *c,
                  size_t c_count, size_t out_count) {
  mr_buffer *buffers[4] = {NULL, NULL, NULL, NULL};
  float *out = malloc(out_count * sizeof *out);
  uint64_t nanoseconds = UINT64_MAX;
  int i;
  CHECK(out != NULL);
  buffers[0] = upload(device, a, a_count * sizeof *a);
  if (b != NULL) buffers[1] = upload(device, b, b_count * sizeof *b);
  if (c != NULL) buffers[2] = upload(device, c, c_count * sizeof *c);
  OK(api->buffer_alloc(device, out_count * sizeof *out, MR_PURPOSE_WORKSPACE, &buffers[3]));
  args.a = buffers[0];
  args.b = buffers[1];
  args.c = buffers[2];
  args.out = buffers[3];
  OK(api->op_run(device, &args, &nanoseconds));
  CHECK(nanoseconds != UINT64_MAX);
  OK(api->buffer_read(buffers[3], 0, out, out_count * sizeof *out));
  for (i = 0; i < 4; ++i) OK(api->buffer_free(buffers[i]));
  return out;
}

/* Products of all four kinds, each within the bound that the header gives it. */
static void test_product(int64_t rows, int64_t cols, int64_t inner, int32_t batch, int32_t op) {
  const size_t n = (size_t)(batch * rows);
  float *a = random_floats((size_t)(cols * inner)), *b = random_floats(n * (size_t)inner), *out;
  mr_op_args args = args_of(op, rows, cols);
  const int halves = op == MR_OP_MATMUL_F16 || op == MR_OP_MATVEC_F16;
  const double share = (double)(inner + 8) * 0x1p-24 + (halves ? 0x1p-10 : 0), least = halves ? 0x1p-25 : 0;
  size_t r;
  int64_t c, i;
  args.inner = inner;
  args.batch = batch;
  out = run(args, a, (size_t)(cols * inner), b, n * (size_t)inner, NULL, 0, n * (size_t)cols);
  for (r = 0; r < n; ++r)
    for (c = 0; c < cols; ++c) {
      double want = 0, bound = 0;
      for (i = 0; i < inner; ++i) {
        const double x = a[c * inner + i], y = b[r * (size_t)inner + (size_t)i];
        want += x * y;
        bound += share * fabs(x * y) + least * (fabs(x) + fabs(y));
      }
      CHECK(fabs(out[r * (size_t)cols + (size_t)c] - want) <= bound);
    }
  free(a);
  free(b);
  free(out);
}

static void test_rows(int64_t rows, int64_t cols, int32_t batch) {
  const size_t n = (size_t)(batch * rows * cols);
  float *a = random_floats(n), *b = random_floats(n), *out;
  mr_op_args args = args_of(MR_OP_SOFTMAX, rows, cols);
  size_t r, i;
  args.batch = batch;
  for (i = 0; i < (size_t)cols; ++i) a[i] = -INFINITY; /* the first row */
  out = run(args, a, n, NULL, 0, NULL, 0, n);
  for (i = 0; i < (size_t)cols; ++i) CHECK(out[i] == 0);
  for (r = 1; r < (size_t)(batch * rows); ++r) {
    const float *row = a + r * (size_t)cols;
    double sum = 0;
    for (i = 0; i < (size_t)cols; ++i) sum += exp(row[i]);
    for (i = 0; i < (size_t)cols; ++i) CHECK(close_to(out[r * (size_t)cols + i], exp(row[i]) / sum));
  }
  free(out);

  args.op = MR_OP_RMS_NORM;
  args.eps = 1e-5f;
  for (i = 0; i < (size_t)cols; ++i) a[i] = (float)i;
  out = run(args, a, n, b, (size_t)(batch * cols), NULL, 0, n);
  for (r = 0; r < (size_t)(batch * rows); ++r) {
    const float *row = a + r * (size_t)cols, *weight = b + r / (size_t)rows * (size_t)cols;
    double sum = 0;
    for (i = 0; i < (size_t)cols; ++i) sum += (double)row[i] * row[i];
    for (i = 0; i < (size_t)cols; ++i)
      CHECK(close_to(out[r * (size_t)cols + i], row[i] / sqrt(sum / (double)cols + 1e-5) * weight[i]));
  }
  free(out);
  free(a);
  free(b);
}

static double silu(double x) { return x / (1 + exp(-x)); }

static void test_elementwise(int64_t rows, int64_t cols, int32_t batch) {
  const size_t n = (size_t)(batch * rows * cols);
  float *a = random_floats(n), *b = random_floats(n);
  int32_t op;
  for (op = MR_OP_ADD; op <= MR_OP_COPY; ++op) {
    const int binary = op == MR_OP_ADD || op == MR_OP_MUL || op == MR_OP_SWIGLU;
    mr_op_args args = args_of(op, rows, cols);
    float *out;
    size_t i;
    args.batch = batch;
    args.scale = 0.37f;
    out = run(args, a, n, binary ? b : NULL, n, NULL, 0, n);
    for (i = 0; i < n; ++i) {
      const double want = op == MR_OP_ADD      ? (double)a[i] + b[i]
                          : op == MR_OP_MUL    ? (double)a[i] * b[i]
                          : op == MR_OP_SCALE  ? (double)a[i] * 0.37f
                          : op == MR_OP_SILU   ? silu(a[i])
                          : op == MR_OP_SWIGLU ? silu(a[i]) * b[i]
                                               : (double)a[i];
      CHECK(close_to(out[i], want));
    }
    free(out);
  }
  free(a);
  free(b);
}

static void test_rope(int32_t style) {
  enum { rows = 5, heads = 3, dims = 6, batch = 2, first = 1000, n = batch * rows * heads * dims };
  float *a = random_floats(n), *out;
  mr_op_args args = args_of(MR_OP_ROPE, rows, dims);
  int r, h, i;
  args.heads = heads;
  args.batch = batch;
  args.rope_style = style;
  args.first_position = first;
  out = run(args, a, n, NULL, 0, NULL, 0, n);
  for (r = 0; r < batch * rows; ++r)
    for (h = 0; h < heads; ++h)
      for (i = 0; i < dims / 2; ++i) {
        const int at = (r * heads + h) * dims, x = style == MR_ROPE_NORM ? 2 * i : i, y = style == MR_ROPE_NORM ? x + 1 : i + dims / 2;
        const double angle = (first + r % rows) * pow(10000, -2.0 * i / dims), s = sin(angle), c = cos(angle);
        CHECK(close_to(out[at + x], a[at + x] * c - a[at + y] * s));
        CHECK(close_to(out[at + y], a[at + x] * s + a[at + y] * c));
      }
  free(a);
  free(out);
}

static void test_attention(int rows, int inner, int heads, int kv_heads, int dim, int batch) {
  const size_t q_count = (size_t)(batch * rows * heads * dim), kv_count = (size_t)(batch * inner * kv_heads * dim);
  float *q = random_floats(q_count), *k = random_floats(kv_count), *v = random_floats(kv_count), *out;
  double *weights = malloc((size_t)inner * sizeof *weights);
  mr_op_args args = args_of(MR_OP_ATTENTION, rows, dim);
  int p, r, h, i, d;
  CHECK(weights != NULL);
  args.inner = inner;
  args.heads = heads;
  args.kv_heads = kv_heads;
  args.batch = batch;
  args.scale = 0.3f;
  out = run(args, q, q_count, k, kv_count, v, kv_count, q_count);
  for (p = 0; p < batch; ++p)
    for (r = 0; r < rows; ++r)
      for (h = 0; h < heads; ++h) {
        const int visible = inner - rows + r + 1, at = ((p * rows + r) * heads + h) * dim, g = h / (heads / kv_heads);
        double most = -INFINITY, sum = 0;
        for (i = 0; i < visible; ++i) {
          weights[i] = 0;
          for (d = 0; d < dim; ++d) weights[i] += (double)q[at + d] * k[((p * inner + i) * kv_heads + g) * dim + d];
          weights[i] *= 0.3f;
          if (weights[i] > most) most = weights[i];
        }
        for (i = 0; i < visible; ++i) sum += weights[i] = exp(weights[i] - most);
        for (d = 0; d < dim; ++d) {
          double want = 0;
          for (i = 0; i < visible; ++i) want += weights[i] / sum * v[((p * inner + i) * kv_heads + g) * dim + d];
          CHECK(fabs(out[at + d] - want) <= 2e-5);
        }
      }
  free(q);
  free(k);
  free(v);
  free(out);
  free(weights);
}

static void test_refusals(void) {
  float values[64] = {0};
  mr_buffer *small = upload(device, values, sizeof values), *out = upload(device, values, sizeof values);
  mr_op_args args = args_of(MR_OP_ADD, 4, 4);
  args.a = args.b = small;
  args.out = out;
  OK(api->op_run(device, &args, NULL));
  args.op = MR_OP_COUNT;
  FAILS(MR_INVALID_ARGUMENT, "op", api->op_run(device, &args, NULL));
  args.op = MR_OP_ADD;
  args.cols = 17;
  FAILS(MR_INVALID_ARGUMENT, "buffer a", api->op_run(device, &args, NULL));
  args.cols = INT64_MAX / 2;
  FAILS(MR_INVALID_ARGUMENT, "sizes", api->op_run(device, &args, NULL));
  args.cols = 4;
  args.rows = 0;
  FAILS(MR_INVALID_ARGUMENT, "rows", api->op_run(device, &args, NULL));
  args.rows = 4;
  args.b = NULL;
  FAILS(MR_INVALID_ARGUMENT, "buffer b", api->op_run(device, &args, NULL));
  args.b = small;
  args.a_type = 1;
  FAILS(MR_INVALID_ARGUMENT, "a_type", api->op_run(device, &args, NULL));
  args.op = MR_OP_MATMUL;
  args.a_type = 99;
  args.inner = 4;
  FAILS(MR_INVALID_ARGUMENT, "a_type", api->op_run(device, &args, NULL));
  args.a_type = 8; /* Q8_0 has blocks of 32 */
  FAILS(MR_INVALID_ARGUMENT, "inner", api->op_run(device, &args, NULL));
  args.a_type = 0;
  args.out = out;
  args.a = out;
  FAILS(MR_INVALID_ARGUMENT, "out", api->op_run(device, &args, NULL));
  args.a = small;
  args.op = MR_OP_MATVEC;
  FAILS(MR_INVALID_ARGUMENT, "rows", api->op_run(device, &args, NULL));
  args.op = MR_OP_MATVEC_F16;
  FAILS(MR_INVALID_ARGUMENT, "rows", api->op_run(device, &args, NULL));
  args.op = MR_OP_ROPE;
  args.cols = 3;
  FAILS(MR_INVALID_ARGUMENT, "even", api->op_run(device, &args, NULL));
  args.cols = 4;
  args.first_position = -1;
  FAILS(MR_INVALID_ARGUMENT, "first_position", api->op_run(device, &args, NULL));
  args.op = MR_OP_ATTENTION;
  args.inner = 3;
  args.c = small;
  FAILS(MR_INVALID_ARGUMENT, "inner", api->op_run(device, &args, NULL));
  args.inner = 4;
  args.heads = 3;
  args.kv_heads = 2;
  FAILS(MR_INVALID_ARGUMENT, "kv_heads", api->op_run(device, &args, NULL));
  OK(api->buffer_free(small));
  FAILS(MR_FAILED_PRECONDITION, "given back", api->op_run(device, &args, NULL));
  OK(api->buffer_free(out));
}

void test_ops(const char *path) {
  int i;
  device = open_device(path, 2);
  for (i = 0; i < 2; ++i) {
    const int32_t matmul = i == 0 ? MR_OP_MATMUL : MR_OP_MATMUL_F16, matvec = i == 0 ? MR_OP_MATVEC : MR_OP_MATVEC_F16;
    test_product(1, 1, 1, 1, matmul);
    test_product(5, 37, 100, 1, matmul);
    test_product(3, 48, 257, 4, matmul);
    test_product(33, 129, 8, 1, matmul);
    test_product(1, 65, 320, 1, matvec);
    test_product(1, 33, 64, 5, matvec);
  }
  test_rows(2, 1, 1);
  test_rows(7, 131, 3);
  test_elementwise(1, 1, 1);
  test_elementwise(9, 4111, 2);
  test_rope(MR_ROPE_NORM);
  test_rope(MR_ROPE_NEOX);
  test_attention(1, 1, 1, 1, 1, 1);
  test_attention(3, 40, 6, 2, 24, 2);
  test_attention(33, 300, 4, 4, 64, 1);
  test_attention(2, 17, 16, 1, 20, 3);
  test_refusals();
  CHECK(info_of(device).live_buffers == 0);
  CHECK(info_of(device).bytes_free == info_of(device).bytes_total);
  OK(api->device_close(device));
}
