/* Errors, structs of other versions, devices and their ledger. */
#include "check.h"

void test_errors(void) {
  mr_error *error = api->device_count(NULL);
  CHECK(error != NULL);
  CHECK(api->error_code(error) == MR_INVALID_ARGUMENT);
  CHECK(strlen(api->error_message(error)) > 0);
  CHECK(api->error_native(error) == 0);
  api->error_destroy(error);

  CHECK(api->error_code(NULL) == MR_OK);
  CHECK(strcmp(api->error_message(NULL), "") == 0);
  CHECK(api->error_native(NULL) == 0);
  api->error_destroy(NULL);
}

static void test_options(const char *path) {
  /* A newer caller: members behind ours are fine while they are zero, and refused otherwise. */
  struct {
    mr_device_options known;
    uint64_t later;
  } newer;
  mr_device_options options;
  mr_device *device = NULL;
  mr_device_info *short_info;
  mr_device_info info;
  size_t known = offsetof(mr_device_info, path);

  memset(&newer, 0, sizeof newer);
  newer.known.struct_size = sizeof newer;
  newer.known.path = path;
  OK(api->device_open(&newer.known, &device));
  OK(api->device_close(device));
  newer.later = 7;
  FAILS(MR_UNIMPLEMENTED, "mr_device_options", api->device_open(&newer.known, &device));

  /* An older caller: what it does not know reads as zero. */
  memset(&options, 0xff, sizeof options);
  options.struct_size = offsetof(mr_device_options, threads);
  options.index = 0;
  OK(api->device_open(&options, &device));
  /* And is given no more than it knows. */
  memset(&info, 0x55, sizeof info);
  short_info = &info;
  short_info->struct_size = known;
  OK(api->device_info(device, short_info));
  CHECK(strcmp(info.kind, gpu ? "cuda" : "cpu") == 0);
  CHECK(info.path[0] == 0x55 && info.errors == 0x5555555555555555u);
  CHECK(info.struct_size == known);
  OK(api->device_close(device));

  memset(&options, 0, sizeof options);
  FAILS(MR_INVALID_ARGUMENT, "struct_size", api->device_open(&options, &device));
  options.struct_size = 1 << 20;
  FAILS(MR_INVALID_ARGUMENT, "struct_size", api->device_open(&options, &device));
  options.struct_size = sizeof options;
  options.index = 1000;
  FAILS(MR_NOT_FOUND, "index", api->device_open(&options, &device));
  options.index = 0;
  options.threads = -1;
  if (!gpu) FAILS(MR_INVALID_ARGUMENT, "threads", api->device_open(&options, &device));
  options.threads = 0;
  options.path = "sse9";
  FAILS(MR_INVALID_ARGUMENT, "sse9", api->device_open(&options, &device));
  FAILS(MR_INVALID_ARGUMENT, "null", api->device_open(NULL, &device));
  FAILS(MR_INVALID_ARGUMENT, "null", api->device_open(&options, NULL));
}

