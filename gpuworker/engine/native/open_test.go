package native

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/cuda"
	"github.com/millrace/millrace/gpuworker/engine"
)

// buildLibrary compiles C source against the engine header into dir/libmillrace_cuda.so.
func buildLibrary(t *testing.T, dir, source string) string {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		cc, err = exec.LookPath("cc")
	}
	require.NoError(t, err, "a C compiler is needed, as it is to build this package")
	src, lib := filepath.Join(dir, "engine.c"), filepath.Join(dir, libraryName)
	require.NoError(t, os.WriteFile(src, []byte(source), 0o600))
	out, err := exec.Command(cc, "-std=c99", "-shared", "-fPIC", "-I../../../cuda/include", "-o", lib, src).CombinedOutput()
	require.NoError(t, err, string(out))
	return lib
}

func TestDeviceNamesParse(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		want choice
	}{
		"nothing means auto":           {"", choice{auto: true, any: true}},
		"auto":                         {"auto", choice{auto: true, any: true}},
		"the cpu":                      {"cpu", choice{}},
		"the first usable gpu":         {"gpu", choice{gpu: true, any: true}},
		"a gpu by number":              {"cuda:3", choice{gpu: true, index: 3}},
		"cuda alone means the same":    {"cuda", choice{gpu: true, any: true}},
		"the largest number":           {"cuda:32767", choice{gpu: true, index: 32767}},
		"a number with leading zeroes": {"cuda:01", choice{gpu: true, index: 1}},
		"two that hold models":         {"cuda:0,1", choice{gpu: true, others: []int{1}}},
		"four, in another order":       {"cuda:3,0,2,1", choice{gpu: true, index: 3, others: []int{0, 2, 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseDevice(tc.in)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
	_, err := Open(Options{Device: "cuda:0,1,00"}, hclog.NewNullLogger())
	require.ErrorIs(t, err, engine.ErrInvalid)
	require.ErrorContains(t, err, "GPU 0 is named twice")
	for _, in := range []string{"CPU", "cuda:", "cuda:-1", "cuda:x", "cuda:99999999999", "cuda:0,", "cuda:,1", "cuda:0,,1", "cuda:0,x", "sim", "tpu:0", " cpu"} {
		_, err := Open(Options{Device: in}, hclog.NewNullLogger())
		require.ErrorIs(t, err, engine.ErrInvalid, in)
		require.ErrorContains(t, err, "want auto, cpu, gpu, cuda, cuda:N or cuda:N,M")
	}
}

func TestMissingGPUErrorNamesSearchedPlaces(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(Options{Device: "cuda:0", EnginePath: dir + ":" + filepath.Join(dir, "other")}, hclog.NewNullLogger())
	require.ErrorIs(t, err, engine.ErrNoDevice)
	require.ErrorContains(t, err, filepath.Join(dir, libraryName))
	require.ErrorContains(t, err, filepath.Join(dir, "other", libraryName))
	require.ErrorContains(t, err, "lib/"+libraryName)
}

func TestPlacesComeInTheirOrder(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "my-engine.so")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.Equal(t, []string{
		file, filepath.Join(dir, libraryName), "/opt/m/bin/" + libraryName, "/opt/m/lib/" + libraryName,
		"/opt/m/cuda/" + libraryName,
	}, places(file+"::"+dir, "/opt/m/bin/millrace-worker"))
}

func TestUnusableLibraryIsRefusedWithReason(t *testing.T) {
	for name, tc := range map[string]struct{ source, want string }{
		"of another abi version": {
			"#include \"millrace/engine.h\"\nconst mr_api *mr_engine_api(uint32_t major, uint32_t *supported) {\n" +
				"  if (supported) *supported = 1;\n  return major == 1 ? (const mr_api *)1 : NULL;\n}\n",
			"speaks abi version 1 and this program version 2",
		},
		"that lies about its version": {
			"#include \"millrace/engine.h\"\nstatic const mr_api t = {sizeof(mr_api), 7, 0, \"liar\"};\n" +
				"const mr_api *mr_engine_api(uint32_t m, uint32_t *s) { (void)m; (void)s; return &t; }\n",
			"speaks abi version 7 and this program version 2",
		},
		"with a short table": {
			"#include \"millrace/engine.h\"\nstatic const mr_api t = {64, MR_ABI_MAJOR, 0, \"short\"};\n" +
				"const mr_api *mr_engine_api(uint32_t m, uint32_t *s) { (void)m; (void)s; return &t; }\n",
			"it has 64), install the engine of this release",
		},
		"without the entry point": {"int something_else;\n", "has no mr_engine_api"},
		"without a device": {
			"#include \"millrace/engine.h\"\n" +
				"static mr_error *count(int32_t *n) { *n = 0; return NULL; }\n" +
				"static const mr_api t = {.struct_size = sizeof(mr_api), .abi_major = MR_ABI_MAJOR, .build = \"empty\", .device_count = count};\n" +
				"const mr_api *mr_engine_api(uint32_t m, uint32_t *s) { (void)m; (void)s; return &t; }\n",
			"the driver shows 0 GPUs",
		},
		"without a driver": {
			"#include \"millrace/engine.h\"\nstatic char broken;\n" +
				"static int32_t code(const mr_error *e) { (void)e; return MR_UNAVAILABLE; }\n" +
				"static const char *message(const mr_error *e) { (void)e; return \"no CUDA driver\"; }\n" +
				"static int64_t number(const mr_error *e) { (void)e; return 35; }\nstatic void destroy(mr_error *e) { (void)e; }\n" +
				"static mr_error *count(int32_t *n) { (void)n; return (mr_error *)&broken; }\n" +
				"static const mr_api t = {.struct_size = sizeof(mr_api), .abi_major = MR_ABI_MAJOR, .build = \"driverless\", " +
				".error_code = code, .error_message = message, .error_native = number, .error_destroy = destroy, .device_count = count};\n" +
				"const mr_api *mr_engine_api(uint32_t m, uint32_t *s) { (void)m; (void)s; return &t; }\n",
			"no CUDA driver",
		},
	} {
		t.Run("a library "+name, func(t *testing.T) {
			lib := buildLibrary(t, t.TempDir(), tc.source)
			_, err := Open(Options{Device: "cuda:0", EnginePath: lib, AnyBuild: true}, hclog.NewNullLogger())
			require.ErrorIs(t, err, engine.ErrNoDevice)
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, lib)
			require.NotContains(t, err.Error(), "\n", "one line")
		})
	}
}

func TestAFileThatIsNoLibraryIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), libraryName)
	require.NoError(t, os.WriteFile(file, []byte("not a library"), 0o600))
	_, err := Open(Options{Device: "gpu", EnginePath: file}, hclog.NewNullLogger())
	require.ErrorIs(t, err, engine.ErrNoDevice)
	require.ErrorContains(t, err, "cannot be opened")
}

