package cuda_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A machine without a GPU that has nvcc reads every CUDA source as a build for Hopper does, without making machine code of it.
func TestNvccReadsEverySource(t *testing.T) {
	nvcc, err := exec.LookPath("nvcc")
	if err != nil {
		t.Skip("nvcc is not here: it reads every CUDA source, and needs no GPU for that; it comes with NVIDIA's CUDA toolkit, 12.4 or newer")
	}
	var sources []string
	for _, pattern := range []string{"kernels/*.cu", "kernels/linear/*.cu", "kernels/vectors/*.cu", "src/*.cu"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		sources = append(sources, found...)
	}
	for _, source := range sources {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			out, err := exec.Command(nvcc, "-std=c++17", "-Iinclude", "-I.", "-DMR_HOPPER=1", "-DMR_FREE_SPLITS=0",
				"--generate-code=arch=compute_90a,code=compute_90a", "-fmad=false", "-Werror=all-warnings", "-Xcicc", "-O0",
				"-ptx", "-o", filepath.Join(t.TempDir(), "out.ptx"), source).CombinedOutput()
			require.NoError(t, err, string(out))
		})
	}
}
