package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
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

// pythonScript runs another script of examples/python, with text on its standard input.
func pythonScript(t *testing.T, script, input string, args ...string) (printed, complaint string, err error) {
	t.Helper()
	command, env := python(t)
	cmd := exec.CommandContext(within(t), command[0], append([]string{filepath.Join(root, "examples", "python", script)}, args...)...)
	cmd.Env = env
	cmd.Stdin = strings.NewReader(input)
	var out, complaints strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaints
	err = cmd.Run()
	return out.String(), complaints.String(), err
}

func TestPythonChatLoadsAndGivesReasons(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", "--device", "cpu")
	_, complaint, err := pythonScript(t, "chat.py", "hello\n", "--target", w.address, "--max-tokens", "5")
	require.Error(t, err)
	require.Contains(t, complaint, "loading 100 %", "it loads the model by the reason of the first answer")
	require.Contains(t, complaint, "(NO_CHAT_TEMPLATE)")
	_, complaint, err = pythonScript(t, "chat.py", "hello\n", "--target", w.address, "--model", "nosuch")
	require.Error(t, err)
	require.Contains(t, complaint, "(UNKNOWN_MODEL)")
}

func TestPythonTrainsFromNumpyArrays(t *testing.T) {
	t.Parallel()
	command, env := python(t)
	numpy := exec.Command(command[0], "-c", "import numpy")
	if numpy.Env = env; numpy.Run() != nil {
		t.Skip("no numpy: apt install python3-numpy")
	}
	w := startWorker(t, "w1", "--device", "cpu", "--codebooks", t.TempDir())
	for name, args := range map[string][]string{"flat": nil, "product": {"--subspaces", "4"}} {
		printed, complaint, err := pythonScript(t, "codebook.py", "", append([]string{"--target", w.address, "--name", name,
			"--rows", "3000", "--dimension", "16", "--codewords", "32"}, args...)...)
		require.NoError(t, err, complaint)
		said := regexp.MustCompile(`codes (.*) uint8, energy ([\d.]+), mean squared error ([\d.]+),`).FindStringSubmatch(printed)
		require.NotNil(t, said, printed)
		require.Equal(t, map[string]string{"flat": "(3000,)", "product": "(3000, 4)"}[name], said[1])
		require.Equal(t, said[2], said[3], "energy is the mean squared error of the rows")
	}
}