func TestAnErrorOfTheEngineKeepsCodeNumberAndWords(t *testing.T) {
	lib := buildLibrary(t, t.TempDir(), `#include "millrace/engine.h"
static char broken;
static int32_t code(const mr_error *e) { (void)e; return MR_RESOURCE_EXHAUSTED; }
static const char *message(const mr_error *e) { (void)e; return "asked for 9 of 5 bytes"; }
static int64_t native(const mr_error *e) { (void)e; return 2; }
static void destroy(mr_error *e) { (void)e; }
static mr_error *count(int32_t *n) { *n = 1; return NULL; }
static mr_error *open_(const mr_device_options *o, mr_device **out) { (void)o; (void)out; return (mr_error *)&broken; }
static const mr_api t = {.struct_size = sizeof(mr_api), .abi_major = MR_ABI_MAJOR, .build = "broken", .error_code = code,
  .error_message = message, .error_native = native, .error_destroy = destroy, .device_count = count, .device_open = open_};
const mr_api *mr_engine_api(uint32_t m, uint32_t *s) { (void)m; (void)s; return &t; }
`)
	_, err := Open(Options{Device: "cuda:0", EnginePath: lib, AnyBuild: true}, hclog.NewNullLogger())
	require.ErrorIs(t, err, engine.ErrOutOfMemory)
	var said *Error
	require.ErrorAs(t, err, &said)
	require.Equal(t, Error{Code: 8, Native: 2, Message: "asked for 9 of 5 bytes"}, *said)
}

