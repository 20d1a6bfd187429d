package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// nodejs is how examples/node/story.js is run: with gRPC's packages, in its own folder or where $NODE_PATH says.
func nodejs(t *testing.T) (command, env []string) {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("no node: apt install nodejs")
	}
	folder := filepath.Join(root, "examples", "node")
	find := exec.Command("node", "-e", "require.resolve('@grpc/grpc-js'); require.resolve('@grpc/proto-loader')")
	find.Dir = folder
	if find.Run() != nil {
		t.Skip("no gRPC for node: npm install in examples/node")
	}
	out, err := exec.Command("node", "--check", filepath.Join(folder, "story.js")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return []string{"node", filepath.Join(folder, "story.js")}, os.Environ()
}
