package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNVMLProgramPasses builds the test of the management library's reader, which needs neither a GPU nor CUDA, and runs it
// against the library that stands for the driver's.
func TestNVMLProgramPasses(t *testing.T) {
	if err := exec.Command("g++", "-x", "c++", "-fsyntax-only", "-include", "gtest/gtest.h", os.DevNull).Run(); err != nil {
		t.Skip("GoogleTest is not here: its headers are of libgtest-dev")
	}
	dir := t.TempDir()
	build := func(arguments ...string) {
		t.Helper()
		flags := []string{"-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-I.", "-Iinclude"}
		out, err := exec.Command("g++", append(flags, arguments...)...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	library, program := filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(dir, "nvml_test")
	build("-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, "tests/interpose/nvml.cpp", "-lpthread")
	// The path to it goes before LD_LIBRARY_PATH, where the driver's may be.
	build("-o", program, "tests/nvml_test.cpp", "src/nvml.cpp", library, "-lgtest", "-lgtest_main", "-lpthread", "-ldl",
		"-Wl,--disable-new-dtags", "-Wl,-rpath,"+dir)
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}
