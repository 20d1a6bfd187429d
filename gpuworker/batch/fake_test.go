package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

const fakeVocab = 1000

// fakeRunner samples a hash of the seed and all earlier ids, and refuses steps that break the
// engine's contract. It models the KV cache: each cell records the ids and kernel classes that
// produced it, and every position that a segment reads must hold what its own ids and classes would
// produce. It computes at once and returns results in order.
type fakeRunner struct {
	cfg    engine.RunnerConfig
	gate   chan struct{} // if not nil, each step waits for a token from it
	failAt int           // step number that fails; 0 = none
	// refuse returns why a step is refused, before it changes anything. keep returns why the result
	// of a step is not returned.
	refuse  func(*engine.Step) error
	keep    func() error
	watch   func(*engine.Step) error         // sees each accepted step and returns an error if it is wrong
	lasts   func(*engine.Step) time.Duration // how long the device takes for it; nil = no time
	nanSlot int32                            // slot whose samples are NaN; -1 = none
	// prompts is the class that must compute a slot's prompt; nil = Prefill.
	prompts  func(engine.SlotParams) engine.KernelClass
	oneClass bool // both classes make the same cells
	stateful bool // layers carry a state: the chain of all ids, which a segment must find where it reads
	window   int  // of the window group, whose blocks have cells of their own; 0: there is no group

	mu       sync.Mutex
	steps    int
	tokens   int
	largest  int // tokens of the largest step
	slots    map[int32]*fakeSlot
	cells    map[int32][]uint64 // of each block, see inGroup; 0 = never written
	host     map[int32][]uint64
	states   map[int32]fakeState // by id, the slots' own as negative numbers
	hosted   map[int32]fakeState
	results  []*engine.StepResult // in flight, the oldest first
	ends     []time.Time          // when they are available
	end      time.Time            // when the last one is available
	deepest  int                  // most steps in flight
	previous int                  // tokens that were PreviousSample
	again    int                  // positions that were computed again
	late     []lateRow            // sample rows of the newest step that wait for masks
	broken   error                // the first broken rule; it fails the test
}

// lateRow is a sample row whose mask is still to come.
type lateRow struct {
	result *engine.RowResult
	slot   *fakeSlot
}

// fakeState is what the first tokens of a sequence leave.
type fakeState struct {
	tokens int
	chain  uint64
}

// place returns the key of a state of a slot.
func place(slot, id int32) int32 {
	if id == 0 {
		return -1 - slot
	}
	return id
}

type fakeSlot struct {
	generation uint32
	params     engine.SlotParams
	history    []int32
	chain      []uint64 // required content of each cell
	sampledIn  int      // the last step that sampled for it
	last       int32    // the id it sampled
}

func newFake(cfg engine.RunnerConfig) *fakeRunner {
	return &fakeRunner{
		cfg: cfg, nanSlot: -1, slots: map[int32]*fakeSlot{}, cells: map[int32][]uint64{}, host: map[int32][]uint64{},
		states: map[int32]fakeState{}, hosted: map[int32]fakeState{},
	}
}

func (f *fakeRunner) Submit(step *engine.Step) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		if err := f.refuse(step); err != nil {
			return err
		}
	}
	if len(f.late) > 0 {
		return errors.New("a step before masks of the one before")
	}
	f.steps++
	if f.steps == f.failAt {
		return engine.ErrDevice
	}
	result, err := f.run(step)
	if len(f.results) == depth {
		err = errors.New("too many steps in flight")
	}
	if err == nil && f.watch != nil {
		err = f.watch(step)
	}
	if err != nil && f.broken == nil {
		f.broken = err
	}
	f.results = append(f.results, result)
	f.deepest = max(f.deepest, len(f.results))
	if f.lasts != nil {
		result.DeviceTime = f.lasts(step)
		if now := time.Now(); now.After(f.end) {
			f.end = now
		}
		f.end = f.end.Add(result.DeviceTime)
	}
	f.ends = append(f.ends, f.end)
	return f.broken
}

