package native

import (
	"bytes"
	"testing"
	"time"
	"unsafe"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// stagingEngine has one piece of host memory, always the same, and would close while it is in use.
const stagingEngine = `#include "millrace/engine.h"
static char device, broken;
static unsigned char memory[64];
static int given, reluctant;
static int32_t code(const mr_error *e) { (void)e; return MR_RESOURCE_EXHAUSTED; }
static const char *message(const mr_error *e) { (void)e; return "one piece at a time"; }
static int64_t native(const mr_error *e) { (void)e; return 0; }
static void destroy(mr_error *e) { (void)e; }
static mr_error *count(int32_t *n) { *n = 1; return NULL; }
static mr_error *open_(const mr_device_options *o, mr_device **out) { (void)o; *out = (mr_device *)&device; return NULL; }
static mr_error *info(const mr_device *d, mr_device_info *out) { (void)d; (void)out; return NULL; }
static mr_error *close_(mr_device *d) { (void)d; return NULL; }
static mr_error *host_alloc(mr_device *d, uint64_t size, void **out) {
  (void)d;
  if (given || size > sizeof memory) return (mr_error *)&broken;
  given = 1;
  reluctant = size == 13;
  *out = memory;
  return NULL;
}
static mr_error *host_free(mr_device *d, void *p) {
  (void)d;
  if (!given || p != (void *)memory) return (mr_error *)&broken;
  if (reluctant) {
    reluctant = 0;
    return (mr_error *)&broken;
  }
  given = 0;
  return NULL;
}
static const mr_api t = {.struct_size = sizeof(mr_api), .abi_major = MR_ABI_MAJOR, .build = "staging", .error_code = code,
  .error_message = message, .error_native = native, .error_destroy = destroy, .device_count = count, .device_open = open_,
  .device_info = info, .device_close = close_, .host_alloc = host_alloc, .host_free = host_free};
const mr_api *mr_engine_api(uint32_t m, uint32_t *s) { (void)m; (void)s; return &t; }
`

func TestStagedMemoryIsFreedBeforeDeviceCloses(t *testing.T) {
	dev := openStaging(t)
	for _, size := range []int{-1, 0} {
		_, err := dev.Stage(size)
		require.ErrorIs(t, err, engine.ErrInvalid)
	}
	memory, err := dev.Stage(64)
	require.NoError(t, err)
	require.Len(t, memory.Bytes(), 64)
	_, err = dev.Stage(64)
	require.ErrorIs(t, err, engine.ErrOutOfMemory)
	require.ErrorIs(t, dev.Close(), engine.ErrPrecondition)
	memory.Bytes()[63] = 1 // a refused close changes nothing
	require.NoError(t, memory.Free())
	require.Nil(t, memory.Bytes())

	again, err := dev.Stage(64)
	require.NoError(t, err)
	require.ErrorIs(t, memory.Free(), engine.ErrPrecondition, "the address is another's now")
	require.ErrorIs(t, dev.Close(), engine.ErrPrecondition)
	require.NoError(t, again.Free())
	require.NoError(t, dev.Close())
	_, err = dev.Stage(64)
	require.ErrorIs(t, err, engine.ErrPrecondition)
}

// openStaging opens the device of the staging engine.
func openStaging(t *testing.T) *Device {
	t.Helper()
	lib := buildLibrary(t, t.TempDir(), stagingEngine)
	opened, err := Open(Options{Device: "cuda:0", EnginePath: lib, AnyBuild: true}, hclog.NewNullLogger())
	require.NoError(t, err)
	dev, ok := opened.(*Device)
	require.True(t, ok)
	return dev
}

func TestStagedFreeDuringDeviceCloseIsNotLost(t *testing.T) {
	dev := openStaging(t)
	memory, err := dev.Stage(64)
	require.NoError(t, err)
	require.NoError(t, dev.acquire("device")) // a running call delays the close
	closed := make(chan error)
	go func() { closed <- dev.Close() }()
	require.Eventually(t, func() bool { return dev.acquire("device") != nil || dev.releaseOnce() }, time.Minute, time.Millisecond)
	require.NoError(t, memory.Free(), "the close waits, and may still be refused")
	dev.release()
	require.NoError(t, <-closed)
}

// releaseOnce undoes an acquire that succeeded.
func (d *Device) releaseOnce() bool {
	d.release()
	return false
}

func TestFreedPieceDoesNotHideItsSuccessor(t *testing.T) {
	dev := openStaging(t)
	memory, err := dev.Stage(64)
	require.NoError(t, err)
	leaving := &staging{d: dev, p: dev.pieceAt(memory), size: 64} // the engine has freed it, but its Free has not returned
	require.NoError(t, leaving.close("staged memory"))
	dev.staged.mu.Lock()
	dev.staged.all[leaving] = struct{}{}
	dev.staged.mu.Unlock()
	for range 100 { // pieces are searched in any order
		release, err := dev.staged.hold(memory.Bytes())
		require.NoError(t, err)
		release()
	}
	require.NoError(t, memory.Free())
}

// pieceAt returns the address of staged memory.
func (d *Device) pieceAt(memory engine.Staged) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(memory.Bytes()))
}

func TestStagedFreeWaitsForRunningWrite(t *testing.T) {
	dev := openStaging(t)
	memory, err := dev.Stage(64)
	require.NoError(t, err)
	kept := memory.Bytes()
	before := bytes.Clone(kept)
	release, err := dev.staged.hold(kept[10:20])
	require.NoError(t, err)
	freed := make(chan error)
	go func() { freed <- memory.Free() }()
	require.Eventually(t, func() bool {
		again, err := dev.staged.hold(kept)
		if err == nil {
			again()
		}
		return err != nil
	}, time.Minute, time.Millisecond, "no write begins any more")
	require.NotNil(t, memory.Bytes(), "the write still copies from it")
	select {
	case err := <-freed:
		t.Fatalf("freed under a write: %v", err)
	default:
	}
	release()
	require.NoError(t, <-freed)
	require.Nil(t, memory.Bytes())
	require.NotEqual(t, before, kept, "a digest of what is copied from it now differs")
	require.NoError(t, dev.Close())
}

func TestRefusedStagedFreeMayBeRepeated(t *testing.T) {
	dev := openStaging(t)
	memory, err := dev.Stage(13) // this engine frees it at the second attempt
	require.NoError(t, err)
	require.ErrorIs(t, memory.Free(), engine.ErrOutOfMemory)
	require.Len(t, memory.Bytes(), 13)
	require.ErrorIs(t, dev.Close(), engine.ErrPrecondition)
	require.NoError(t, memory.Free())
	require.NoError(t, dev.Close())
}

func TestTheCPUEngineTakesAnyMemory(t *testing.T) {
	dev, err := Open(Options{Device: "cpu", Threads: 1}, hclog.NewNullLogger())
	require.NoError(t, err)
	_, err = dev.(engine.Stager).Stage(64)
	require.ErrorIs(t, err, engine.ErrUnsupported)
	require.NoError(t, dev.Close())
}
