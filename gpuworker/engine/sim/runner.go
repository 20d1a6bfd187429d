package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// depth is the number of steps that may be in flight.
const depth = 2

// flight is a step between Submit and Wait. Its tokens are computed at once, or when its late masks
// arrive. Wait sleeps until its modelled end.
type flight struct {
	result     engine.StepResult
	candidates []engine.Candidate
	rows       []engine.SampleRow // to be sampled, with a context each
	contexts   []uint64
	nan        int32 // the row whose logits are NaN, or -1
	late       bool  // it waits for masks
	begin, end time.Time
}

// Runner has hashes in place of keys and values.
type Runner struct {
	model   *Model
	cost    engine.RunnerCost
	weights uint64 // bytes read by every step
	rules   *rules.Slots
	slots   []slot
	cache   cache
	window  window
	whole   bool    // a segment is a whole text
	starts  []int32 // by segment of the step: its first token, counted over all
	sampled []int32 // scratch: the tokens of a segment with those that were sampled
	states  states
	fault   struct {
		hang time.Duration
		nan  int32 // row, or -1
	}
	mu struct {
		sync.Mutex
		closed            bool
		flights           [depth + 1]flight // one more, because the last result stays valid until the next Wait
		submitted, waited uint64
	}
}

func newRunner(m *Model, cfg engine.RunnerConfig, cost engine.RunnerCost, weights uint64) *Runner {
	r := &Runner{
		model: m, cost: cost, weights: weights, rules: rules.NewSlots(m.desc, cfg), slots: make([]slot, cfg.MaxSequences),
		whole: m.desc.WholeTexts(),
		cache: newCache(cfg.BlockSize, cfg.KVBlocks),
	}
	if cfg.WindowBlocks > 0 {
		r.window = window{cache: newCache(cfg.BlockSize, cfg.WindowBlocks), size: m.desc.GroupWindow()}
	}
	r.fault.nan = -1
	if m.desc.StateFloats() > 0 {
		r.states = newStates(cfg)
	}
	return r
}

// Submit computes the step. Its modelled time starts at the end of the step before it.
func (r *Runner) Submit(s *engine.Step) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.closed:
		return closed("runner")
	case r.mu.submitted-r.mu.waited == depth:
		return fmt.Errorf("%d steps are in flight already: %w", depth, engine.ErrPrecondition)
	}
	if r.lateLocked() != nil {
		return fmt.Errorf("the step before waits for its masks: %w", engine.ErrPrecondition)
	}
	if err := r.rules.Admit(s, func() error { return r.hostMemory(s) }); err != nil {
		return err
	}
	f := r.flightLocked(r.mu.submitted)
	*f = flight{
		result:     engine.StepResult{Samples: f.result.Samples[:0], Scores: f.result.Scores[:0], Hidden: f.result.Hidden[:0]},
		candidates: f.candidates[:0], rows: f.rows[:0], contexts: f.contexts[:0], nan: r.fault.nan,
	}
	took := r.compute(s, f)
	f.begin = time.Now()
	if r.mu.submitted > r.mu.waited {
		if before := r.flightLocked(r.mu.submitted - 1).end; before.After(f.begin) {
			f.begin = before
		}
	}
	f.end = f.begin.Add(took + r.fault.hang)
	f.result.DeviceTime = took + r.fault.hang
	r.fault.hang, r.fault.nan = 0, -1
	r.mu.submitted++
	return nil
}

// flightLocked returns step n, counted from 0. It is valid until the Wait after its own.
func (r *Runner) flightLocked(n uint64) *flight { return &r.mu.flights[n%uint64(len(r.mu.flights))] }

// hostMemory refuses a step that is the first to write a block or state of host memory, if a test
// injected a memory fault.
func (r *Runner) hostMemory(s *engine.Step) error {
	blocks := func(op engine.PreOp) bool { return op.Kind == engine.BlockOut && r.pool(&op).host[op.Dst] == nil }
	states := func(op engine.PreOp) bool {
		_, held := r.states.host[op.Dst]
		return op.Kind == engine.StateOut && !held
	}
	// One allocation for all blocks, and one for all states.
	if slices.ContainsFunc(s.PreOps, blocks) && r.model.dev.refusals.take(engine.RefuseAlloc) {
		return fmt.Errorf("%d bytes of host memory asked: %w", r.cost.HostBytesPerBlock, engine.ErrOutOfMemory)
	}
	if slices.ContainsFunc(s.PreOps, states) && r.model.dev.refusals.take(engine.RefuseAlloc) {
		return fmt.Errorf("%d bytes of host memory asked: %w", r.cost.HostBytesPerState, engine.ErrOutOfMemory)
	}
	return nil
}

