package config

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Device says which device to open.
type Device struct {
	Name       string // auto, cpu, gpu, cuda:N, or sim with options
	CPUPath    string
	EnginePath string
	AnyBuild   bool
	Threads    int
	KV         string // empty: the device's default
}

// Register puts the flags on f; after f is parsed, Validate.
func (d *Device) Register(f *pflag.FlagSet) {
	f.StringVar(&d.Name, "device", "auto", "auto, cpu, gpu, cuda:N, or sim[:step=1ms,prefill=2us,decode=20us,memory=BYTES]")
	f.StringVar(&d.CPUPath, "cpu-path", "", "instruction-set path of the CPU engine: avx512bf16, avx512vnni, avx2 or portable (default: the best)")
	f.StringVar(&d.EnginePath, "engine-path", "", "file or folder of libmillrace_cuda.so (default: $MILLRACE_ENGINE_PATH, beside the binary, ../lib, ../cuda)")
	f.BoolVar(&d.AnyBuild, "engine-any-build", false, "take a CUDA engine that was built from other sources than this program")
	f.IntVar(&d.Threads, "threads", 0, "threads of the CPU engine; 0: what quota and affinity allow")
	f.StringVar(&d.KV, "kv", "", "type of the KV cache: f32, f16 or bf16 (default: the device's)")
}

// Validate checks the values and fills in what the environment says.
func (d *Device) Validate() error {
	if d.Threads < 0 || d.Threads > 1024 {
		return fmt.Errorf("--threads %d: want 0 to 1024", d.Threads)
	}
	if _, err := d.KVType(); err != nil {
		return err
	}
	if d.EnginePath == "" {
		d.EnginePath = os.Getenv("MILLRACE_ENGINE_PATH")
	}
	return nil
}

// KVType is the type asked for, or nil.
func (d *Device) KVType() (*engine.Type, error) {
	types := map[string]engine.Type{"f32": engine.F32, "f16": engine.F16, "bf16": engine.BF16}
	if d.KV == "" {
		return nil, nil
	}
	if t, ok := types[d.KV]; ok {
		return &t, nil
	}
	return nil, fmt.Errorf("--kv %q: want f32, f16 or bf16", d.KV)
}

// CacheDir is where synthetic models are kept: the user's cache folder, or the system's folder for temporary files where
// there is none.
func CacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return dir + "/millrace/bench"
}
