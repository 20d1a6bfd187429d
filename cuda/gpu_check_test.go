package cuda

import (
	"os"
	"os/exec"
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