// compute runs the step and returns its modelled time.
func (r *Runner) compute(s *engine.Step, f *flight) time.Duration {
	vocab, opts := r.model.desc.Vocab, &r.model.dev.opts
	for i := range s.PreOps {
		switch op := &s.PreOps[i]; op.Kind {
		case engine.SlotSet:
			r.slots[op.Slot].set(op.Params, op.History, vocab)
		case engine.BlockCopy:
			r.pool(op).copyBlock(op.Dst, op.Src)
		case engine.BlockOut:
			r.pool(op).copyOut(op.Dst, op.Src)
		case engine.BlockIn:
			r.pool(op).copyIn(op.Dst, op.Src)
		case engine.StateOut:
			r.states.host[op.Dst] = r.states.read[r.rules.State(op.Slot, op.Src)]
		case engine.StateIn:
			r.states.read[r.rules.State(op.Slot, op.Dst)] = r.states.host[op.Src]
		}
	}
	r.states.prefixes = r.states.prefixes[:0]
	took, kv, windows := opts.StepTime, uint64(0), uint64(0)
	r.starts = r.starts[:0]
	start := int32(0)
	for i := range s.Segments {
		seg := &s.Segments[i]
		each := opts.PrefillTime
		if seg.Class == engine.Decode {
			each = opts.DecodeTime
		}
		took += each * time.Duration(len(seg.Tokens))
		kv += uint64(len(seg.Blocks))
		windows += uint64(len(seg.WindowBlocks))
		r.starts, start = append(r.starts, start), start+int32(len(seg.Tokens))
		tokens, held := r.tokensOf(seg), &r.slots[seg.Slot].history
		held.begin(seg.FirstPosition)
		cells := held.add(tokens)
		r.cache.write(seg.Blocks, int(seg.FirstPosition), tokens, cells)
		if r.window.size > 0 {
			r.window.write(seg.WindowBlocks, int(seg.FirstPosition), tokens, cells)
		}
		if r.states.read != nil {
			r.states.add(seg, r.rules.State(seg.Slot, seg.StateFrom), r.rules.State(seg.Slot, seg.StateTo), tokens)
		}
	}
	f.result.BytesRead = r.weights + kv*r.cost.BytesPerBlock + windows*r.cost.BytesPerWindowBlock + r.cost.BytesPerState*uint64(len(s.Segments))
	r.takeRows(s, f)
	if !f.late {
		r.sampleAll(f)
	}
	for _, row := range s.Scores {
		d := newDistribution(r.contextOf(s, row.TokenIndex), vocab)
		rank := d.rank(row.Target)
		f.result.Scores = append(f.result.Scores, engine.RowResult{
			Slot: -1, Position: -1, Token: row.Target, Rank: int32(rank), Logprob: d.logprob(rank),
			Candidates: r.candidates(f, d, row.TopN),
		})
	}
	for _, token := range s.Hidden {
		f.result.Hidden = appendHidden(f.result.Hidden, r.contextOf(s, token), r.model.desc.Hidden)
	}
	return took
}

// pool returns the blocks of the group that an operation is of.
func (r *Runner) pool(op *engine.PreOp) *cache {
	if op.Window {
		return &r.window.cache
	}
	return &r.cache
}

// tokensOf returns the tokens of a segment, with the samples of the previous step filled in.
func (r *Runner) tokensOf(seg *engine.Segment) []int32 {
	if !slices.Contains(seg.Tokens, engine.PreviousSample) {
		return seg.Tokens
	}
	r.sampled = append(r.sampled[:0], seg.Tokens...)
	for i, token := range r.sampled {
		if token == engine.PreviousSample {
			r.sampled[i] = r.slots[seg.Slot].lastSample
		}
	}
	return r.sampled
}

// Wait sleeps until the modelled end of the oldest step.
func (r *Runner) Wait(timeout time.Duration) (*engine.StepResult, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.closed:
		return nil, closed("runner")
	case r.mu.submitted == r.mu.waited:
		return nil, fmt.Errorf("no step is in flight: %w", engine.ErrPrecondition)
	}
	f := r.flightLocked(r.mu.waited)
	left := time.Until(f.end)
	if sleep := min(left, timeout); sleep > 0 {
		r.mu.Unlock()
		time.Sleep(sleep)
		r.mu.Lock()
	}
	if f.late { // the caller must set its masks first
		return nil, fmt.Errorf("the step waits for its masks: %w", engine.ErrTimeout)
	}
	if left > timeout {
		return nil, fmt.Errorf("%v given and %v needed: %w", timeout, left, engine.ErrTimeout)
	}
	r.mu.waited++
	return &f.result, nil
}

// Progress returns the progress of the modelled device. After Close it is zero.
func (r *Runner) Progress() engine.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return engine.Progress{}
	}
	p := engine.Progress{Submitted: r.mu.submitted, Completed: r.mu.waited}
	now := time.Now()
	for n := r.mu.waited; n < r.mu.submitted; n++ {
		f := r.flightLocked(n)
		if f.late || now.Before(f.end) {
			p.Running = max(now.Sub(f.begin), 1)
			break
		}
		p.Completed++
	}
	return p
}

// Fault injects a fault into the next step.
func (r *Runner) Fault(f engine.Fault, index int32, value uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.closed:
		return closed("runner")
	case f == engine.FaultHangStep && value <= uint64(24*time.Hour):
		r.fault.hang = time.Duration(value)
	case f == engine.FaultNaNLogits && index >= 0:
		r.fault.nan = index
	default:
		return fmt.Errorf("fault %d of row %d with value %d: %w", f, index, value, engine.ErrInvalid)
	}
	return nil
}

// Close drops the steps in flight and frees the memory.
func (r *Runner) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return closed("runner")
	}
	r.mu.closed = true
	r.cache, r.window = cache{}, window{}
	r.model.dev.give(r.cost.KVBytes, engine.KV)
	r.model.dev.give(r.cost.WorkspaceBytes, engine.Workspace)
	r.model.mu.Lock()
	r.model.mu.runners--
	r.model.mu.Unlock()
	return nil
}

var (
	_ engine.Runner     = (*Runner)(nil)
	_ engine.LateMasker = (*Runner)(nil)
	_ engine.Faulter    = (*Runner)(nil)
)
