package config

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/internal/device"
)

// Device is the flags of a device and the type of the KV caches that are measured on it.
type Device struct {
	device.Flags
	KV string // empty: the device's default
}

// Register adds the flags. After they are parsed, the caller must call Validate.
func (d *Device) Register(f *pflag.FlagSet) {
	d.Flags.Register(f)
	f.StringVar(&d.KV, "kv", "", "type of the KV cache: f32, f16 or bf16 (default: the device's)")
}

// Validate checks the values and adds those of the environment.
func (d *Device) Validate() error {
	_, err := d.KVType()
	return errors.Join(d.Flags.Validate(os.Getenv), err)
}

// KVType returns the type of the flag; nil without one.
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

// CacheDir returns the folder of synthetic models: in the user's cache folder, or in the system's
// folder for temporary files if the user has none.
func CacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return dir + "/millrace/bench"
}
