/* Trampolines of vector codebooks, as table.h has them for the rest. */
#ifndef MILLRACE_NATIVE_VECTORS_H
#define MILLRACE_NATIVE_VECTORS_H

#include "millrace/vectors.h"

/* The functions of vector codebooks, or NULL where the engine lacks them or some of them. */
static inline const mr_vector_api *mrt_vectors(const mr_api *t) {
  if (t->struct_size < offsetof(mr_api, vectors) + sizeof t->vectors || t->vectors == NULL) return NULL;
  return t->vectors->struct_size < sizeof(mr_vector_api) ? NULL : t->vectors;
}

static inline mr_error *mrt_trainer_cost(const mr_vector_api *v, const mr_device *d, const mr_trainer_config *c, mr_trainer_cost *out) {
  return v->trainer_cost(d, c, out);
}
static inline mr_error *mrt_trainer_create(const mr_vector_api *v, mr_device *d, const mr_trainer_config *c, mr_trainer **out) {
  return v->trainer_create(d, c, out);
}
static inline mr_error *mrt_trainer_write(const mr_vector_api *v, mr_trainer *t, uint64_t first, const void *rows, uint64_t count) {
  return v->trainer_write(t, first, rows, count);
}
static inline mr_error *mrt_trainer_give(const mr_vector_api *v, mr_trainer *t, const void *codewords, uint64_t size) {
  return v->trainer_give(t, codewords, size);
}
static inline mr_error *mrt_trainer_restore(const mr_vector_api *v, mr_trainer *t, const void *state, uint64_t size) {
  return v->trainer_restore(t, state, size);
}
static inline mr_error *mrt_trainer_submit(const mr_vector_api *v, mr_trainer *t, const mr_slice *s) { return v->trainer_submit(t, s); }
static inline mr_error *mrt_trainer_wait(const mr_vector_api *v, mr_trainer *t, uint64_t timeout_ns, mr_training *out) {
  return v->trainer_wait(t, timeout_ns, out);
}
static inline mr_error *mrt_trainer_size(const mr_vector_api *v, const mr_trainer *t, int32_t what, uint64_t *size) {
  return v->trainer_size(t, what, size);
}
static inline mr_error *mrt_trainer_read(const mr_vector_api *v, const mr_trainer *t, int32_t what, uint64_t offset, void *dst,
                                         uint64_t size) {
  return v->trainer_read(t, what, offset, dst, size);
}
static inline mr_error *mrt_trainer_destroy(const mr_vector_api *v, mr_trainer *t) { return v->trainer_destroy(t); }

static inline mr_error *mrt_codebook_create(const mr_vector_api *v, mr_device *d, const mr_codebook_desc *desc, const void *codewords,
                                            uint64_t size, mr_codebook **out) {
  return v->codebook_create(d, desc, codewords, size, out);
}
static inline mr_error *mrt_codebook_encode(const mr_vector_api *v, const mr_codebook *b, mr_encode_args *a) {
  return v->codebook_encode(b, a);
}
static inline mr_error *mrt_codebook_decode(const mr_vector_api *v, const mr_codebook *b, const void *codes, uint64_t count, void *out) {
  return v->codebook_decode(b, codes, count, out);
}
static inline mr_error *mrt_codebook_digest(const mr_vector_api *v, const mr_codebook *b, mr_digest *out) {
  return v->codebook_digest(b, out);
}
static inline mr_error *mrt_codebook_fault(const mr_vector_api *v, mr_codebook *b, int32_t fault, int32_t index, uint64_t value) {
  return v->codebook_fault(b, fault, index, value);
}
static inline mr_error *mrt_codebook_destroy(const mr_vector_api *v, mr_codebook *b) { return v->codebook_destroy(b); }

#endif
