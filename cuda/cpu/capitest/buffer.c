/* Buffers: contents, bounds, lifetime and several threads at once. */
#include <pthread.h>

#include "check.h"

static void test_contents(mr_device *device) {
  enum { size = 5000 };
  static uint8_t model[size], got[size];
  mr_buffer *buffer = NULL, *other = NULL;
  int i;

  OK(api->buffer_alloc(device, size, MR_PURPOSE_STAGING, &buffer));
  OK(api->buffer_read(buffer, 0, got, size));
  CHECK(memcmp(got, model, size) == 0);
  for (i = 0; i < 1000; ++i) model[3000 + i] = (uint8_t)i;
  OK(api->buffer_write(buffer, 3000, model + 3000, 1000));
  OK(api->buffer_fill(buffer, 10, 0xab, 20));
  memset(model + 10, 0xab, 20);
  OK(api->buffer_copy(buffer, 3100, buffer, 3000, 900)); /* the ranges overlap */
  memmove(model + 3100, model + 3000, 900);
  OK(api->buffer_read(buffer, 0, got, size));
  CHECK(memcmp(got, model, size) == 0);

  OK(api->buffer_alloc(device, size, MR_PURPOSE_WORKSPACE, &other));
  OK(api->buffer_copy(other, 1, buffer, 0, size - 1));
  OK(api->buffer_read(other, 1, got, size - 1));
  CHECK(memcmp(got, model, size - 1) == 0);
  OK(api->buffer_read(other, 0, got, 1));
  CHECK(got[0] == 0);
  OK(api->buffer_free(buffer));
  OK(api->buffer_free(other));
}

static void test_misuse(mr_device *device) {
  mr_buffer *buffer = NULL, *other = NULL;
  mr_digest digest;
  uint8_t bytes[16] = {0};

  OK(api->buffer_alloc(device, 16, MR_PURPOSE_STAGING, &buffer));
  OK(api->buffer_write(buffer, 16, NULL, 0));
  OK(api->buffer_read(buffer, 0, NULL, 0));
  FAILS(MR_OUT_OF_RANGE, "offset 1", api->buffer_write(buffer, 1, bytes, 16));
  FAILS(MR_OUT_OF_RANGE, "17", api->buffer_read(buffer, 17, bytes, 0));
  FAILS(MR_OUT_OF_RANGE, "bytes", api->buffer_read(buffer, UINT64_MAX, bytes, 2));
  FAILS(MR_OUT_OF_RANGE, "bytes", api->buffer_fill(buffer, 8, 0, UINT64_MAX - 4));
  FAILS(MR_OUT_OF_RANGE, "bytes", api->buffer_copy(buffer, 8, buffer, 0, 9));
  FAILS(MR_OUT_OF_RANGE, "bytes", api->buffer_copy(buffer, 0, buffer, 8, 9));
  FAILS(MR_OUT_OF_RANGE, "bytes", api->buffer_digest(buffer, 1, 16, &digest));
  FAILS(MR_INVALID_ARGUMENT, "null", api->buffer_write(buffer, 0, NULL, 1));
  FAILS(MR_INVALID_ARGUMENT, "null", api->buffer_read(NULL, 0, bytes, 1));
  FAILS(MR_INVALID_ARGUMENT, "null", api->buffer_digest(buffer, 0, 16, NULL));
  FAILS(MR_INVALID_ARGUMENT, "size", api->buffer_alloc(device, 0, MR_PURPOSE_STAGING, &other));
  FAILS(MR_INVALID_ARGUMENT, "purpose", api->buffer_alloc(device, 1, MR_PURPOSE_COUNT, &other));
  FAILS(MR_INVALID_ARGUMENT, "null", api->buffer_alloc(NULL, 1, 0, &other));
  FAILS(MR_INVALID_ARGUMENT, "null", api->buffer_alloc(device, 1, 0, NULL));
  /* A handle of another kind, and one of nothing. */
  FAILS(MR_INVALID_ARGUMENT, "no buffer", api->buffer_read((const mr_buffer *)(const void *)device, 0, bytes, 1));
  FAILS(MR_INVALID_ARGUMENT, "no buffer", api->buffer_read((const mr_buffer *)(const void *)bytes, 0, bytes, 1));
  FAILS(MR_INVALID_ARGUMENT, "no model", api->model_seal((mr_model *)(void *)buffer));

  OK(api->buffer_free(buffer));
  FAILS(MR_FAILED_PRECONDITION, "given back", api->buffer_free(buffer));
  FAILS(MR_FAILED_PRECONDITION, "given back", api->buffer_read(buffer, 0, bytes, 1));
  /* The place is taken again: the old handle stays stale. */
  OK(api->buffer_alloc(device, 16, MR_PURPOSE_STAGING, &other));
  FAILS(MR_FAILED_PRECONDITION, "given back", api->buffer_write(buffer, 0, bytes, 1));
  OK(api->buffer_free(other));
  OK(api->buffer_free(NULL));
}