static void test_ledger(const char *path) {
  mr_device_options options;
  mr_device *device = NULL;
  mr_buffer *first = NULL, *second = NULL;
  mr_device_info info;
  const uint64_t limit = 1 << 20;

  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.path = path;
  options.bytes_limit = limit;
  OK(api->device_open(&options, &device));
  CHECK(info_of(device).bytes_total == limit);
  CHECK(info_of(device).bytes_free == limit);

  OK(api->buffer_alloc(device, limit - 100, MR_PURPOSE_KV, &first));
  info = info_of(device);
  CHECK(info.bytes_used[MR_PURPOSE_KV] == limit - 100);
  CHECK(info.bytes_used[MR_PURPOSE_STAGING] == 0);
  CHECK(info.bytes_free == 100);
  CHECK(info.live_buffers == 1);
  FAILS(MR_RESOURCE_EXHAUSTED, "101 bytes", api->buffer_alloc(device, 101, MR_PURPOSE_STAGING, &second));
  FAILS(MR_RESOURCE_EXHAUSTED, "100 of 1048576", api->buffer_alloc(device, 101, MR_PURPOSE_STAGING, &second));
  FAILS(MR_RESOURCE_EXHAUSTED, "bytes", api->buffer_alloc(device, UINT64_MAX, MR_PURPOSE_STAGING, &second));
  OK(api->buffer_alloc(device, 100, MR_PURPOSE_STAGING, &second));
  CHECK(info_of(device).bytes_free == 0);
  FAILS(MR_FAILED_PRECONDITION, "2 buffers", api->device_close(device));
  OK(api->buffer_free(first));
  OK(api->buffer_free(second));
  info = info_of(device);
  CHECK(info.bytes_free == limit && info.live_buffers == 0);
  CHECK(info.bytes_used[MR_PURPOSE_KV] == 0 && info.bytes_used[MR_PURPOSE_STAGING] == 0);

  /* A pool serves the same size again, cleared. */
  {
    uint64_t hits = info.pool_hits, word = 1;
    OK(api->buffer_alloc(device, 1000, MR_PURPOSE_STAGING, &first));
    OK(api->buffer_fill(first, 0, 0xee, 1000));
    OK(api->buffer_free(first));
    CHECK(info_of(device).bytes_pooled >= 1000);
    OK(api->buffer_alloc(device, 1000, MR_PURPOSE_STAGING, &first));
    CHECK(info_of(device).pool_hits == hits + 1);
    OK(api->buffer_read(first, 992, &word, 8));
    CHECK(word == 0);
    OK(api->buffer_free(first));
  }
  OK(api->device_close(device));
  FAILS(MR_FAILED_PRECONDITION, "given back", api->device_close(device));
  FAILS(MR_FAILED_PRECONDITION, "given back", api->device_info(device, &info));
}

/* What it takes to measure reads fits a small device, whatever caches there are. */
static void test_small_measure(const char *path) {
  mr_device_options options;
  mr_device *device = NULL;
  double rate = 0;

  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.path = path;
  options.threads = 1;
  options.bytes_limit = (uint64_t)300 << 20;
  OK(api->device_open(&options, &device));
  OK(api->device_measure(device, MR_MEASURE_READ_BYTES, 2000000, &rate));
  CHECK(rate > 1e6);
  OK(api->device_close(device));
}

void test_devices(const char *path) {
  int32_t count = 0;
  mr_device *device;
  mr_device_info info;
  double rate = 0;
  int32_t what;

  OK(api->device_count(&count));
  CHECK(gpu ? count >= 1 : count == 1);
  device = open_device(path, 0);
  info = info_of(device);
  CHECK(strcmp(info.kind, gpu ? "cuda" : "cpu") == 0);
  CHECK(gpu ? strncmp(info.path, "sm_", 3) == 0 : strcmp(info.path, path) == 0);
  CHECK(gpu == (strlen(info.uuid) > 0) && gpu == (info.compute_major > 0));
  CHECK(strlen(info.name) > 0 && strlen(info.numerics) > 0);
  CHECK(info.sm_count >= 1);
  CHECK(info.bytes_total > 0);
  CHECK(gpu || (info.temperature_c == INT32_MIN && info.power_mw == INT32_MIN));
  for (what = MR_MEASURE_READ_BYTES; what <= MR_MEASURE_BF16_OPS; ++what) {
    OK(api->device_measure(device, what, 2000000, &rate));
    CHECK(rate > 1e6);
  }
  FAILS(MR_INVALID_ARGUMENT, "measure", api->device_measure(device, 99, 2000000, &rate));
  FAILS(MR_INVALID_ARGUMENT, "duration", api->device_measure(device, 0, 0, &rate));
  CHECK(info_of(device).bytes_free == info_of(device).bytes_total);
  OK(api->device_close(device));
  OK(api->device_close(NULL));

  device = open_device(path, 3); /* more threads than processors are allowed */
  CHECK(gpu || info_of(device).sm_count == 3);
  OK(api->device_close(device));
  test_options(path);
  test_ledger(path);
  test_small_measure(path);
}