func (f *fakeRunner) run(step *engine.Step) (*engine.StepResult, error) {
	result := &engine.StepResult{}
	if err := f.preOps(step.PreOps); err != nil {
		return result, err
	}
	if len(step.Segments) == 0 {
		return result, errors.New("a step without segments")
	}
	var prefix [][]int32      // history after each token of the step
	seen := map[int32]int32{} // by slot: where its last segment left its state
	readers, writers := map[int32]int32{}, map[int32]int32{}
	written := map[int32]int32{} // block -> slot whose segment writes to it
	for i := range step.Segments {
		seg := &step.Segments[i]
		if before, again := seen[seg.Slot]; again && (!f.stateful || before != seg.StateFrom) {
			return result, errors.New("two segments of one slot")
		}
		seen[seg.Slot] = seg.StateTo
		if err := f.checkStates(seg, readers, writers); err != nil {
			return result, err
		}
		if err := f.segment(seg, &prefix, written); err != nil {
			return result, err
		}
	}
	for i := range step.Segments {
		for _, b := range append(slices.Clone(step.Segments[i].Blocks), grouped(step.Segments[i].WindowBlocks)...) {
			if by, ok := written[b]; ok && by != step.Segments[i].Slot {
				return result, fmt.Errorf("slot %d writes to block %d, which slot %d reads", by, b, step.Segments[i].Slot)
			}
		}
	}
	if len(prefix) > f.cfg.MaxBatchedTokens || len(step.Samples) > f.cfg.MaxSampleRows || len(step.Scores) > f.cfg.MaxScoreRows ||
		len(step.Hidden) > f.cfg.MaxHiddenRows {
		return result, errors.New("step too large")
	}
	f.tokens += len(prefix)
	f.largest = max(f.largest, len(prefix))
	for _, row := range step.Samples {
		slot := f.slots[row.Slot]
		history := prefix[row.TokenIndex]
		if int(row.Position) != len(history) {
			return result, fmt.Errorf("sample position %d after %d tokens", row.Position, len(history))
		}
		r := engine.RowResult{Slot: row.Slot, Position: row.Position, Rank: 1, Token: fakeToken(slot.params, history)}
		slot.sampledIn, slot.last = f.steps, r.Token
		if row.Slot == f.nanSlot {
			r.Status = engine.RowNaN
		}
		result.Samples = append(result.Samples, r)
	}
	for i, row := range step.Samples {
		if row.MaskLate {
			f.late = append(f.late, lateRow{&result.Samples[i], f.slots[row.Slot]})
		}
	}
	for _, row := range step.Scores {
		result.Scores = append(result.Scores, engine.RowResult{
			Slot: -1, Position: -1, Token: row.Target, Logprob: -float32(len(prefix[row.TokenIndex])), Rank: 1,
		})
	}
	for _, at := range step.Hidden {
		result.Hidden = append(result.Hidden, fakeHidden(prefix[at])...)
	}
	return result, nil
}

// fakeHidden is the hidden row of a token behind its history. Its numbers are of very different
// sizes, so that the order of a sum shows.
func fakeHidden(history []int32) []float32 {
	token := float32(fakeToken(engine.SlotParams{}, history))
	return []float32{float32(len(history)), token * 1e12, 1 / (token + 1), float32(math.Pow(-7, float64(len(history)%20)))}
}

// inGroup returns the key of a block of the window group.
func inGroup(block int32) int32 { return -1 - block }

// grouped returns the keys of the blocks of a window table.
func grouped(table []int32) (keys []int32) {
	for _, b := range table {
		if b != engine.NoBlock {
			keys = append(keys, inGroup(b))
		}
	}
	return keys
}

