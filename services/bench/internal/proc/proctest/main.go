package proctest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Main runs the tests, or a program if Use has started the binary as one.
func Main(m *testing.M) { MainOr(m, modeKey, serve) }

// MainOr runs the tests, or program if the environment has key. It calls program with the arguments
// of the process and the value of key, and exits.
func MainOr(m *testing.M, key string, program func(args []string, value string) error) {
	value, set := os.LookupEnv(key)
	if !set {
		os.Exit(m.Run())
	}
	if err := program(os.Args[1:], value); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// MainWithWorker builds the shipped worker, sets path to it, runs the tests and exits. It must be
// called in a package below services/bench/internal.
func MainWithWorker(m *testing.M, path *string) {
	code, err := runWithWorker(m, path)
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the worker:", err)
		code = 1
	}
	os.Exit(code)
}

func runWithWorker(m *testing.M, path *string) (code int, err error) {
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	*path = filepath.Join(dir, "worker")
	cmd := exec.Command("go", "build", "-o", *path, "./services/gpuworker")
	cmd.Dir = filepath.Join("..", "..", "..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w\n%s", err, out)
	}
	return m.Run(), nil
}
