package sametest

import "github.com/millrace/millrace/gpuworker/engine"

// layouts are the runners that loops run on. A loop may use less of its runner than there is. The last is the one that asks are
// computed on alone: none of its sizes is that of another, so that a size that decides bits is seen.
var layouts = [...]engine.RunnerConfig{
	{KVBlocks: 360, BlockSize: 16, MaxSequences: 260, MaxBatchedTokens: 1024, MaxSampleRows: 260, MaxScoreRows: 64},
	{KVBlocks: 96, BlockSize: 32, MaxSequences: 24, MaxBatchedTokens: 300, MaxSampleRows: 24, MaxScoreRows: 33},
	{KVBlocks: 45, BlockSize: 16, MaxSequences: 9, MaxBatchedTokens: 40, MaxSampleRows: 9, MaxScoreRows: 5},
	{KVBlocks: 66, BlockSize: 16, MaxSequences: 1, MaxBatchedTokens: 512, MaxSampleRows: 1, MaxScoreRows: 512},
}

// The layouts that loops draw are those before layoutAlone.
const (
	layoutRows  = 0 // holds every row of the largest steps
	layoutAlone = len(layouts) - 1
)

// maxTopN is of every layout.
const maxTopN = 16

// sized is a layout for a model: with its type of cache, and blocks for its context where that is long.
func sized(layout int, m *model) engine.RunnerConfig {
	cfg := layouts[layout]
	cfg.KVType, cfg.MaxTopN, cfg.HostBlocks = m.kv, maxTopN, 64
	switch {
	case layout == layoutAlone:
		cfg.HostBlocks = 0
		cfg.KVBlocks = max(cfg.KVBlocks, (m.desc.Context+cfg.BlockSize-1)/cfg.BlockSize)
	case m.desc.Context > 1<<16:
		cfg.KVBlocks += m.desc.Context / cfg.BlockSize
	}
	if m.stateful() && layout != layoutAlone {
		cfg.SavedStates, cfg.HostStates = 24, 8
	}
	if m.grouped() && layout != layoutAlone { // alone they are computed with masks
		cfg.WindowBlocks, cfg.HostWindowBlocks = cfg.KVBlocks, 64
	}
	return cfg
}