static void *hammer(void *argument) {
  mr_device *device = argument;
  uint64_t state = (uint64_t)(size_t)&state;
  int round;
  for (round = 0; round < 300; ++round) {
    const uint64_t size = 8 + next_random(&state) % (round % 50 == 0 ? 64u << 20 : 1u << 16);
    uint64_t mark = state, got = 0;
    mr_buffer *buffer = NULL;
    OK(api->buffer_alloc(device, size, round % MR_PURPOSE_COUNT, &buffer));
    OK(api->buffer_read(buffer, size - 8, &got, 8));
    CHECK(got == 0);
    OK(api->buffer_write(buffer, size - 8, &mark, 8));
    OK(api->buffer_read(buffer, size - 8, &got, 8));
    CHECK(got == mark);
    OK(api->buffer_free(buffer));
  }
  return NULL;
}

/* What host_alloc gives is as good a source as any, and can be given back once. */
static void test_host_memory(mr_device *device) {
  enum { size = 3 << 20 };
  void *memory = NULL;
  uint8_t bytes[3];
  mr_buffer *buffer = NULL;
  OK(api->host_free(device, NULL));
  FAILS(MR_INVALID_ARGUMENT, "host memory", api->host_free(device, bytes));
  if (!gpu) {
    FAILS(MR_UNIMPLEMENTED, "host memory", api->host_alloc(device, size, &memory));
    return;
  }
  FAILS(MR_INVALID_ARGUMENT, "0", api->host_alloc(device, 0, &memory));
  FAILS(MR_INVALID_ARGUMENT, "out", api->host_alloc(device, size, NULL));
  OK(api->host_alloc(device, size, &memory));
  memset(memory, 7, size);
  ((uint8_t *)memory)[size - 1] = 9;
  OK(api->buffer_alloc(device, size, MR_PURPOSE_STAGING, &buffer));
  OK(api->buffer_write(buffer, 0, memory, size));
  OK(api->buffer_write(buffer, 5, (uint8_t *)memory + size - 1, 1));
  OK(api->buffer_read(buffer, 4, bytes, 3));
  CHECK(bytes[0] == 7 && bytes[1] == 9 && bytes[2] == 7);
  OK(api->buffer_read(buffer, size - 1, bytes, 1));
  CHECK(bytes[0] == 9);
  OK(api->buffer_free(buffer));
  OK(api->host_free(device, memory));
  FAILS(MR_INVALID_ARGUMENT, "host memory", api->host_free(device, memory));
}

void test_buffers(const char *path) {
  mr_device *device = open_device(path, 2);
  pthread_t threads[4];
  mr_device_info info;
  int i;

  test_contents(device);
  test_misuse(device);
  test_host_memory(device);
  for (i = 0; i < 4; ++i) CHECK(pthread_create(&threads[i], NULL, hammer, device) == 0);
  for (i = 0; i < 4; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  info = info_of(device);
  CHECK(info.live_buffers == 0);
  for (i = 0; i < MR_PURPOSE_COUNT; ++i) CHECK(info.bytes_used[i] == 0);
  CHECK(info.pool_hits > 0);
  OK(api->device_close(device));
}

void print_hashes(const char *path) {
  static const uint64_t lengths[] = {1,     2,     63,    64,    65,     127,    1023,   1024,    1025,    2047,    2048,   2049,
                                     3072,  4097,  5121,  8192,  8193,   16384,  16385,  31744,   65535,   65536,   65537,  102400,
                                     131072, 131073, 200000, 262145, 1048576, 1048577, 2097153, 5000001, 8388608};
  const size_t most = 8388608;
  mr_device *device = open_device(path, 2);
  uint8_t *bytes = malloc(most);
  size_t i;
  CHECK(bytes != NULL);
  for (i = 0; i < most; ++i) bytes[i] = (uint8_t)(i % 251);
  for (i = 0; i < sizeof lengths / sizeof lengths[0]; ++i) {
    mr_buffer *buffer = upload(device, bytes, lengths[i]);
    mr_digest digest;
    int byte;
    if (i == 0) {
      OK(api->buffer_digest(buffer, 0, 0, &digest));
      printf("0 ");
      for (byte = 0; byte < 32; ++byte) printf("%02x", digest.bytes[byte]);
      printf("\n");
    }
    OK(api->buffer_digest(buffer, 0, lengths[i], &digest));
    printf("%llu ", (unsigned long long)lengths[i]);
    for (byte = 0; byte < 32; ++byte) printf("%02x", digest.bytes[byte]);
    printf("\n");
    OK(api->buffer_free(buffer));
  }
  free(bytes);
  OK(api->device_close(device));
}
