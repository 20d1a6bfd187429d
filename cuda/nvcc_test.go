package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// readers are how nvcc reads a source without a GPU: CUDA for Hopper as far as PTX, without
// optimisation, and host sources as CMake has them compiled.
var readers = map[string][]string{
	".cu":  {"--generate-code=arch=compute_90a,code=compute_90a", "-fmad=false", "-Werror=all-warnings", "-Xcicc", "-O0", "-ptx"},
	".cpp": {"-O0", "-Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off", "-c"},
}

func TestNvccReadsEverySource(t *testing.T) {
	nvcc := needNvcc(t)
	compiled, checked := instances(t)
	sources := slices.Concat(compiled, found(t, "kernels/*.cu", "kernels/*/*.cu", "src/*.cu", "src/*.cpp", "src/*/*.cpp"))
	readAll(t, nvcc, sources, "-DMILLRACE_SOURCES=\"none\"")
	readAll(t, nvcc, checked, "-Xcicc", "-lto") // not as far as PTX, but to LLVM's representation
}

func TestNvccReadsEveryTestAndBench(t *testing.T) {
	nvcc := needNvcc(t)
	readAll(t, nvcc, found(t, "bench/*.cu", "bench/*.cpp"))
	needGoogleTest(t)
	readAll(t, nvcc, found(t, "tests/*.cu", "tests/*.cpp"))
}

func needNvcc(t *testing.T) string {
	t.Helper()
	nvcc, err := exec.LookPath("nvcc")
	if err != nil {
		t.Skip("no nvcc, which reads every CUDA source and needs no GPU for it: install NVIDIA's CUDA toolkit, 12.4 or newer")
	}
	return nvcc
}

// found returns the files of patterns, each of which must match some.
func found(t *testing.T, patterns ...string) (files []string) {
	t.Helper()
	for _, pattern := range patterns {
		matches, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, matches, pattern)
		files = append(files, matches...)
	}
	return files
}

func readAll(t *testing.T, nvcc string, sources []string, flags ...string) {
	t.Helper()
	for _, source := range sources {
		t.Run(filepath.Base(source), func(t *testing.T) {
			t.Parallel()
			arguments := slices.Concat([]string{"-std=c++17", "-Iinclude", "-I.", "-DMR_HOPPER=1", "-DMR_FREE_SPLITS=0"}, flags,
				readers[filepath.Ext(source)], []string{"-o", filepath.Join(t.TempDir(), "out"), source})
			out, err := exec.Command(nvcc, arguments...).CombinedOutput()
			require.NoError(t, err, string(out))
		})
	}
}

// instances writes sources with the instances of the templates of kernels/gemm/instances and
// kernels/experts/instances, for the types that CMakeLists.txt names, of which CMake makes a source
// each. A template has two sources here: one of few types, and one of the others, which are only
// checked. Each type is compiled for one template.
func instances(t *testing.T) (compiled, checked []string) {
	t.Helper()
	cmake, err := os.ReadFile("CMakeLists.txt")
	require.NoError(t, err)
	match := regexp.MustCompile(`(?m)^set\(weight_types ([A-Za-z0-9_ ]+)\)$`).FindSubmatch(cmake)
	require.NotNil(t, match)
	types := strings.Fields(string(match[1]))
	templates, err := filepath.Glob("kernels/*/instances/*.cu.in")
	require.NoError(t, err)
	require.Len(t, templates, 12)
	dir := t.TempDir()
	for i, template := range templates {
		text, err := os.ReadFile(template)
		require.NoError(t, err)
		family := strings.TrimSuffix(filepath.Base(template), ".cu.in")
		var toCompile, toCheck strings.Builder
		for j, name := range types {
			source := &toCheck
			if j%len(templates) == i {
				source = &toCompile
			}
			source.WriteString(strings.ReplaceAll(string(text), "@TYPE@", name))
		}
		for suffix, source := range map[string]string{"_compiled": toCompile.String(), "_checked": toCheck.String()} {
			require.NotEmpty(t, source)
			require.NoError(t, os.WriteFile(filepath.Join(dir, family+suffix+".cu"), []byte(source), 0o600))
		}
		compiled = append(compiled, filepath.Join(dir, family+"_compiled.cu"))
		checked = append(checked, filepath.Join(dir, family+"_checked.cu"))
	}
	return compiled, checked
}