func TestEveryCodeBecomesASentinel(t *testing.T) {
	for code := int32(1); code <= 20; code++ {
		err := &Error{Code: code, Message: "m"}
		require.Error(t, err.Unwrap(), code)
		require.Contains(t, err.Error(), "m")
	}
	require.ErrorIs(t, &Error{Code: 4}, engine.ErrTimeout)
	require.ErrorIs(t, &Error{Code: 13}, engine.ErrDevice)
}

func TestAutoSaysInOneLineWhatItChoseAndWhy(t *testing.T) {
	var log bytes.Buffer
	dev, err := Open(Options{Device: "auto", Threads: 1}, hclog.New(&hclog.LoggerOptions{Output: &log}))
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")), log.String())
	require.Contains(t, log.String(), "device chosen")
	require.Contains(t, log.String(), "reason=")
}

// gpuEngine has three GPUs, of which the second and the third are usable. Its build text ends in
// the value of SOURCES.
const gpuEngine = `#include <stdio.h>
#include <string.h>
#include "millrace/engine.h"
static char devices[3], unusable;
static int32_t code(const mr_error *e) { (void)e; return MR_UNIMPLEMENTED; }
static const char *message(const mr_error *e) { (void)e; return "GPU 0, NVIDIA B200: machine code for 8.0 9.0a only"; }
static int64_t native(const mr_error *e) { (void)e; return 209; }
static void destroy(mr_error *e) { (void)e; }
static mr_error *count(int32_t *n) { *n = 3; return NULL; }
static mr_error *open_(const mr_device_options *o, mr_device **out) {
  if (o->index == 0) return (mr_error *)&unusable;
  *out = (mr_device *)&devices[o->index];
  return NULL;
}
static mr_error *info(const mr_device *d, mr_device_info *out) {
  snprintf(out->kind, sizeof out->kind, "cuda");
  snprintf(out->name, sizeof out->name, "GPU number %d", (int)((const char *)d - devices));
  out->compute_major = 9;
  out->bytes_total = 4096;
  out->physical_total = 8192;
  return NULL;
}
static mr_error *close_(mr_device *d) { (void)d; return NULL; }
static const mr_api t = {.struct_size = sizeof(mr_api), .abi_major = MR_ABI_MAJOR, .build = "gpus; sources SOURCES",
  .error_code = code, .error_message = message, .error_native = native, .error_destroy = destroy, .device_count = count,
  .device_open = open_, .device_info = info, .device_close = close_};
const mr_api *mr_engine_api(uint32_t m, uint32_t *s) { (void)m; (void)s; return &t; }
`

