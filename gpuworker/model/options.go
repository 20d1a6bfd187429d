package model

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// Options of one load. The zero value leaves every choice to the worker.
type Options struct {
	ExpectDigest *engine.Digest
	KVTokens     uint64       // tokens of the KV cache
	Context      uint32       // longest sequence in tokens
	KVType       *engine.Type // F32, F16, BF16 or F8
	ActType      engine.Type  // activations, F16 or BF16; 0 = the engine's choice
	MaxSequences uint32
	Pin          *bool // whether only Unload unloads it; nil: unchanged, initially false
}

// Config of a Manager.
type Config struct {
	Dir string
	// MaxSequences of a model, unless its load sets it. 0 = DefaultSequences, or fewer if they do
	// not fit.
	MaxSequences     int
	MaxBatchedTokens int           // of a step; 0 = DefaultBatchedTokens
	BlockSize        int           // 0 = 16
	VerifyInterval   time.Duration // between residency checks; 0 = 1 min, negative = none
	UploadWorkers    int           // of an upload; 0 = the processors, at most 32
	MaxLoads         int           // loads that run or wait; 0 = 64
	LoadTime         time.Duration // limit of a load with its wait; 0 = 2 h
	StepTarget       time.Duration // batch.Config.SharedTarget; 0 = DefaultStepTarget
	// MaxQueueTime is how long a request may wait for its first slot, unless it is resumed. 0 = no
	// limit.
	MaxQueueTime time.Duration
	// SwapSpace is the host memory in bytes for preempted sequences of all models together. A model
	// gets at most the size of its KV cache, and at most what earlier models left. 0 =
	// DefaultSwapSpace, negative = none.
	SwapSpace int64
	// HostCache is the host memory in bytes for the host tiers of all prefix caches together. A model
	// gets at most tierTimes the size of its KV cache, and at most what earlier models left. 0 =
	// none.
	HostCache int64
	// IdleUnload unloads a model that is not pinned after this time without requests. 0 = never.
	IdleUnload time.Duration
	// EvictIdle lets a load that does not fit unload models that are not pinned after this time
	// without requests. 0 = never. It bounds how often models that do not fit together replace each
	// other.
	EvictIdle time.Duration
	// SamplingDefaults sets unset sampling parameters of a request to the values that the model's
	// file recommends. It changes the model's numerics class.
	SamplingDefaults bool
	// Observe returns the observer of a model's step loop; nil: none. It is called once for each
	// load.
	Observe func(model string) batch.Observer
}

func (c *Config) setDefaults() {
	if c.BlockSize == 0 {
		c.BlockSize = 16
	}
	if c.VerifyInterval == 0 {
		c.VerifyInterval = time.Minute
	}
	if c.UploadWorkers == 0 {
		c.UploadWorkers = min(runtime.GOMAXPROCS(0), 32)
	}
	if c.MaxLoads == 0 {
		c.MaxLoads = 64
	}
	if c.LoadTime == 0 {
		c.LoadTime = 2 * time.Hour
	}
}

const (
	maxSequences = 1024
	maxTopN      = 64
	maxScoreRows = 64
	// maxHiddenBytes bounds the hidden rows of a step. Mean pooling needs one for each token; other
	// steps of a prompt may be longer.
	maxHiddenBytes = 8 << 20
)

func (o Options) check(maxContext int) error {
	switch {
	case o.Context > uint32(maxContext):
		return fmt.Errorf("%w: context_length %d; the model was made for at most %d", ErrOption, o.Context, maxContext)
	case o.MaxSequences > maxSequences:
		return fmt.Errorf("%w: max_sequences %d; at most %d", ErrOption, o.MaxSequences, maxSequences)
	case o.KVTokens != 0 && o.KVTokens < uint64(o.Context):
		return fmt.Errorf("%w: kv_tokens %d hold no sequence of context_length %d", ErrOption, o.KVTokens, o.Context)
	case o.KVTokens > 1<<31:
		return fmt.Errorf("%w: kv_tokens %d; at most %d", ErrOption, o.KVTokens, 1<<31)
	}
	return nil
}

// Difference is an option whose value differs from the wanted one. Name is the API's.
type Difference struct{ Name, Have, Want string }

// OptionsError is ErrOptions with every option that differs.
type OptionsError struct {
	Model string
	State string // of the model: "is loaded", "is being loaded"
	All   []Difference
}

// Error implements error.
func (e *OptionsError) Error() string {
	var have, want []string
	for _, d := range e.All {
		have, want = append(have, d.Name+" "+d.Have), append(want, d.Name+" "+d.Want)
	}
	return fmt.Sprintf("%v: %q %s with %s, and the request has %s: leave that out to use the model as it is, or unload it first",
		ErrOptions, e.Model, e.State, strings.Join(have, ", "), strings.Join(want, ", "))
}

// Unwrap is ErrOptions.
func (e *OptionsError) Unwrap() error { return ErrOptions }

// kvNames are the API's names of KV cache types.
var kvNames = map[engine.Type]string{engine.F32: "f32", engine.F16: "f16", engine.BF16: "bf16", engine.F8: "f8"}

// differ returns an *OptionsError if want sets an option that o sets to another value. Options that
// either leaves open are equal, and so are KV caches with the same number of blocks of size tokens.
func (o Options) differ(name, state string, want Options, size int) error {
	e := &OptionsError{Model: name, State: state}
	number := func(option string, have, want uint64) {
		if have != 0 && want != 0 && have != want {
			e.All = append(e.All, Difference{option, fmt.Sprint(have), fmt.Sprint(want)})
		}
	}
	number("context_length", uint64(o.Context), uint64(want.Context))
	if block := uint64(size); (o.KVTokens+block-1)/block != (want.KVTokens+block-1)/block {
		number("kv_tokens", o.KVTokens, want.KVTokens)
	}
	if o.KVType != nil && want.KVType != nil && *o.KVType != *want.KVType {
		e.All = append(e.All, Difference{"kv_type", kvNames[*o.KVType], kvNames[*want.KVType]})
	}
	number("max_sequences", uint64(o.MaxSequences), uint64(want.MaxSequences))
	if e.All == nil {
		return nil
	}
	return e
}

// match returns ErrDigest or an *OptionsError if a loaded model is not as o expects.
func (i *Instance) match(o Options) error {
	if o.ExpectDigest != nil && *o.ExpectDigest != i.Digest {
		return fmt.Errorf("%w: %q is loaded with %x, expected %x", ErrDigest, i.Name, i.Digest, *o.ExpectDigest)
	}
	has := Options{
		Context: uint32(i.Context), KVTokens: uint64(i.Runner.KVBlocks) * uint64(i.Runner.BlockSize), KVType: &i.Runner.KVType,
		MaxSequences: uint32(i.Runner.MaxSequences),
	}
	return has.differ(i.Name, "is loaded", o, i.Runner.BlockSize)
}
