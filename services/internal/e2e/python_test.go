package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// python is how examples/python/story.py is run: by an interpreter with gRPC, over stubs that it makes.
func python(t *testing.T) (command, env []string) {
	t.Helper()
	interpreter := ""
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", "import grpc").Run() == nil {
			interpreter = name
			break
		}
	}
	if interpreter == "" {
		t.Skip("no python3 with gRPC: apt install python3-grpcio")
	}
	stubs := t.TempDir()
	sources, err := filepath.Glob(filepath.Join(root, "proto", "millrace", "v1", "*.proto"))
	require.NoError(t, err)
	args := append([]string{"-I", filepath.Join(root, "proto"), "--python_out=" + stubs, "--grpc_python_out=" + stubs}, sources...)
	generate := exec.Command(interpreter, append([]string{"-m", "grpc_tools.protoc"}, args...)...)
	if exec.Command(interpreter, "-c", "import grpc_tools").Run() != nil {
		plugin, err := exec.LookPath("grpc_python_plugin")
		if _, noProtoc := exec.LookPath("protoc"); err != nil || noProtoc != nil {
			t.Skip("no grpc_tools, and no protoc with grpc_python_plugin: apt install protobuf-compiler protobuf-compiler-grpc libprotobuf-dev")
		}
		generate = exec.Command("protoc", append([]string{"--plugin=protoc-gen-grpc_python=" + plugin}, args...)...)
	}
	env = append(os.Environ(), "PYTHONPATH="+stubs, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := generate.CombinedOutput(); err != nil {
		t.Skipf("no stubs can be made here: apt install protobuf-compiler-grpc libprotobuf-dev: %v: %s", err, out)
	}
	load := exec.Command(interpreter, "-c", "import millrace.v1.inference_pb2_grpc")
	load.Env = env
	if out, err := load.CombinedOutput(); err != nil {
		t.Skipf("the protobuf of this Python does not take the stubs of this protoc: apt install python3-grpcio protobuf-compiler, which are of one Debian: %v: %s", err, out)
	}
	return []string{interpreter, filepath.Join(root, "examples", "python", "story.py")}, env
}
