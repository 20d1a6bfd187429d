package model

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// hostSpace shares host memory of the worker among the models: one for preempted sequences, and one
// for the host tiers of prefix caches. It only counts bytes; an engine allocates a block when it
// first writes to it. It is safe for concurrent use.
type hostSpace struct {
	mu struct {
		sync.Mutex
		free uint64 // bytes not reserved by a model
	}
}

// hostPlaces is a number of host blocks, of both groups, and of host states.
type hostPlaces struct{ blocks, windows, states int }

// bytes is the host memory of places.
func (p hostPlaces) bytes(price engine.RunnerCost) uint64 {
	return uint64(p.blocks)*price.HostBytesPerBlock + uint64(p.windows)*price.HostBytesPerWindowBlock + uint64(p.states)*price.HostBytesPerState
}

// share returns how many places a model gets: at most `most`, and at most the free bytes, half of
// them for states, or for the window group. An engine without host blocks prices them at 0 bytes
// and gets none.
func (s *hostSpace) share(most hostPlaces, price engine.RunnerCost) (p hostPlaces) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.mu.free
	if price.HostBytesPerState > 0 {
		p.states = int(min(uint64(most.states), free/2/price.HostBytesPerState))
		free -= uint64(p.states) * price.HostBytesPerState
	}
	if price.HostBytesPerWindowBlock > 0 {
		p.windows = int(min(uint64(most.windows), free/2/price.HostBytesPerWindowBlock))
		free -= uint64(p.windows) * price.HostBytesPerWindowBlock
		if price.HostBytesPerBlock == 0 { // all layers are in the window group
			p.blocks = most.blocks
		}
	}
	if price.HostBytesPerBlock > 0 {
		p.blocks = int(min(uint64(most.blocks), free/price.HostBytesPerBlock))
	}
	return p
}

// reserve reserves places and returns their bytes. Loads run one after another, so the result of
// share is still valid. If the price rose since, reserve returns the free bytes.
func (s *hostSpace) reserve(p hostPlaces, price engine.RunnerCost) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	reserved := min(p.bytes(price), s.mu.free)
	s.mu.free -= reserved
	return reserved
}

// release returns reserved bytes.
func (s *hostSpace) release(bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.free += bytes
}

// tierTimes is how many times the cache of the device a model's host tier is at most, so that one
// model with a small cache leaves the others some.
const tierTimes = 8

// shareHost gives the runner of a model its host memory: for preempted sequences at most the size
// of its cache, with a state for each sequence, and for the host tier at most tierTimes of it. A
// model whose prefixes need window blocks or states has no tier without room for these.
func (l *loader) shareHost(inst *Instance, price engine.RunnerCost) {
	r := &inst.Runner
	inst.swap = l.swap.share(hostPlaces{r.KVBlocks, r.WindowBlocks, r.MaxSequences}, price)
	tier := l.tier.share(hostPlaces{min(tierTimes*r.KVBlocks, maxBlocks), tierTimes * r.WindowBlocks, tierTimes * r.SavedStates}, price)
	if tier.bytes(price) > 0 && !inst.Facts.WholeTexts && tier.blocks > 0 && (r.WindowBlocks == 0 || tier.windows > 0) && (price.BytesPerState == 0 || tier.states > 0) {
		inst.tier = tier
	}
	r.HostBlocks = inst.swap.blocks + inst.tier.blocks
	r.HostWindowBlocks = inst.swap.windows + inst.tier.windows
	r.HostStates = inst.swap.states + inst.tier.states
	if l.cfg.HostCache > 0 && inst.tier.blocks == 0 {
		l.logger.Warn("no host tier for the prefix cache of this model", "model", l.name, "host_cache_bytes", l.cfg.HostCache)
	}
}

// reserveHost reserves the host memory of a model and returns a function that gives it back.
func (l *loader) reserveHost(inst *Instance, price engine.RunnerCost) (release func()) {
	swap, tier := l.swap.reserve(inst.swap, price), l.tier.reserve(inst.tier, price)
	return func() {
		l.swap.release(swap)
		l.tier.release(tier)
	}
}

// probeBytes is about how many bytes the measurement of copies moves each way, in at most maxProbe
// blocks.
const (
	probeBytes = 64 << 20
	maxProbe   = 8192
)

// measureCopies returns the rate of copies between KV blocks and host memory in bytes a second; 0:
// unknown. It compares a step that copies blocks out and back with one that does not. The first
// such step makes the engine allocate the memory.
func (i *Instance) measureCopies() (float64, error) {
	bytes, window := i.hostBlock, false
	n, places := i.Runner.KVBlocks, i.Runner.HostBlocks
	if bytes == 0 { // all layers are in the window group
		bytes, window, n, places = i.hostWindow, true, i.Runner.WindowBlocks, i.Runner.HostWindowBlocks
	}
	if bytes == 0 {
		return 0, nil
	}
	n = min(n, places, int(max(probeBytes/bytes, 1)), maxProbe)
	var moves []engine.PreOp
	for _, kind := range []engine.PreOpKind{engine.BlockOut, engine.BlockIn} {
		for b := range int32(n) {
			moves = append(moves, engine.PreOp{Kind: kind, Src: b, Dst: b, Window: window})
		}
	}
	var took [3]time.Duration
	for try, ops := range [][]engine.PreOp{moves, nil, moves} {
		step := i.firstStep(1, uint32(2+try))
		step.PreOps = append(ops, step.PreOps...)
		var err error
		if took[try], err = i.execute(step); errors.Is(err, engine.ErrOutOfMemory) {
			return 0, nil // the tier shrinks when the engine refuses more
		} else if err != nil {
			return 0, fmt.Errorf("measure copies to host memory: %w", err)
		}
	}
	if took[2] <= took[1] {
		return 0, nil
	}
	return float64(2*n) * float64(bytes) / (took[2] - took[1]).Seconds(), nil
}

// execute submits a step and returns how long it took: on the device, if the engine says so.
func (i *Instance) execute(step *engine.Step) (time.Duration, error) {
	begin := time.Now()
	if err := i.runner.Submit(step); err != nil {
		return 0, err
	}
	result, err := i.runner.Wait(time.Minute)
	if err != nil {
		return 0, err
	}
	if result.Samples[0].Status != engine.RowOK {
		return 0, batch.ErrBadLogits
	}
	if result.DeviceTime > 0 {
		return result.DeviceTime, nil
	}
	return time.Since(begin), nil
}

// firstStep returns a step that computes the first n tokens of slot 0.
func (i *Instance) firstStep(n int, generation uint32) *engine.Step {
	blocks := make([]int32, (n+i.Runner.BlockSize-1)/i.Runner.BlockSize)
	for b := range blocks {
		blocks[b] = int32(b)
	}
	step := &engine.Step{
		PreOps: []engine.PreOp{{SlotGeneration: generation, Params: &engine.SlotParams{
			PromptLength: int32(n), TopP: 1, TypicalP: 1, RepetitionPenalty: 1,
		}}},
		Segments: []engine.Segment{{SlotGeneration: generation, Tokens: make([]int32, n), Blocks: blocks}},
		Samples:  []engine.SampleRow{{TokenIndex: int32(n - 1), SlotGeneration: generation, Position: int32(n)}},
	}
	if i.window > 0 {
		step.Segments[0].WindowBlocks = blocks
	}
	return step
}
