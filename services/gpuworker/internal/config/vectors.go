package config

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/gpuworker/vectors"
)

// leastPatience is long enough that a slow network does not end a training.
const leastPatience = time.Second

// mostTrainings is more than any device has memory for.
const mostTrainings = 1024

// Vectors is the configuration of codebooks and trainings.
type Vectors struct {
	Codebooks    string        // folder of their files
	MaxTrainings int           // at once; 0: none
	Patience     time.Duration // how long a caller may send or read nothing
	Share        float64       // of the time that trainings get while models have work; (0, 1]
	SpoolSpace   string        // bytes, or bytes with a unit; see Spool
	PutSpace     string        // likewise; see Put
}

func (v *Vectors) register(f *pflag.FlagSet) {
	f.StringVar(&v.Codebooks, "codebooks", "", "folder of codebook files NAME.safetensors, made when the first is written (default: codebooks, next to the folder of --models)")
	f.IntVar(&v.MaxTrainings, "max-trainings", 1, "trainings of codebooks at once; 0: none")
	f.DurationVar(&v.Patience, "training-timeout", time.Minute, "how long a caller of a training may send no rows, or read no responses, before the call ends")
	f.Float64Var(&v.Share, "training-share", 0.1, "share of the time that trainings compute while models have work, above 0 and at most 1; at other times they have all of it")
	f.StringVar(&v.PutSpace, "put-space", "2GiB", "host memory for codebooks that calls of PutCodebook are sending, of all together: bytes, such as 64GiB")
	f.StringVar(&v.SpoolSpace, "spool-space", "", "host memory for rows that the device does not hold, of all trainings together: bytes, such as 64GiB; 0: rows must fit the device (default: 4GiB on a GPU, 0 on a CPU)")
}

// validate checks every value and fills in the folder of codebooks, given that of models.
func (v *Vectors) validate(models string) (errs []error) {
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if v.Codebooks == "" {
		v.Codebooks = filepath.Join(filepath.Dir(filepath.Clean(models)), "codebooks")
	}
	if v.MaxTrainings < 0 || v.MaxTrainings > mostTrainings {
		fail("--max-trainings %d: want 0 for none, or at most %d", v.MaxTrainings, mostTrainings)
	}
	if v.Patience < leastPatience {
		fail("--training-timeout %v: want at least %v", v.Patience, leastPatience)
	}
	if !(v.Share > 0 && v.Share <= 1) {
		fail("--training-share %v: want a number above 0 and at most 1", v.Share)
	}
	if _, err := parseSwap(v.SpoolSpace); err != nil {
		fail("--spool-space %q: %w", v.SpoolSpace, err)
	}
	if n, err := parseSwap(v.PutSpace); err != nil || n <= 0 && v.PutSpace != "" {
		fail("--put-space %q: want bytes above 0, such as 2GiB", v.PutSpace)
	}
	return errs
}

// Config returns the configuration of the codebooks. tokens reports the work of the device's
// models.
func (v *Vectors) Config(gpu bool, verify time.Duration, tokens func() vectors.Tokens) vectors.Config {
	return vectors.Config{
		Dir: v.Codebooks, MaxTrainings: v.MaxTrainings, SpoolSpace: v.Spool(gpu), PutSpace: v.Put(), Share: v.Share,
		VerifyInterval: verify, Tokens: tokens,
	}
}

// Put returns the host memory for codebooks that are being put, in bytes.
func (v *Vectors) Put() uint64 {
	n, err := parseSwap(v.PutSpace) // validate has checked it
	if err != nil || n < 0 {
		return 0
	}
	return uint64(n)
}

// Spool returns the host memory for rows in bytes. Its default depends on the device.
func (v *Vectors) Spool(gpu bool) uint64 {
	n, err := parseSwap(v.SpoolSpace) // validate has checked it
	switch {
	case err != nil || n < 0:
		return 0
	case n == 0 && gpu:
		return 4 << 30
	}
	return uint64(n)
}
