package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostTests maps the engine's tests that need neither a GPU nor CUDA to the sources that they test.
var hostTests = map[string][]string{
	"tests/prefill_plan_test.cpp":       {"kernels/attention/prefill_plan.cpp"},
	"tests/engine_copy_groups_test.cpp": {"src/copy_groups.cpp"},
	"tests/engine_division_test.cpp":    {"src/division.cpp", "cpu/error.cpp"},
	"tests/engine_fair_mutex_test.cpp":  {},
	// The emulated device has the types of CUDA that the kernels' headers name.
	"tests/engine_step_chains_test.cpp": {"-Itests/emulated", "src/step_chains.cpp"},
}

func TestHostProgramsPass(t *testing.T) {
	needGoogleTest(t)
	for test, sources := range hostTests {
		t.Run(filepath.Base(test), func(t *testing.T) {
			t.Parallel()
			program := filepath.Join(t.TempDir(), "test")
			build(t, append([]string{"-o", program, test, "-lgtest", "-lgtest_main", "-lpthread"}, sources...)...)
			out, err := exec.Command(program).CombinedOutput()
			require.NoError(t, err, string(out))
		})
	}
}

// TestNVMLProgramPasses runs the test of the management library's reader against a fake library.
func TestNVMLProgramPasses(t *testing.T) {
	needGoogleTest(t)
	dir := t.TempDir()
	library, program := filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(dir, "nvml_test")
	build(t, "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, "tests/interpose/nvml.cpp", "-lpthread")
	// The path to it goes before LD_LIBRARY_PATH, where the driver's may be.
	build(t, "-o", program, "tests/nvml_test.cpp", "src/nvml.cpp", library, "-lgtest", "-lgtest_main", "-lpthread", "-ldl",
		"-Wl,--disable-new-dtags", "-Wl,-rpath,"+dir)
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

func needGoogleTest(t *testing.T) {
	t.Helper()
	if err := exec.Command("g++", "-x", "c++", "-fsyntax-only", "-include", "gtest/gtest.h", os.DevNull).Run(); err != nil {
		t.Skip("no GoogleTest: apt install libgtest-dev")
	}
}

func build(t *testing.T, arguments ...string) {
	t.Helper()
	out, err := compiler(arguments...).CombinedOutput()
	require.NoError(t, err, string(out))
}

func compiler(arguments ...string) *exec.Cmd {
	flags := []string{"-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"}
	return exec.Command("g++", slices.Concat(flags, arguments, []string{"-I.", "-Iinclude"})...)
}
