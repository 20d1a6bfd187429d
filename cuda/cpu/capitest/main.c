/* The first client of the engine: plain C99 that drives every function of the table.
 *
 * capitest PATH         runs every test on the instruction-set path PATH; the last line is "ok"
 * capitest gpu          runs every test on the first GPU
 * capitest PATH hashes  prints "LENGTH DIGEST" lines of the bytes 0 .. 250, 0 .. 250, ...
 * Ends with 3 when this machine cannot run the path. */
#include "check.h"

const mr_api *api;
int gpu;

void expect_code(const char *file, int line, const char *call, mr_error *error, int32_t code, const char *text) {
  const int32_t got = api->error_code(error);
  const char *message = api->error_message(error);
  if (got != code || (text != NULL && strstr(message, text) == NULL)) {
    fprintf(stderr, "%s:%d: %s\n  gives code %d, native %lld: %s\n  want code %d: %s\n", file, line, call, (int)got,
            (long long)api->error_native(error), message, (int)code, text == NULL ? "" : text);
    exit(1);
  }
  api->error_destroy(error);
}

uint32_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33) ^ (uint32_t)(*state >> 60);
}

float next_float(uint64_t *state) { return (float)(next_random(state) % 65536) / 32768.0f - 1.0f; }

mr_buffer *upload(mr_device *device, const void *data, uint64_t size) {
  mr_buffer *buffer = NULL;
  OK(api->buffer_alloc(device, size, MR_PURPOSE_STAGING, &buffer));
  OK(api->buffer_write(buffer, 0, data, size));
  return buffer;
}

mr_device *open_device(const char *path, int32_t threads) {
  mr_device_options options;
  mr_device *device = NULL;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.threads = threads;
  options.path = path;
  OK(api->device_open(&options, &device));
  return device;
}

mr_device_info info_of(const mr_device *device) {
  mr_device_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  OK(api->device_info(device, &info));
  return info;
}

static int runnable(const char *path) {
  mr_device_options options;
  mr_device *device = NULL;
  mr_error *error;
  int32_t code;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.path = path;
  error = api->device_open(&options, &device);
  code = api->error_code(error);
  api->error_destroy(error);
  OK(api->device_close(device));
  return code != MR_UNIMPLEMENTED && !(gpu && (code == MR_NOT_FOUND || code == MR_UNAVAILABLE));
}

int main(int argc, char **argv) {
  uint32_t supported = 0;
  const char *path = argc > 1 ? argv[1] : NULL;
  if (path == NULL) return 2;
  gpu = strcmp(path, "gpu") == 0;
  if (gpu) path = NULL;

  CHECK(mr_engine_api(MR_ABI_MAJOR + 1, &supported) == NULL);
  CHECK(supported == MR_ABI_MAJOR);
  CHECK(mr_engine_api(0, NULL) == NULL);
  api = mr_engine_api(MR_ABI_MAJOR, &supported);
  CHECK(api != NULL && supported == MR_ABI_MAJOR);
  CHECK(api == mr_engine_api(MR_ABI_MAJOR, NULL));
  CHECK(api->struct_size == sizeof(mr_api));
  CHECK(api->abi_major == MR_ABI_MAJOR && api->abi_minor == MR_ABI_MINOR);
  CHECK(api->vectors == NULL || api->vectors->struct_size >= sizeof(mr_vector_api));
  CHECK(api->build != NULL && strstr(api->build, gpu ? "millrace-cuda" : "millrace-cpu") != NULL);

  if (!runnable(path)) return 3;
  if (argc > 2) {
    CHECK(strcmp(argv[2], "hashes") == 0);
    print_hashes(path);
    return 0;
  }
  test_errors();
  test_devices(path);
  test_buffers(path);
  test_faults(path);
  test_ops(path);
  test_models(path);
  test_runners(path);
  test_vectors(path);
  puts("ok");
  return 0;
}
