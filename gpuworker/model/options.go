package model

import (
	"fmt"
	"runtime"
	"time"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// Options of one load; the zero value leaves everything to the worker.
type Options struct {
	ExpectDigest *engine.Digest
	KVTokens     uint64       // tokens of the KV cache
	Context      uint32       // longest sequence in tokens
	KVType       *engine.Type // F32, F16, BF16 or F8
	ActType      engine.Type  // of activations between kernels, F16 or BF16; 0 = the engine's own for the model
	MaxSequences uint32
	Pin          *bool // whether it stays until Unload; nil: as it was, and false for one that was not loaded
}

// Config of a Manager.
type Config struct {
	Dir              string
	MaxSequences     int           // of a model, unless its load says otherwise; 0 = DefaultSequences, or fewer where those have no room
	MaxBatchedTokens int           // of a step; 0 = DefaultBatchedTokens
	BlockSize        int           // 0 = 16
	VerifyInterval   time.Duration // between residency checks; 0 = 1 min, negative = none
	UploadWorkers    int           // goroutines that hash a file and upload it; 0 = as many as processors, at most 32
	MaxLoads         int           // loads under way or waiting for their turn; 0 = 64
	LoadTime         time.Duration // of one load, its wait for its turn included; 0 = 2 h
	StepTarget       time.Duration // wanted length of a step that computes prompts and in which sequences decode; 0 = DefaultStepTarget
	// MaxQueueTime is how long a request may wait for its first place, unless it is resumed; 0 = as long as its reader does.
	MaxQueueTime time.Duration
	// SwapSpace is the bytes of host memory for preempted sequences, of all models together: a model may have as much as its cache,
	// and of that what those loaded before it leave. 0 = DefaultSwapSpace, negative = none.
	SwapSpace int64
	// IdleUnload is the time without requests after which a model that is not pinned is unloaded; 0 = never.
	IdleUnload time.Duration
	// EvictIdle is the time without requests after which a model that is not pinned may be unloaded for a load that does not fit;
	// 0 = never. It bounds how often models that do not fit together can take each other's place: each stays as long at least.
	EvictIdle time.Duration
	// SamplingDefaults gives unset knobs of a request the values that the model's file recommends, and the model another class.
	SamplingDefaults bool
	// Observe makes what a model's step loop tells its measures to; nil: nobody is told. It is called once for each load.
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
)

func (o Options) check(made int) error {
	switch {
	case o.Context > uint32(made):
		return fmt.Errorf("%w: context_length %d; the model was made for at most %d", ErrOption, o.Context, made)
	case o.MaxSequences > maxSequences:
		return fmt.Errorf("%w: max_sequences %d; at most %d", ErrOption, o.MaxSequences, maxSequences)
	case o.KVTokens != 0 && o.KVTokens < uint64(o.Context):
		return fmt.Errorf("%w: kv_tokens %d hold no sequence of context_length %d", ErrOption, o.KVTokens, o.Context)
	case o.KVTokens > 1<<31:
		return fmt.Errorf("%w: kv_tokens %d; at most %d", ErrOption, o.KVTokens, 1<<31)
	}
	return nil
}
