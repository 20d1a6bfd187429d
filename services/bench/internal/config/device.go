package config

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/internal/device"
)

// Device are the flags of a device, with the type of the caches that are measured on it.
type Device struct {
	device.Flags
	KV string // empty: the device's default
}

// Register puts the flags on f; after f is parsed, Validate.
func (d *Device) Register(f *pflag.FlagSet) {
	d.Flags.Register(f)
	f.StringVar(&d.KV, "kv", "", "type of the KV cache: f32, f16 or bf16 (default: the device's)")
}

// Validate checks the values and fills in what the environment says.
func (d *Device) Validate() error {
	_, err := d.KVType()
	return errors.Join(d.Flags.Validate(os.Getenv), err)
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