func TestUnusableGPUIsSkippedAndLogged(t *testing.T) {
	lib := buildLibrary(t, t.TempDir(), strings.Replace(gpuEngine, "SOURCES", cuda.Sources(), 1))
	for device, want := range map[string]string{"auto": "GPU number 1", "gpu": "GPU number 1", "cuda:1": "GPU number 1", "cuda:2": "GPU number 2"} {
		t.Run(device, func(t *testing.T) {
			var log bytes.Buffer
			dev, err := Open(Options{Device: device, EnginePath: lib}, hclog.New(&hclog.LoggerOptions{Output: &log}))
			require.NoError(t, err)
			defer func() { require.NoError(t, dev.Close()) }()
			info, err := dev.Info()
			require.NoError(t, err)
			require.Equal(t, want, info.Name)
			require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")), log.String())
			for _, said := range []string{want, "compute_capability=9.0", "memory=4096", "memory_of_device=8192", lib} {
				require.Contains(t, log.String(), said)
			}
			if device == "auto" || device == "gpu" {
				require.Contains(t, log.String(), "not cuda:0")
				require.Contains(t, log.String(), "NVIDIA B200")
			}
		})
	}
	_, err := Open(Options{Device: "cuda:0", EnginePath: lib}, hclog.NewNullLogger())
	require.ErrorIs(t, err, engine.ErrNoDevice)
	require.ErrorContains(t, err, "NVIDIA B200")
	_, err = Open(Options{Device: "cuda:3", EnginePath: lib}, hclog.NewNullLogger())
	require.ErrorIs(t, err, engine.ErrNoDevice)
	require.ErrorContains(t, err, "the driver shows 3 GPUs")
}

func TestGPUHeldByAnotherProcessIsSkipped(t *testing.T) {
	held := strings.Replace(gpuEngine, "MR_UNIMPLEMENTED", "MR_UNAVAILABLE", 1)
	lib := buildLibrary(t, t.TempDir(), held)
	dev, err := Open(Options{Device: "auto", EnginePath: lib, AnyBuild: true}, hclog.NewNullLogger())
	require.NoError(t, err)
	info, err := dev.Info()
	require.NoError(t, err)
	require.Equal(t, "GPU number 1", info.Name)
	require.NoError(t, dev.Close())
	_, err = Open(Options{Device: "cuda:0", EnginePath: lib, AnyBuild: true}, hclog.NewNullLogger())
	require.ErrorIs(t, err, engine.ErrNoDevice)

	lib = buildLibrary(t, t.TempDir(), strings.Replace(held, "*n = 3", "*n = 1", 1))
	dev, err = Open(Options{Device: "auto", EnginePath: lib, AnyBuild: true, Threads: 1}, hclog.NewNullLogger())
	require.NoError(t, err, "there is always the CPU")
	info, err = dev.Info()
	require.NoError(t, err)
	require.Equal(t, "cpu", info.Kind)
	require.NoError(t, dev.Close())
}

func TestEngineOfOtherSourcesNeedsAnyBuild(t *testing.T) {
	for name, build := range map[string]string{"others": "0123456789abcdef", "none": ""} {
		lib := buildLibrary(t, t.TempDir(), strings.Replace(gpuEngine, "sources SOURCES", "sources "+build, 1))
		_, err := Open(Options{Device: "cuda:1", EnginePath: lib}, hclog.NewNullLogger())
		require.ErrorIs(t, err, engine.ErrNoDevice, name)
		for _, said := range []string{lib, build, cuda.Sources(), "make cuda", "--engine-any-build"} {
			require.ErrorContains(t, err, said)
		}
		var log bytes.Buffer
		dev, err := Open(Options{Device: "auto", EnginePath: lib, Threads: 1}, hclog.New(&hclog.LoggerOptions{Output: &log}))
		require.NoError(t, err, "there is always the CPU")
		require.Contains(t, log.String(), "kind=cpu")
		require.Contains(t, log.String(), "make cuda")
		require.NoError(t, dev.Close())
		dev, err = Open(Options{Device: "cuda:1", EnginePath: lib, AnyBuild: true}, hclog.NewNullLogger())
		require.NoError(t, err)
		require.NoError(t, dev.Close())
	}
}

func TestAnInstructionSetPathBelongsToTheCPU(t *testing.T) {
	_, err := Open(Options{Device: "cuda:0", Path: "avx2"}, hclog.NewNullLogger())
	require.ErrorIs(t, err, engine.ErrInvalid)
}
