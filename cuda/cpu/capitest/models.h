/* models: a small model of random weights. */
#ifndef MILLRACE_CAPITEST_MODELS_H
#define MILLRACE_CAPITEST_MODELS_H

#include "millrace/engine.h"

mr_model_desc tiny_desc(void);
mr_tensor_desc tensor_of(int32_t role, int32_t layer, int32_t type, int64_t in, int64_t out); /* out 0: a vector */
/* Binds every tensor of the description; mixed: one of each format with bits at random, else sensible F32. */
void bind_all(mr_device *device, mr_model *model, const mr_model_desc *desc, int mixed);

#endif
