package e2e

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// languages are the commands of the example clients; a test is skipped if a command cannot be run.
var languages = map[string]func(*testing.T) (command, env []string){"python": python, "java": java, "node": nodejs}

// inEach runs a test with the client of each language.
func inEach(t *testing.T, test func(exampleClient)) {
	t.Helper()
	for name, client := range languages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command, env := client(t)
			test(exampleClient{t, command, env})
		})
	}
}

// exampleClient is a test and its client.
type exampleClient struct {
	*testing.T
	command, env []string
}

// story runs the client; seen is called with its output so far, whenever it prints.
func (c exampleClient) story(seen func(string), args ...string) (printed, complaint string, err error) {
	t := c.T
	t.Helper()
	cmd := exec.CommandContext(within(t), c.command[0], append(c.command[1:len(c.command):len(c.command)], args...)...)
	cmd.Env = c.env
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
	err = cmd.Wait() // its stderr is complete then
	return all.String(), complaints.String(), err
}

// toldInGo returns a story as a Go client gets it.
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

func TestClientsOfOtherLanguagesStreamAndCancel(t *testing.T) {
	t.Parallel()
	inEach(t, func(c exampleClient) {
		t := c.T
		w := startWorker(t, "w1", "--device", "cpu", "--load", stories)
		s := startScheduler(t, []*server{w})
		s.untilServed(t, stories, 1)
		printed, complaint, err := c.story(nil, "--target", s.address, "--seed", "7", "--max-tokens", "60")
		require.NoError(t, err, complaint)
		require.Equal(t, toldInGo(t, w, stories, 60), printed)
		require.Contains(t, complaint, "60 tokens")

		printed, complaint, err = c.story(nil, "--target", s.address, "--seed", "7", "--stop-after", "5")
		require.NoError(t, err, complaint)
		require.True(t, strings.HasPrefix(toldInGo(t, w, stories, 60), printed), printed)
		w.untilIdle(t)

		_, complaint, err = c.story(nil, "--target", s.address, "--model", "no-such-model")
		require.Error(t, err)
		require.Contains(t, complaint, "NOT_FOUND")
	})
}

func TestLanguagesNameARefusedConnection(t *testing.T) {
	t.Parallel()
	inEach(t, func(c exampleClient) {
		_, complaint, err := c.story(nil, "--target", freeAddress(t))
		require.Error(c, err)
		require.Contains(c, complaint, "UNAVAILABLE")
		require.Regexp(c, "(?i)connection refused|ECONNREFUSED", complaint)
		require.NotContains(c, complaint, "SLF4J")
	})
}

func TestClientsOfOtherLanguagesHaveADeadline(t *testing.T) {
	t.Parallel()
	inEach(t, func(c exampleClient) {
		t := c.T
		w := startWorker(t, "w1", "--device", "sim:step=1s,prefill=0s,decode=0s", "--load", long)
		_, complaint, err := c.story(nil, "--target", w.address, "--model", long, "--max-tokens", "1000", "--timeout", "3")
		require.Error(t, err)
		require.Contains(t, complaint, "DEADLINE_EXCEEDED")
		w.untilIdle(t)
	})
}

// Java is missing here because Debian's Netty has no ALPN.
func TestClientsOfOtherLanguagesSpeakMutualTLS(t *testing.T) {
	t.Parallel()
	inEach(t, func(c exampleClient) {
		t := c.T
		if c.command[0] == "java" {
			t.Skip("Debian's Netty has no ALPN, which gRPC needs for TLS: take grpc-netty-shaded from Maven's repository")
		}
		g := guard(t, 1)
		g.scheduler.untilServed(t, long, 1)
		flags := []string{"--target", g.scheduler.address, "--model", long, "--max-tokens", "3", "--tls-ca", g.ca.File}
		_, complaint, err := c.story(nil, append(slices.Clone(flags), "--tls-cert", g.files["client"].Cert, "--tls-key", g.files["client"].Key)...)
		require.NoError(t, err, complaint)
		require.Contains(t, complaint, "3 tokens")
		_, complaint, err = c.story(nil, flags...)
		require.Error(t, err)
		require.Contains(t, complaint, "UNAVAILABLE", "the server requires a certificate")
	})
}