func (f *fakeRunner) preOps(ops []engine.PreOp) error {
	c, moves := &f.cfg, 0
	for _, op := range ops {
		if op.Kind != engine.SlotSet {
			moves++
		}
		if most := c.KVBlocks + c.HostBlocks + c.HostStates + c.WindowBlocks + c.HostWindowBlocks; moves > most {
			return fmt.Errorf("%d moves, at most %d", moves, most)
		}
		hostBlocks := f.cfg.HostBlocks
		if op.Window {
			if f.window == 0 {
				return errors.New("a block of a window group")
			}
			if hostBlocks = f.cfg.HostWindowBlocks; op.Kind == engine.BlockOut && int(op.Dst) >= hostBlocks {
				return fmt.Errorf("window block %d goes out to host block %d of %d", op.Src, op.Dst, hostBlocks)
			}
			op.Src, op.Dst, hostBlocks = inGroup(op.Src), inGroup(op.Dst), 0
		}
		switch op.Kind {
		case engine.SlotSet:
			slot := &fakeSlot{generation: op.SlotGeneration, params: *op.Params}
			if old := f.slots[op.Slot]; old != nil && old.generation == op.SlotGeneration {
				return fmt.Errorf("generation %d of slot %d is set twice", op.SlotGeneration, op.Slot)
			}
			for _, id := range op.History {
				f.append(slot, id)
			}
			f.slots[op.Slot] = slot
		case engine.BlockCopy:
			if f.cells[op.Src] == nil {
				return fmt.Errorf("block %d is copied and was never written", op.Src)
			}
			f.cells[op.Dst] = slices.Clone(f.cells[op.Src])
		case engine.BlockOut:
			if (op.Dst < 0) != op.Window || op.Dst >= 0 && int(op.Dst) >= hostBlocks || f.cells[op.Src] == nil {
				return fmt.Errorf("block %d goes out to host block %d of %d", op.Src, op.Dst, hostBlocks)
			}
			f.host[op.Dst] = slices.Clone(f.cells[op.Src])
		case engine.BlockIn:
			if f.host[op.Src] == nil {
				return fmt.Errorf("host block %d was never written", op.Src)
			}
			f.cells[op.Dst] = slices.Clone(f.host[op.Src])
		case engine.StateOut:
			if _, ok := f.states[place(op.Slot, op.Src)]; !ok || op.Dst < 0 || int(op.Dst) >= f.cfg.HostStates {
				return fmt.Errorf("state %d of slot %d goes out to %d of %d", op.Src, op.Slot, op.Dst, f.cfg.HostStates)
			}
			f.hosted[op.Dst] = f.states[place(op.Slot, op.Src)]
		case engine.StateIn:
			if _, ok := f.hosted[op.Src]; !ok {
				return fmt.Errorf("host state %d was never written", op.Src)
			}
			f.states[place(op.Slot, op.Dst)] = f.hosted[op.Src]
		}
	}
	return nil
}

// class is the kernel class that must compute a position of a slot.
func (f *fakeRunner) class(slot *fakeSlot, position int) engine.KernelClass {
	switch {
	case position >= int(slot.params.PromptLength):
		return engine.Decode
	case f.prompts != nil:
		return f.prompts(slot.params)
	}
	return engine.Prefill
}

// append adds an id to a slot's history and computes what its cell must hold.
func (f *fakeRunner) append(slot *fakeSlot, id int32) {
	before, class := uint64(1), uint64(f.class(slot, len(slot.history)))
	if n := len(slot.chain); n > 0 {
		before = slot.chain[n-1]
	}
	if f.oneClass {
		class = 0
	}
	h := (before ^ uint64(uint32(id))<<1 ^ class) * 0x9e3779b97f4a7c15
	slot.history, slot.chain = append(slot.history, id), append(slot.chain, h^h>>29|1)
}

