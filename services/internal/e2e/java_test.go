package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// jars are where Debian's packages have what examples/java needs.
const jars = "/usr/share/java"

// errNoJava says what a machine lacks.
var errNoJava = errors.New("no javac with Debian's gRPC: apt install default-jdk-headless libgrpc-java libnetty-java libperfmark-java " +
	"libprotobuf-java protobuf-compiler-grpc-java-plugin libprotobuf-dev")

// compileJava makes the classes of examples/java, once for all tests, in a folder that ends with them.
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
	if err := run("protoc", "-I", filepath.Join(root, "proto"), "--java_out="+classes, "--grpc-java_out="+classes,
		"--plugin=protoc-gen-grpc-java="+plugin, filepath.Join(root, "proto", "millrace", "v1", "inference.proto")); err != nil {
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

// java is how examples/java is run.
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