// The helpers of examples resume as docs/api.md describes when their scheduler is lost.
func TestLanguageClientsResumeElsewhere(t *testing.T) {
	t.Parallel()
	inEach(t, func(c exampleClient) {
		t := c.T
		w := startWorker(t, "w1", "--device", "sim:step=5ms,prefill=0s,decode=0s", "--load", long)
		a, b := startScheduler(t, []*server{w}), startScheduler(t, []*server{w})
		for _, s := range []*server{a, b} {
			s.untilServed(t, long, 1)
		}
		const tokens = 1500
		want := toldInGo(t, startWorker(t, "w2", append([]string{"--load", long}, quick...)...), long, tokens)
		printed, complaint, err := c.story(func(string) { a.kill() }, "--target", a.address+","+b.address, "--model", long,
			"--seed", "7", "--max-tokens", strconv.Itoa(tokens))
		require.NoError(t, err, complaint)
		require.Equal(t, want, printed)
		require.Eventually(t, func() bool { return strings.Contains(b.log.String(), "grpc.method=Generate") }, hang, hang/1000, "nothing was lost: nothing is proven")
	})
}

// python returns the command of examples/python/story.py: an interpreter with gRPC, and stubs that
// it generates.
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

// pythonScript runs another script of examples/python with a text on its standard input.
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
	require.Contains(t, complaint, "\rloaded", "it loads the model by the reason of the first answer")
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

// jars is the folder of Debian's packages with the libraries of examples/java.
const jars = "/usr/share/java"

// errNoJava says what is missing on this machine.
var errNoJava = errors.New("no javac with Debian's gRPC: apt install default-jdk-headless libgrpc-java libnetty-java libperfmark-java " +
	"libprotobuf-java protobuf-compiler-grpc-java-plugin libprotobuf-dev")

// compileJava compiles examples/java once for all tests, in a folder that is removed after them.
var compileJava = sync.OnceValues(func() (classes string, err error) {
	for _, needed := range []string{"javac", "java", "protoc", "grpc_java_plugin"} {
		if _, err := exec.LookPath(needed); err != nil {
			return "", errNoJava
		}
	}
	for _, needed := range []string{"grpc-netty.jar", "protobuf.jar", "netty-all.jar", "perfmark-api.jar"} {
		if _, err := os.Stat(filepath.Join(jars, needed)); err != nil {
			return "", errNoJava
		}
	}
	classes = filepath.Join(filepath.Dir(workerBinary), "java")
	if err := os.Mkdir(classes, 0o700); err != nil {
		return "", err
	}
	run := func(name string, args ...string) error {
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			return errors.New(name + ": " + err.Error() + "\n" + string(out))
		}
		return nil
	}
	plugin, err := exec.LookPath("grpc_java_plugin")
	if err != nil {
		return "", err
	}
	args := []string{"-I", filepath.Join(root, "proto"), "--java_out=" + classes, "--grpc-java_out=" + classes,
		"--plugin=protoc-gen-grpc-java=" + plugin}
	for _, file := range []string{"inference", "prompts", "texts", "tools"} {
		args = append(args, filepath.Join(root, "proto", "millrace", "v1", file+".proto"))
	}
	if err := run("protoc", args...); err != nil {
		return "", err
	}
	sources, err := filepath.Glob(filepath.Join(root, "examples", "java", "*.java"))
	if err != nil {
		return "", err
	}
	stubs, err := filepath.Glob(filepath.Join(classes, "millrace", "v1", "*.java"))
	if err != nil {
		return "", err
	}
	return classes, run("javac", append(append([]string{"-Xlint:none", "-nowarn", "-d", classes, "-cp", jars + "/*"}, sources...), stubs...)...)
})

// java returns the command of examples/java.
func java(t *testing.T) (command, env []string) {
	t.Helper()
	classes, err := compileJava()
	if errors.Is(err, errNoJava) {
		t.Skip(err)
	}
	require.NoError(t, err)
	path := []string{classes}
	for _, needed := range []string{"grpc-", "netty-", "perfmark-", "protobuf", "guava", "gson"} {
		found, err := filepath.Glob(filepath.Join(jars, needed+"*.jar"))
		require.NoError(t, err)
		path = append(path, found...)
	}
	return []string{"java", "-XX:TieredStopAtLevel=1", "-cp", strings.Join(path, ":"), "Story"}, os.Environ()
}

// nodejs returns the command of examples/node/story.js, which needs gRPC's packages in its own
// folder or in $NODE_PATH.
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
