package model

import (
	"fmt"
	"runtime"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Options of one load; the zero value leaves everything to the worker.
type Options struct {
	ExpectDigest *engine.Digest
	KVTokens     uint64       // tokens of the KV cache
	Context      uint32       // longest sequence in tokens
	KVType       *engine.Type // F32, F16 or BF16
	MaxSequences uint32
}

// Config of a Manager.
type Config struct {
	Dir              string
	MaxSequences     int           // of a model, unless its load says otherwise; 0 = 16
	MaxBatchedTokens int           // of a step; 0 = DefaultBatchedTokens
	BlockSize        int           // 0 = 16
	VerifyInterval   time.Duration // between residency checks; 0 = 1 min, negative = none
	UploadWorkers    int           // goroutines that hash a file and upload it; 0 = as many as processors, at most 32
	MaxLoads         int           // loads under way or waiting for their turn; 0 = 64
	LoadTime         time.Duration // of one load, its wait for its turn included; 0 = 2 h
}

func (c *Config) setDefaults() {
	if c.MaxSequences == 0 {
		c.MaxSequences = 16
	}
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
	// defaultContexts is how many contexts the cache holds where nobody chose, if they take no more than a quarter of
	// the free memory: other models want some too.
	defaultContexts = 8
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

// plan chooses the runner of a model and the longest sequence it serves. cost prices a configuration; free is what the
// device has left for KV cache and workspace.
func (c *Config) plan(o Options, made int, kv engine.Type, free uint64,
	cost func(engine.RunnerConfig) (engine.RunnerCost, error)) (engine.RunnerConfig, int, engine.RunnerCost, error) {
	r := engine.RunnerConfig{
		KVBlocks: 1, BlockSize: c.BlockSize, MaxSequences: c.MaxSequences, MaxBatchedTokens: c.MaxBatchedTokens,
		MaxScoreRows: maxScoreRows, MaxTopN: maxTopN, KVType: kv,
	}
	if o.MaxSequences > 0 {
		r.MaxSequences = int(o.MaxSequences)
	}
	r.MaxSampleRows = r.MaxSequences
	r.MaxBatchedTokens = max(r.MaxBatchedTokens, r.MaxSequences)
	price, err := cost(r)
	if err != nil {
		return r, 0, price, err
	}
	blocks := func(tokens uint64) uint64 { return (tokens + uint64(c.BlockSize) - 1) / uint64(c.BlockSize) }
	room := uint64(0)
	if free > price.WorkspaceBytes {
		room = (free - price.WorkspaceBytes) / max(price.BytesPerBlock, 1)
	}
	context := made
	if o.Context > 0 {
		context = int(o.Context)
	}
	want := blocks(uint64(context))
	switch {
	case o.KVTokens > 0:
		want = blocks(o.KVTokens)
	case o.Context > 0:
		want = max(want, min(want*defaultContexts, room/4))
	default:
		// The model's own context is wished for, not asked for: a cache that holds less serves shorter sequences.
		want = max(min(want, room), min(want*defaultContexts, room/4), min(blocks(minContext), want))
	}
	r.KVBlocks = int(min(want, 1<<30))
	price, err = cost(r)
	return r, min(context, r.KVBlocks*c.BlockSize), price, err
}

// minContext is the shortest sequence, in tokens, that a cache must hold to be of use where nobody chose.
const minContext = 2048
