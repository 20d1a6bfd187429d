/* Trampolines: Go cannot call a C function pointer, so each member of mr_api has a function here that does. */
#ifndef MILLRACE_NATIVE_TABLE_H
#define MILLRACE_NATIVE_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "millrace/engine.h"

/* Bytes of a table that has every member this package calls. */
static inline size_t mrt_table_size(void) { return offsetof(mr_api, step_masks) + sizeof(((mr_api *)0)->step_masks); }

static inline int32_t mrt_error_code(const mr_api *t, const mr_error *e) { return t->error_code(e); }
static inline const char *mrt_error_message(const mr_api *t, const mr_error *e) { return t->error_message(e); }
static inline int64_t mrt_error_native(const mr_api *t, const mr_error *e) { return t->error_native(e); }
static inline void mrt_error_destroy(const mr_api *t, mr_error *e) { t->error_destroy(e); }

static inline mr_error *mrt_device_count(const mr_api *t, int32_t *n) { return t->device_count(n); }
static inline mr_error *mrt_device_open(const mr_api *t, const mr_device_options *o, mr_device **out) {
  return t->device_open(o, out);
}
static inline mr_error *mrt_device_info(const mr_api *t, const mr_device *d, mr_device_info *out) {
  return t->device_info(d, out);
}
static inline mr_error *mrt_device_close(const mr_api *t, mr_device *d) { return t->device_close(d); }
static inline mr_error *mrt_device_measure(const mr_api *t, mr_device *d, int32_t what, uint64_t ns, double *rate) {
  return t->device_measure(d, what, ns, rate);
}

static inline mr_error *mrt_device_fault(const mr_api *t, mr_device *d, int32_t fault, int32_t index, uint64_t value) {
  return t->device_fault(d, fault, index, value);
}

static inline mr_error *mrt_host_alloc(const mr_api *t, mr_device *d, uint64_t size, void **out) {
  return t->host_alloc(d, size, out);
}
static inline mr_error *mrt_host_free(const mr_api *t, mr_device *d, void *p) { return t->host_free(d, p); }

static inline mr_error *mrt_buffer_alloc(const mr_api *t, mr_device *d, uint64_t size, int32_t purpose, mr_buffer **out) {
  return t->buffer_alloc(d, size, purpose, out);
}
static inline mr_error *mrt_buffer_write(const mr_api *t, mr_buffer *b, uint64_t off, const void *src, uint64_t n) {
  return t->buffer_write(b, off, src, n);
}
static inline mr_error *mrt_buffer_read(const mr_api *t, const mr_buffer *b, uint64_t off, void *dst, uint64_t n) {
  return t->buffer_read(b, off, dst, n);
}
static inline mr_error *mrt_buffer_copy(const mr_api *t, mr_buffer *dst, uint64_t dst_off, const mr_buffer *src,
                                        uint64_t src_off, uint64_t n) {
  return t->buffer_copy(dst, dst_off, src, src_off, n);
}
static inline mr_error *mrt_buffer_fill(const mr_api *t, mr_buffer *b, uint64_t off, uint8_t value, uint64_t n) {
  return t->buffer_fill(b, off, value, n);
}
static inline mr_error *mrt_buffer_digest(const mr_api *t, const mr_buffer *b, uint64_t off, uint64_t n, mr_digest *out) {
  return t->buffer_digest(b, off, n, out);
}
static inline mr_error *mrt_buffer_free(const mr_api *t, mr_buffer *b) { return t->buffer_free(b); }

static inline mr_error *mrt_op_run(const mr_api *t, mr_device *d, const mr_op_args *a, uint64_t *ns) {
  return t->op_run(d, a, ns);
}

static inline mr_error *mrt_model_create(const mr_api *t, mr_device *d, const mr_model_desc *desc, mr_model **out) {
  return t->model_create(d, desc, out);
}
static inline mr_error *mrt_model_resident_size(const mr_api *t, const mr_device *d, const mr_tensor_desc *desc,
                                                uint64_t *bytes) {
  return t->model_resident_size(d, desc, bytes);
}
static inline mr_error *mrt_model_bind(const mr_api *t, mr_model *m, const mr_tensor_desc *desc, mr_buffer *b) {
  return t->model_bind(m, desc, b);
}
static inline mr_error *mrt_model_seal(const mr_api *t, mr_model *m) { return t->model_seal(m); }
static inline mr_error *mrt_model_digest(const mr_api *t, const mr_model *m, int32_t tensor, mr_digest *out) {
  return t->model_digest(m, tensor, out);
}
static inline mr_error *mrt_model_fault(const mr_api *t, mr_model *m, int32_t fault, int32_t index, uint64_t value) {
  return t->model_fault(m, fault, index, value);
}
static inline mr_error *mrt_model_destroy(const mr_api *t, mr_model *m) { return t->model_destroy(m); }

static inline mr_error *mrt_runner_cost(const mr_api *t, const mr_model *m, const mr_runner_config *c, mr_runner_cost *out) {
  return t->runner_cost(m, c, out);
}
static inline mr_error *mrt_runner_create(const mr_api *t, mr_model *m, const mr_runner_config *c, mr_runner **out) {
  return t->runner_create(m, c, out);
}
static inline mr_error *mrt_step_submit(const mr_api *t, mr_runner *r, const mr_step *s) { return t->step_submit(r, s); }
static inline mr_error *mrt_step_masks(const mr_api *t, mr_runner *r, const uint32_t *masks, int64_t words) {
  return t->step_masks(r, masks, words);
}
static inline mr_error *mrt_step_wait(const mr_api *t, mr_runner *r, uint64_t timeout_ns, mr_step_result *out) {
  return t->step_wait(r, timeout_ns, out);
}
static inline mr_error *mrt_runner_progress(const mr_api *t, const mr_runner *r, mr_progress *out) {
  return t->runner_progress(r, out);
}
static inline mr_error *mrt_runner_fault(const mr_api *t, mr_runner *r, int32_t fault, int32_t index, uint64_t value) {
  return t->runner_fault(r, fault, index, value);
}
static inline mr_error *mrt_runner_destroy(const mr_api *t, mr_runner *r) { return t->runner_destroy(r); }

#endif
