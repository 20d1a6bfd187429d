package native

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// stagingEngine gives one piece of host memory at a time, always the same, and would close over it.
const stagingEngine = `#include "millrace/engine.h"
static char device, broken;
static unsigned char memory[64];
static int given;
static int32_t code(const mr_error *e) { (void)e; return MR_RESOURCE_EXHAUSTED; }
static const char *message(const mr_error *e) { (void)e; return "one piece at a time"; }
static int64_t native(const mr_error *e) { (void)e; return 0; }
static void destroy(mr_error *e) { (void)e; }
static mr_error *count(int32_t *n) { *n = 1; return NULL; }
static mr_error *open_(const mr_device_options *o, mr_device **out) { (void)o; *out = (mr_device *)&device; return NULL; }
static mr_error *close_(mr_device *d) { (void)d; return NULL; }
static mr_error *host_alloc(mr_device *d, uint64_t size, void **out) {
  (void)d;
  if (given || size > sizeof memory) return (mr_error *)&broken;
  given = 1;
  *out = memory;
  return NULL;
}
static mr_error *host_free(mr_device *d, void *p) {
  (void)d;
  if (!given || p != (void *)memory) return (mr_error *)&broken;
  given = 0;
  return NULL;
}
static const mr_api t = {.struct_size = sizeof(mr_api), .abi_major = MR_ABI_MAJOR, .build = "staging", .error_code = code,
  .error_message = message, .error_native = native, .error_destroy = destroy, .device_count = count, .device_open = open_,
  .device_close = close_, .host_alloc = host_alloc, .host_free = host_free};
const mr_api *mr_engine_api(uint32_t m, uint32_t *s) { (void)m; (void)s; return &t; }
`

func TestStagedMemoryIsFreedOnceAndBeforeItsDeviceCloses(t *testing.T) {
	lib := buildLibrary(t, t.TempDir(), stagingEngine)
	opened, err := Open(Options{Device: "cuda:0", EnginePath: lib}, hclog.NewNullLogger())
	require.NoError(t, err)
	dev, ok := opened.(*Device)
	require.True(t, ok)
	for _, size := range []int{-1, 0} {
		_, _, err := dev.Stage(size)
		require.ErrorIs(t, err, engine.ErrInvalid)
	}
	memory, free, err := dev.Stage(64)
	require.NoError(t, err)
	require.Len(t, memory, 64)
	_, _, err = dev.Stage(64)
	require.ErrorIs(t, err, engine.ErrOutOfMemory)
	require.ErrorIs(t, dev.Close(), engine.ErrPrecondition)
	memory[63] = 1 // a refused close changes nothing
	require.NoError(t, free())

	_, again, err := dev.Stage(64)
	require.NoError(t, err)
	require.ErrorIs(t, free(), engine.ErrPrecondition, "the address is another's now")
	require.ErrorIs(t, dev.Close(), engine.ErrPrecondition)
	require.NoError(t, again())
	require.NoError(t, dev.Close())
	_, _, err = dev.Stage(64)
	require.ErrorIs(t, err, engine.ErrPrecondition)
}

func TestTheCPUEngineTakesAnyMemory(t *testing.T) {
	dev, err := Open(Options{Device: "cpu", Threads: 1}, hclog.NewNullLogger())
	require.NoError(t, err)
	_, _, err = dev.(engine.Stager).Stage(64)
	require.ErrorIs(t, err, engine.ErrUnsupported)
	require.NoError(t, dev.Close())
}
