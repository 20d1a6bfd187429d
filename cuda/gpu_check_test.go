package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheCheckBesideTransformers runs the tests of what gpu-check's stage transformers reads, arranges and judges.
func TestTheCheckBesideTransformers(t *testing.T) {
	for _, interpreter := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(interpreter, "-c", "import numpy").Run() != nil {
			continue
		}
		tests := exec.Command(interpreter, "-m", "unittest", "discover", "-s", "gpu-check/logprobs", "-p", "*_test.py")
		tests.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
		out, err := tests.CombinedOutput()
		require.NoError(t, err, string(out))
		require.NotContains(t, string(out), "Ran 0 tests")
		return
	}
	t.Skip("no python3 with numpy: apt install python3-numpy")
}

// TestTheStageInvarianceWantsItsFreeBuildCaught runs gpu-check's stage invariance with scripts in the place of its programs.
func TestTheStageInvarianceWantsItsFreeBuildCaught(t *testing.T) {
	const differs = "seed 7 (crowd, heads of 64, F16: 2 actors, chunk 33; run it again with go test -sametest.seed=7): actor 1, stranger, " +
		"output 0: generated token 3: alone 5 at position 9, -1 (bf800000), rank 0, here 5 at position 9, -1 (bf800001), rank 0"
	stage, err := os.ReadFile("gpu-check/invariance.sh")
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		capability string
		status     int    // of the scenarios
		prints     string // what they print
		want       string // row of the table
		fails      bool
	}{
		"bits that differ are what is wanted": {"9.0", 1, differs, "ok the build that is free is caught by seed 7", false},
		"bits that agree fail":                {"9.0", 0, "PASS", "FAIL no scenario catches the build that is free", true},
		"another failure does not do": {
			"9.0", 1, "seed 7 (crowd; run it again with x7): alone, at position 9: the device is lost",
			"FAIL the build that is free fails otherwise than by its bits", true,
		},
		"a GPU without wgmma has nothing to catch": {"8.0", 1, "", "skip without wgmma", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			script := func(path, text string) {
				require.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte("#!/bin/bash\n"+text), 0o755))
			}
			script("sametest.test", fmt.Sprintf("[[ $MILLRACE_TEST_CUDA_ENGINE == %s/free ]] || exit 3\necho '%s'\nexit %d\n",
				dir, tc.prints, tc.status))
			script("millrace-bench", "for kind in prefill decode; do for batch in 1 64 128 256; do echo $kind $batch 100; done; done\n")
			script("stage", string(stage)+`
work=$1 bin=$1 models=$1 out=$1/cuda gpu_capability=$2
row() { echo "$1 $3"; }
configured() { :; }
cmake() { :; }
image() { echo "${1/90/90a}"; }
invariance
`)
			out, err := exec.Command("bash", "-u", filepath.Join(dir, "stage"), dir, tc.capability).CombinedOutput()
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), tc.want)
			require.Contains(t, string(out), "ok decode, 256 x 128: 100 tokens/s, and 100 of the build that is free: 0.0 % is the cost")
			if tc.fails {
				require.Contains(t, string(out), "FAIL")
			} else {
				require.NotContains(t, string(out), "FAIL")
			}
		})
	}
}