func (f *fakeRunner) segment(seg *engine.Segment, prefix *[][]int32, written map[int32]int32) error {
	slot, size := f.slots[seg.Slot], f.cfg.BlockSize
	switch {
	case slot == nil || slot.generation != seg.SlotGeneration:
		return fmt.Errorf("slot %d generation %d is not set", seg.Slot, seg.SlotGeneration)
	case int(seg.FirstPosition) > len(slot.history):
		return fmt.Errorf("segment at %d, history %d", seg.FirstPosition, len(slot.history))
	case len(seg.Tokens) == 0 || len(seg.Blocks)*size < int(seg.FirstPosition)+len(seg.Tokens):
		return fmt.Errorf("%d blocks for %d+%d tokens", len(seg.Blocks), seg.FirstPosition, len(seg.Tokens))
	}
	f.again += len(slot.history) - int(seg.FirstPosition)
	slot.history, slot.chain = slot.history[:seg.FirstPosition], slot.chain[:seg.FirstPosition]
	for at, want := range slot.chain {
		cells := f.cells[seg.Blocks[at/size]]
		if cells == nil || cells[at%size] != want {
			return fmt.Errorf("slot %d reads position %d from block %d, which holds something else", seg.Slot, at, seg.Blocks[at/size])
		}
	}
	if err := f.windowTable(seg, slot); err != nil {
		return err
	}
	for _, id := range seg.Tokens {
		if id == engine.PreviousSample {
			if seg.Class != engine.Decode || len(seg.Tokens) != 1 || slot.sampledIn != f.steps-1 {
				return fmt.Errorf("slot %d has no previous sample: it sampled in step %d of %d", seg.Slot, slot.sampledIn, f.steps)
			}
			id = slot.last
			f.previous++
		}
		position := len(slot.history)
		if class := f.class(slot, position); class != seg.Class {
			return fmt.Errorf("position %d computed by class %d", position, seg.Class)
		}
		f.append(slot, id)
		blocks := []int32{seg.Blocks[position/size]}
		if f.window > 0 {
			blocks = append(blocks, inGroup(seg.WindowBlocks[position/size]))
		}
		for _, block := range blocks {
			if by, ok := written[block]; ok && by != seg.Slot {
				return fmt.Errorf("slots %d and %d write to block %d", by, seg.Slot, block)
			}
			written[block] = seg.Slot
			if f.cells[block] == nil {
				f.cells[block] = make([]uint64, size)
			}
			f.cells[block][position%size] = slot.chain[position]
		}
		*prefix = append(*prefix, slot.history[:len(slot.history):len(slot.history)])
	}
	if f.stateful {
		f.states[place(seg.Slot, seg.StateTo)] = fakeState{len(slot.history), slot.chain[len(slot.history)-1]}
	}
	return nil
}

// windowTable checks that the window table of a segment holds what its first position sees.
func (f *fakeRunner) windowTable(seg *engine.Segment, slot *fakeSlot) error {
	if f.window == 0 {
		if len(seg.WindowBlocks) > 0 {
			return errors.New("a segment has a window table")
		}
		return nil
	}
	size, first, end := f.cfg.BlockSize, int(seg.FirstPosition), int(seg.FirstPosition)+len(seg.Tokens)
	if len(seg.WindowBlocks)*size < end {
		return fmt.Errorf("%d window blocks for %d tokens", len(seg.WindowBlocks), end)
	}
	for i := engine.FirstWindowBlock(first, f.window, size); i < len(seg.WindowBlocks); i++ {
		if b := seg.WindowBlocks[i]; b < 0 || int(b) >= f.cfg.WindowBlocks {
			return fmt.Errorf("slot %d at %d sees entry %d of its window table, which is %d", seg.Slot, first, i, b)
		}
	}
	for at := max(0, first+1-f.window); at < first; at++ {
		cells := f.cells[inGroup(seg.WindowBlocks[at/size])]
		if cells == nil || cells[at%size] != slot.chain[at] {
			return fmt.Errorf("slot %d reads position %d from window block %d, which holds something else", seg.Slot, at, seg.WindowBlocks[at/size])
		}
	}
	return nil
}

