/* check: what the C client of the engine asserts with. The first failed check ends the program. */
#ifndef MILLRACE_CAPITEST_CHECK_H
#define MILLRACE_CAPITEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "millrace/vectors.h"

extern const mr_api *api;
extern int gpu; /* the engine is a GPU's: no paths, no threads, activations of half precision */

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition);     \
      exit(1);                                                                     \
    }                                                                              \
  } while (0)

/* The call succeeds. */
#define OK(call) expect_code(__FILE__, __LINE__, #call, (call), MR_OK, NULL)
/* The call fails with the code, and its message contains the text. */
#define FAILS(code, text, call) expect_code(__FILE__, __LINE__, #call, (call), (code), (text))

void expect_code(const char *file, int line, const char *call, mr_error *error, int32_t code, const char *text);

/* Numbers that are the same on every machine. */
uint32_t next_random(uint64_t *state);
float next_float(uint64_t *state); /* in [-1, 1) */

/* A buffer of the bytes at data. */
mr_buffer *upload(mr_device *device, const void *data, uint64_t size);
mr_device *open_device(const char *path, int32_t threads);
mr_device_info info_of(const mr_device *device);

/* The parts of the test. */
void test_errors(void);
void test_devices(const char *path);
void test_buffers(const char *path);
void test_faults(const char *path);
void test_ops(const char *path);
void test_models(const char *path);
void test_runners(const char *path);
void test_vectors(const char *path);
void print_hashes(const char *path);

#endif
