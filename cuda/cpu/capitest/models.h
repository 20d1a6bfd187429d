/* models: a small model of random weights. */
#ifndef MILLRACE_CAPITEST_MODELS_H
#define MILLRACE_CAPITEST_MODELS_H

#include "../cpptest/plain_model.h"

plain_model tiny_model(void);
mr_error *create(mr_device *device, const plain_model *m, mr_model **model);
mr_tensor_desc tensor_of(int32_t role, int32_t layer, int32_t type, int64_t in, int64_t out); /* out 0: a vector */
/* Binds every tensor of the description; mixed: one of each format with bits at random, else sensible F32. */
void bind_all(mr_device *device, mr_model *model, const plain_model *desc, int mixed);

#endif
