package cuda

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// tree returns the embedded part of this folder as it is on disk.
func tree(t *testing.T) fstest.MapFS {
	t.Helper()
	out := fstest.MapFS{}
	disk := os.DirFS(".")
	for _, pattern := range []string{
		"CMakeLists.txt", "include/millrace/*", "src/*.*", "src/vectors/*", "kernels/*.*", "kernels/attention/*", "kernels/experts/*.*",
		"kernels/experts/instances/*", "kernels/gemm/*.*", "kernels/gemm/instances/*", "kernels/ops/*", "kernels/sampler/*",
		"kernels/states/*", "kernels/vectors/*", "cpu/*.h", "cpu/error.cpp",
		"cpu/shape.cpp", "cpu/weights.cpp", "cpu/slot.cpp", "cpu/step_plan.cpp", "cpu/runner_config.cpp", "cpu/linear_size.cpp",
		"cpu/isa.cpp", "cpu/blake3.cpp", "cpu/blake3_x86.cpp", "cpu/vector_config.cpp", "cpu/vector_math.cpp", "cpu/slices.cpp",
	} {
		names, err := fs.Glob(disk, pattern)
		require.NoError(t, err)
		require.NotEmpty(t, names, pattern)
		for _, name := range names {
			content, err := os.ReadFile(name)
			require.NoError(t, err)
			out[name] = &fstest.MapFile{Data: content}
		}
	}
	return out
}

func TestSourcesMatchTree(t *testing.T) {
	digest, err := digestOf(tree(t))
	require.NoError(t, err)
	require.Equal(t, digest, Sources())
	require.Len(t, digest, 16)
}

func TestSourcesMatchCMake(t *testing.T) {
	cmake, err := exec.LookPath("cmake")
	if err != nil {
		t.Skip("no cmake, which computes the digest that the CUDA engine carries: apt install cmake")
	}
	out, err := exec.Command(cmake, "-P", "sources.cmake").Output()
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(out)), Sources())
}

func TestDigestChangesWithBytesAndNames(t *testing.T) {
	of := func(files fstest.MapFS) string {
		digest, err := digestOf(files)
		require.NoError(t, err)
		return digest
	}
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	first := of(fstest.MapFS{"src/a.cpp": file("one"), "src/b.h": file("two")})
	seen := map[string]string{"first": first}
	for name, files := range map[string]fstest.MapFS{
		"a byte":      {"src/a.cpp": file("one."), "src/b.h": file("two")},
		"a name":      {"src/c.cpp": file("one"), "src/b.h": file("two")},
		"an exchange": {"src/a.cpp": file("two"), "src/b.h": file("one")},
		"one less":    {"src/a.cpp": file("one")},
		"one more":    {"src/a.cpp": file("one"), "src/b.h": file("two"), "kernels/a.cu": file("")},
	} {
		digest := of(files)
		for other, was := range seen {
			require.NotEqual(t, was, digest, "%s and %s", name, other)
		}
		seen[name] = digest
	}
	require.Equal(t, first, of(fstest.MapFS{"src/a.cpp": file("one"), "src/b.h": file("two"), "src/notes~": file("x")}), "no source")
}

// TestVersionListEndsAtTheMinor compares the list of versions in engine.h with MR_ABI_MINOR: one
// line for each, in order.
func TestVersionListEndsAtTheMinor(t *testing.T) {
	header, err := os.ReadFile("include/millrace/engine.h")
	require.NoError(t, err)
	minor := regexp.MustCompile(`(?m)^#define MR_ABI_MINOR (\d+)u$`).FindSubmatch(header)
	require.NotNil(t, minor)
	last, err := strconv.Atoi(string(minor[1]))
	require.NoError(t, err)
	var want, got []string
	for i := range last + 1 {
		want = append(want, fmt.Sprintf("2.%d", i))
	}
	for _, line := range regexp.MustCompile(`(?m)^ \* (2\.\d+)  \S`).FindAllSubmatch(header, -1) {
		got = append(got, string(line[1]))
	}
	require.Equal(t, want, got)
}
