package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// root is the repository, relative to this package's folder.
var root = filepath.Join("..", "..", "..")

// The programs, and the default models folder of workers; set by TestMain, read-only for tests.
var (
	workerBinary, schedulerBinary, gatewayBinary, clientBinary string
	modelsDir                                                  string
)

// Names of models in modelsDir.
const (
	stories    = "stories"
	storiesF16 = "stories-5m-f16"
	// long is stories with a context of longContext tokens; only the sim engine can use that many.
	long        = "long"
	longContext = 1 << 16
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "millrace-e2e-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := build(dir); err != nil {
		return 0, err
	}
	modelsDir = filepath.Join(dir, "models")
	if err := fillModels(modelsDir); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// build builds the programs in the mode of the test binary.
func build(dir string) error {
	workerBinary, schedulerBinary = filepath.Join(dir, "gpuworker"), filepath.Join(dir, "scheduler")
	gatewayBinary, clientBinary = filepath.Join(dir, "gateway"), filepath.Join(dir, "millrace")
	args := []string{"build"}
	if raced {
		args = append(args, "-race")
	}
	args = append(args, "-o", dir+string(filepath.Separator), "./services/gpuworker", "./services/scheduler", "./services/gateway", "./services/millrace")
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build of the programs: %w\n%s", err, out)
	}
	return nil
}

// fillModels makes a models folder. The files are copies, because a worker follows no link that
// leaves its folder.
func fillModels(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	shipped, err := os.ReadFile(filepath.Join(root, "testdata", "models", "stories-5m-q8_0.gguf"))
	if err != nil {
		return err
	}
	f16, err := os.ReadFile(filepath.Join(root, "testdata", "models", storiesF16+".gguf"))
	if err != nil {
		return err
	}
	stretched, err := withContext(shipped, longContext)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{stories: shipped, storiesF16: f16, long: stretched} {
		if err := os.WriteFile(filepath.Join(dir, name+".gguf"), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// withContext returns the model file with another context length.
func withContext(file []byte, tokens uint32) ([]byte, error) {
	const key, uint32Type = "llama.context_length", 4
	at := bytes.Index(file, []byte(key))
	if at < 0 || binary.LittleEndian.Uint32(file[at+len(key):]) != uint32Type {
		return nil, errors.New("the model file states no context length as a uint32")
	}
	out := bytes.Clone(file)
	binary.LittleEndian.PutUint32(out[at+len(key)+4:], tokens)
	return out, nil
}