// checkStates checks the state that a segment reads, and that no other slot's segment of the step
// writes a state that it names.
func (f *fakeRunner) checkStates(seg *engine.Segment, readers, writers map[int32]int32) error {
	if !f.stateful {
		if seg.StateFrom != 0 || seg.StateTo != 0 {
			return errors.New("a segment names a state")
		}
		return nil
	}
	if most := int32(f.cfg.SavedStates); seg.StateFrom < 0 || seg.StateFrom > most || seg.StateTo < 0 || seg.StateTo > most {
		return fmt.Errorf("states %d and %d of %d", seg.StateFrom, seg.StateTo, most)
	}
	slot, from, to := f.slots[seg.Slot], place(seg.Slot, seg.StateFrom), place(seg.Slot, seg.StateTo)
	if seg.FirstPosition > 0 && slot != nil && int(seg.FirstPosition) <= len(slot.chain) {
		want := fakeState{int(seg.FirstPosition), slot.chain[seg.FirstPosition-1]}
		if got := f.states[from]; got != want {
			return fmt.Errorf("slot %d at %d reads state %d, which holds %+v and not %+v", seg.Slot, seg.FirstPosition, seg.StateFrom, got, want)
		}
		if by, ok := writers[from]; ok && by != seg.Slot {
			return fmt.Errorf("slot %d reads state %d, which slot %d writes", seg.Slot, seg.StateFrom, by)
		}
		if by, ok := readers[from]; ok && by != seg.Slot {
			readers[from] = -1
		} else {
			readers[from] = seg.Slot
		}
	}
	if by, ok := writers[to]; ok && by != seg.Slot {
		return fmt.Errorf("slots %d and %d write state %d", by, seg.Slot, seg.StateTo)
	}
	if by, ok := readers[to]; ok && by != seg.Slot {
		return fmt.Errorf("slot %d writes state %d, which another reads", seg.Slot, seg.StateTo)
	}
	writers[to] = seg.Slot
	return nil
}

func fakeToken(p engine.SlotParams, history []int32) int32 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, p.Seed)
	_ = binary.Write(h, binary.LittleEndian, p.OutputIndex)
	_ = binary.Write(h, binary.LittleEndian, history)
	return int32(h.Sum64() % fakeVocab)
}

func (f *fakeRunner) Wait(timeout time.Duration) (*engine.StepResult, error) {
	if f.keep != nil {
		if err := f.keep(); err != nil {
			return nil, err
		}
	}
	if f.gate != nil {
		select {
		case <-f.gate:
		case <-time.After(timeout):
			return nil, engine.ErrTimeout
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.results) == 0 {
		return nil, fmt.Errorf("no step is in flight: %w", engine.ErrPrecondition)
	}
	if left := time.Until(f.ends[0]); left > 0 {
		f.mu.Unlock()
		time.Sleep(min(left, timeout))
		f.mu.Lock()
		if left > timeout {
			return nil, engine.ErrTimeout
		}
	}
	if len(f.results) == 1 && len(f.late) > 0 {
		return nil, engine.ErrTimeout
	}
	result := f.results[0]
	f.results, f.ends = f.results[1:], f.ends[1:]
	return result, nil
}

// Masks moves each sample to the next id that its mask allows.
func (f *fakeRunner) Masks(masks [][]uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(masks) != len(f.late) || len(masks) == 0 {
		return fmt.Errorf("%d masks for %d rows: %w", len(masks), len(f.late), engine.ErrInvalid)
	}
	for i, row := range f.late {
		row.result.Token = maskedToken(row.result.Token, masks[i])
		row.slot.last = row.result.Token
	}
	f.late = nil
	return nil
}

// maskedToken is the first id from id on, in a circle, that a mask allows.
func maskedToken(id int32, mask []uint32) int32 {
	for range fakeVocab {
		if mask[id>>5]&(1<<(id&31)) != 0 {
			return id
		}
		id = (id + 1) % fakeVocab
	}
	return -1
}

func (f *fakeRunner) Progress() engine.Progress { return engine.Progress{} }
func (f *fakeRunner) Close() error              { return nil }

func (f *fakeRunner) computed() (steps, tokens int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.steps, f.tokens
}
