package model

import (
	"github.com/millrace/millrace/gpuworker/engine"
)

const (
	// defaultContexts is how many contexts the cache holds where nobody chose, if they take no more than a quarter of
	// the free memory: other models want some too.
	defaultContexts = 8
	// shareWished is how many tokens of the cache there are then for each sequence of the batch, within the same quarter.
	shareWished = 1024
	// shareNeeded is how many there must be for more than leastSequences, where nobody chose how many sequences.
	shareNeeded = 256
	// leastSequences is what is planned for also where the cache is small.
	leastSequences = 16
	// minContext is the shortest sequence, in tokens, that a cache must hold to be of use where nobody chose.
	minContext = 2048
	// maxBlocks keeps the ids of blocks within 32 bits.
	maxBlocks = 1 << 30
)

// planner chooses the runner of a model.
type planner struct {
	cfg     Config
	options Options
	made    int         // longest sequence that the model was made for, in tokens
	kv      engine.Type // of the cache
	free    uint64      // bytes that the device has left for KV cache and workspace
	cost    func(engine.RunnerConfig) (engine.RunnerCost, error)
}

// plan chooses all of the runner but its blocks of host memory, and the longest sequence that the model serves. sequences is
// how many to plan for; where nobody chose that, it is halved until the cache has shareNeeded tokens for each: a batch that no
// cache can feed takes workspace for nothing.
func (p *planner) plan(sequences int, chosen bool) (engine.RunnerConfig, int, engine.RunnerCost, error) {
	if !chosen {
		sequences = min(sequences, p.cfg.MaxBatchedTokens)
	}
	for {
		r, context, price, err := p.planFor(sequences)
		if err != nil || chosen || sequences <= leastSequences || r.KVBlocks >= sequences*p.blocks(min(context, shareNeeded)) {
			return r, context, price, err
		}
		sequences = max(sequences/2, leastSequences)
	}
}

// blocks is how many blocks hold so many tokens.
func (p *planner) blocks(tokens int) int { return (tokens + p.cfg.BlockSize - 1) / p.cfg.BlockSize }

// planFor is plan for so many sequences.
func (p *planner) planFor(sequences int) (engine.RunnerConfig, int, engine.RunnerCost, error) {
	r := engine.RunnerConfig{
		KVBlocks: 1, BlockSize: p.cfg.BlockSize, MaxSequences: sequences, MaxBatchedTokens: max(p.cfg.MaxBatchedTokens, sequences),
		MaxSampleRows: sequences, MaxScoreRows: maxScoreRows, MaxTopN: maxTopN, KVType: p.kv, ActType: p.options.ActType,
	}
	price, err := p.cost(r)
	if err != nil {
		return r, 0, price, err
	}
	room := 0
	if p.free > price.WorkspaceBytes {
		room = int(min((p.free-price.WorkspaceBytes)/max(price.BytesPerBlock, 1), maxBlocks))
	}
	context := p.made
	if p.options.Context > 0 {
		context = int(p.options.Context)
	}
	want := p.blocks(context)
	wish := min(max(want*defaultContexts, sequences*p.blocks(min(context, shareWished))), room/4)
	switch {
	case p.options.KVTokens > 0:
		want = p.blocks(int(p.options.KVTokens))
	case p.options.Context > 0:
		want = max(want, wish)
	default:
		// The model's own context is wished for, not asked for: a cache that holds less serves shorter sequences.
		want = max(min(want, room), wish, min(p.blocks(minContext), want))
	}
	r.KVBlocks = min(want, maxBlocks)
	price, err = p.cost(r)
	return r, min(context, r.KVBlocks*p.cfg.BlockSize), price, err
}
