package e2e

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// python finds an interpreter with gRPC, and makes the stubs that examples/python needs.
func python(t *testing.T) (interpreter string, env []string) {
	t.Helper()
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
	sources, err := filepath.Glob(filepath.Join("..", "..", "..", "proto", "millrace", "v1", "*.proto"))
	require.NoError(t, err)
	args := append([]string{"-I", filepath.Join("..", "..", "..", "proto"), "--python_out=" + stubs, "--grpc_python_out=" + stubs}, sources...)
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
		t.Skipf("no stubs can be made here, which CI's packages protobuf-compiler-grpc and libprotobuf-dev can: %v: %s", err, out)
	}
	load := exec.Command(interpreter, "-c", "import millrace.v1.inference_pb2_grpc")
	load.Env = env
	if out, err := load.CombinedOutput(); err != nil {
		t.Skipf("the python3-protobuf here does not take the stubs of this protoc; those of one Debian do: %v: %s", err, out)
	}
	return interpreter, env
}

// pythonStory runs examples/python/story.py; seen is called with what it has printed so far, whenever it prints.
func pythonStory(t *testing.T, seen func(string), args ...string) (printed, complaint string, err error) {
	t.Helper()
	interpreter, env := python(t)
	cmd := exec.CommandContext(within(t), interpreter, append([]string{filepath.Join("..", "..", "..", "examples", "python", "story.py")}, args...)...)
	cmd.Env = env
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var all strings.Builder
	for buffer := make([]byte, 4096); ; {
		n, err := out.Read(buffer)
		all.Write(buffer[:n])
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if seen != nil {
			seen(all.String())
		}
	}
	err = cmd.Wait() // what it complained of is whole then
	return all.String(), complaints.String(), err
}

// toldInGo is a story as a Go client gets it.
func toldInGo(t *testing.T, on *server, model string, tokens int32) string {
	t.Helper()
	in := &pb.GenerateRequest{
		Model: model, Input: &pb.GenerateRequest_Prompt{Prompt: "Once upon a time"},
		Sampling: &pb.Sampling{Temperature: ptr(float32(0.7)), TopP: ptr(float32(0.9)), Seed: ptr(uint64(7))},
		Stopping: &pb.Stopping{MaxTokens: ptr(tokens)},
	}
	o := generate(within(t), on.infer, in)
	require.NoError(t, o.err)
	return o.text
}

func TestAClientInPythonStreamsAndCancels(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", "--device", "cpu", "--load", stories)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, stories, 1)
	printed, complaint, err := pythonStory(t, nil, "--target", s.address, "--seed", "7", "--max-tokens", "60")
	require.NoError(t, err, complaint)
	require.Equal(t, toldInGo(t, w, stories, 60), printed)
	require.Contains(t, complaint, "60 tokens")

	printed, complaint, err = pythonStory(t, nil, "--target", s.address, "--seed", "7", "--stop-after", "5")
	require.NoError(t, err, complaint)
	require.True(t, strings.HasPrefix(toldInGo(t, w, stories, 60), printed), printed)
	w.untilIdle(t)

	_, complaint, err = pythonStory(t, nil, "--target", s.address, "--model", "no-such-model")
	require.Error(t, err)
	require.Contains(t, complaint, "NOT_FOUND")
}

func TestAClientInPythonHasADeadline(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", "--device", "sim:step=1s,prefill=0s,decode=0s", "--load", long)
	_, complaint, err := pythonStory(t, nil, "--target", w.address, "--model", long, "--max-tokens", "1000", "--timeout", "3")
	require.Error(t, err)
	require.Contains(t, complaint, "DEADLINE_EXCEEDED")
	w.untilIdle(t)
}

// The helper of examples/python does what docs/rig.md says of clients whose scheduler is lost.
func TestAClientInPythonGoesOnAtAnotherScheduler(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", "--device", "sim:step=5ms,prefill=0s,decode=0s", "--load", long)
	a, b := startScheduler(t, []*server{w}), startScheduler(t, []*server{w})
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 1)
	}
	const tokens = 600
	want := toldInGo(t, w, long, tokens)
	printed, complaint, err := pythonStory(t, func(string) { a.kill() }, "--target", a.address+","+b.address, "--model", long,
		"--seed", "7", "--max-tokens", strconv.Itoa(tokens))
	require.NoError(t, err, complaint)
	require.Equal(t, want, printed)
	require.Eventually(t, func() bool { return strings.Contains(b.log.String(), "grpc.method=Generate") }, hang, hang/1000, "nothing was lost: nothing is proven")
}
