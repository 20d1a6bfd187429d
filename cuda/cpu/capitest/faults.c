/* Memory that the system refuses to give or to take back: each refusal ends one call, and the numbers agree afterwards. */
#include "check.h"

static void expect_books(mr_device *device, const mr_device_info *want) {
  const mr_device_info info = info_of(device);
  int i;
  for (i = 0; i < MR_PURPOSE_COUNT; ++i) CHECK(info.bytes_used[i] == want->bytes_used[i]);
  CHECK(info.bytes_free == want->bytes_free);
  CHECK(info.live_buffers == want->live_buffers);
}

static void test_requests(mr_device *device) {
  FAILS(MR_INVALID_ARGUMENT, "fault", api->device_fault(device, MR_FAULT_FLIP_BIT, 0, 1));
  FAILS(MR_INVALID_ARGUMENT, "index", api->device_fault(device, MR_FAULT_REFUSE_FREE, -1, 1));
  FAILS(MR_INVALID_ARGUMENT, "null", api->device_fault(NULL, MR_FAULT_REFUSE_FREE, 0, 1));
  OK(api->device_fault(device, MR_FAULT_REFUSE_ALLOC, 0, 5));
  OK(api->device_fault(device, MR_FAULT_REFUSE_ALLOC, 0, 0)); /* replaced */
}

static void test_refused_allocations(mr_device *device) {
  const mr_device_info before = info_of(device);
  mr_buffer *buffer = NULL;
  uint64_t size;
  for (size = 1; size <= 16u << 20; size *= 16) {
    OK(api->device_fault(device, MR_FAULT_REFUSE_ALLOC, 0, 1));
    FAILS(MR_RESOURCE_EXHAUSTED, "refuses", api->buffer_alloc(device, size, MR_PURPOSE_KV, &buffer));
    expect_books(device, &before);
    OK(api->buffer_alloc(device, size, MR_PURPOSE_KV, &buffer));
    OK(api->buffer_free(buffer));
    expect_books(device, &before);
  }
}

static void test_refused_frees(mr_device *device) {
  const mr_device_info before = info_of(device);
  uint64_t size;
  for (size = 1; size <= 16u << 20; size *= 16) {
    mr_buffer *buffer = NULL, *other = NULL;
    mr_device_info with;
    uint8_t byte = 9;
    int round;
    OK(api->buffer_alloc(device, size, MR_PURPOSE_WEIGHTS, &buffer));
    OK(api->buffer_write(buffer, size - 1, &byte, 1));
    with = info_of(device);
    for (round = 1; round <= 3; ++round) {
      OK(api->device_fault(device, MR_FAULT_REFUSE_FREE, 0, 1));
      FAILS(MR_INTERNAL, "refuses", api->buffer_free(buffer));
      expect_books(device, &with);
      CHECK(info_of(device).failed_frees == with.failed_frees + (uint64_t)round);
      byte = 0;
      OK(api->buffer_read(buffer, size - 1, &byte, 1)); /* the handle lives */
      CHECK(byte == 9);
    }
    FAILS(MR_FAILED_PRECONDITION, "buffers", api->device_close(device));
    OK(api->buffer_alloc(device, 1, MR_PURPOSE_STAGING, &other)); /* and its place is not another's */
    OK(api->buffer_free(other));
    OK(api->buffer_free(buffer));
    FAILS(MR_FAILED_PRECONDITION, "given back", api->buffer_free(buffer));
    expect_books(device, &before);
  }
}

/* Blocks of the pool that are refused when it is given up are out of use, counted, and offered again. */
static void test_refused_pool(const char *path) {
  mr_device_options options;
  mr_device *device = NULL;
  mr_buffer *buffer = NULL;
  mr_device_info info;
  const uint64_t limit = 64u << 20, small = 4u << 20;

  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.path = path;
  options.bytes_limit = limit;
  OK(api->device_open(&options, &device));
  OK(api->buffer_alloc(device, small, MR_PURPOSE_STAGING, &buffer));
  OK(api->buffer_free(buffer));
  CHECK(info_of(device).bytes_pooled == small);
  OK(api->device_fault(device, MR_FAULT_REFUSE_FREE, 0, 1));
  FAILS(MR_RESOURCE_EXHAUSTED, "bytes", api->buffer_alloc(device, limit, MR_PURPOSE_KV, &buffer));
  info = info_of(device);
  CHECK(info.bytes_pooled == small && info.bytes_free == limit - small && info.failed_frees == 1);
  OK(api->buffer_alloc(device, limit, MR_PURPOSE_KV, &buffer));
  CHECK(info_of(device).bytes_pooled == 0);
  OK(api->buffer_free(buffer));
  OK(api->device_close(device));
}

void test_faults(const char *path) {
  mr_device *device = open_device(path, 1);
  mr_device *other = open_device(path, 1);
  mr_buffer *here = NULL, *there = NULL;
  test_requests(device);
  test_refused_allocations(device);
  test_refused_frees(device);
  /* Two devices are told apart when a copy from one to the other is refused. */
  OK(api->buffer_alloc(device, 16, MR_PURPOSE_STAGING, &here));
  OK(api->buffer_alloc(other, 16, MR_PURPOSE_STAGING, &there));
  FAILS(MR_INVALID_ARGUMENT, "dst lies on device", api->buffer_copy(here, 0, there, 0, 16));
  OK(api->buffer_free(here));
  OK(api->buffer_free(there));
  OK(api->device_close(other));
  OK(api->device_close(device));
  test_refused_pool(path);
}
