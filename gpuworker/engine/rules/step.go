package rules

import (
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Slot is the state of a slot of a runner.
type Slot struct {
	Set        bool
	Generation uint32
	Length     int32 // positions in its history
	Sampled    bool  // the last admitted step samples for it, so that the next may use PreviousSample

	state int32 // index of the state that its last segment wrote
}

// Slots mirrors the slots and the host blocks of one runner, from its steps.
type Slots struct {
	desc    engine.ModelDesc
	cfg     engine.RunnerConfig
	slots   []Slot
	written [2]map[int32]bool // by group: host blocks that an admitted step writes
	window  int               // of the window group; 0: the runner has no such group
	whole   bool              // a segment is a whole text
	states  bool              // layers carry states
	read    []int32           // by state: up to which position it has read, or unread
	hosted  map[int32]int32

	// Scratch of the step that is checked.
	next     []Slot
	wrote    [2][]int32 // host blocks that it is the first to write, by group
	fed      []bool     // slots that an earlier segment of it feeds
	nextRead []int32
	users    []users         // by state
	putOut   map[int32]int32 // host states that it writes
}

// unread is the position of a state that no step has written.
const unread = -1

// users are the slots whose segments name a state in one step.
type users struct{ reader, writer int32 }

// Values of users besides slots.
const (
	noSlot    = -1
	manySlots = -2
)

// NewSlots returns slots that are all unset.
func NewSlots(desc engine.ModelDesc, cfg engine.RunnerConfig) *Slots {
	s := &Slots{
		desc: desc, cfg: cfg, slots: make([]Slot, cfg.MaxSequences), written: [2]map[int32]bool{{}, {}}, whole: desc.WholeTexts(),
		next: make([]Slot, cfg.MaxSequences), fed: make([]bool, cfg.MaxSequences),
	}
	if cfg.WindowBlocks > 0 {
		s.window = desc.GroupWindow()
	}
	if s.states = desc.StateFloats() > 0; s.states {
		n := cfg.MaxSequences + cfg.SavedStates
		s.read, s.nextRead, s.users = slices.Repeat([]int32{unread}, n), make([]int32, n), make([]users, n)
		s.hosted, s.putOut = map[int32]int32{}, map[int32]int32{}
	}
	return s
}

// State returns the index of a state of a slot among all states: first those of the slots, then the
// saved ones.
func (s *Slots) State(slot, id int32) int32 {
	if id == 0 {
		return slot
	}
	return int32(s.cfg.MaxSequences) + id - 1
}

// Slot returns the state of slot i after the last admitted step.
func (s *Slots) Slot(i int32) Slot { return s.slots[i] }

// Read returns up to which position a state of a slot has read after the last admitted step, or -1
// if no step has written it.
func (s *Slots) Read(slot, id int32) int32 { return s.read[s.State(slot, id)] }

// Admit checks a step against the slots and host blocks, and updates them if the step is valid. If
// it returns ErrInvalid, nothing has changed. also, if not nil, may refuse a valid step, with the
// same effect.
func (s *Slots) Admit(step *engine.Step, also func() error) error {
	copy(s.next, s.slots)
	copy(s.nextRead, s.read)
	s.wrote[0], s.wrote[1] = s.wrote[0][:0], s.wrote[1][:0]
	clear(s.putOut)
	err := s.check(step)
	if err == nil && also != nil {
		err = also()
	}
	if err != nil {
		for group, wrote := range s.wrote {
			for _, block := range wrote {
				delete(s.written[group], block)
			}
		}
		return err
	}
	s.slots, s.next = s.next, s.slots
	s.read, s.nextRead = s.nextRead, s.read
	maps.Copy(s.hosted, s.putOut)
	return nil
}

func (s *Slots) check(step *engine.Step) error {
	for i := range step.PreOps {
		if err := s.preOp(&step.PreOps[i]); err != nil {
			return fmt.Errorf("pre-operation %d %w", i, err)
		}
	}
	tokens, err := s.segments(step.Segments)
	if err != nil {
		return err
	}
	return s.rows(step, tokens)
}

// preOp checks a pre-operation. Its error continues the words "pre-operation N".
func (s *Slots) preOp(op *engine.PreOp) error {
	switch op.Kind {
	case engine.SlotSet:
		return s.set(op)
	case engine.BlockCopy, engine.BlockOut, engine.BlockIn:
		return s.moveBlock(op)
	case engine.StateOut, engine.StateIn:
		return s.moveState(op)
	}
	return refuse("is of kind %d", op.Kind)
}

// moveBlock checks a copy of a block. Its error continues the words "pre-operation N".
func (s *Slots) moveBlock(op *engine.PreOp) error {
	group, blocks, host := 0, s.cfg.KVBlocks, s.cfg.HostBlocks
	if op.Window {
		if s.window == 0 {
			return refuse("copies a block of the window group, and the runner has none")
		}
		group, blocks, host = 1, s.cfg.WindowBlocks, s.cfg.HostWindowBlocks
	}
	in := func(i int32, n int) bool { return i >= 0 && int(i) < n }
	switch op.Kind {
	case engine.BlockOut:
		if !in(op.Src, blocks) || !in(op.Dst, host) {
			return refuse("copies block %d of %d out to host block %d of %d", op.Src, blocks, op.Dst, host)
		}
		if !s.written[group][op.Dst] {
			s.written[group][op.Dst] = true
			s.wrote[group] = append(s.wrote[group], op.Dst)
		}
	case engine.BlockIn:
		if !in(op.Src, host) || !in(op.Dst, blocks) {
			return refuse("copies host block %d of %d in to block %d of %d", op.Src, host, op.Dst, blocks)
		}
		if !s.written[group][op.Src] {
			return refuse("copies host block %d in, which was never written", op.Src)
		}
	case engine.BlockCopy, engine.SlotSet, engine.StateOut, engine.StateIn:
		if !in(op.Src, blocks) || !in(op.Dst, blocks) {
			return refuse("copies block %d to %d of %d", op.Src, op.Dst, blocks)
		}
	}
	return nil
}

// windowTable checks the window table of segment i, whose positions are checked.
func (s *Slots) windowTable(i int, seg *engine.Segment, end int64) error {
	switch {
	case s.window == 0 && len(seg.WindowBlocks) > 0:
		return refuse("segment %d has a window table, and the runner has no window group", i)
	case s.window == 0:
		return nil
	case int64(len(seg.WindowBlocks))*int64(s.cfg.BlockSize) < end:
		return refuse("segment %d ends at position %d and its %d window blocks hold %d", i, end, len(seg.WindowBlocks),
			len(seg.WindowBlocks)*s.cfg.BlockSize)
	}
	first := engine.FirstWindowBlock(int(seg.FirstPosition), s.window, s.cfg.BlockSize)
	for at, id := range seg.WindowBlocks {
		if (id != engine.NoBlock || at >= first) && (id < 0 || int(id) >= s.cfg.WindowBlocks) {
			return refuse("segment %d names window block %d of %d at entry %d, and sees entries from %d on", i, id, s.cfg.WindowBlocks, at, first)
		}
	}
	return nil
}

// moveState checks a copy of a state to host memory or back. Its error continues the words
// "pre-operation N".
func (s *Slots) moveState(op *engine.PreOp) error {
	state, host, text := op.Src, op.Dst, "copies state %d of %d out to host state %d of %d"
	if op.Kind == engine.StateIn {
		state, host, text = op.Dst, op.Src, "copies into state %d of %d host state %d of %d"
	}
	switch {
	case !s.states:
		return refuse("copies a state, and no layer of the model carries one")
	case !s.slot(op.Slot):
		return refuse("copies a state of slot %d of %d", op.Slot, s.cfg.MaxSequences)
	case state < 0 || int(state) > s.cfg.SavedStates || host < 0 || int(host) >= s.cfg.HostStates:
		return refuse(text, state, s.cfg.SavedStates, host, s.cfg.HostStates)
	}
	at := s.State(op.Slot, state)
	if op.Kind == engine.StateIn {
		read, ok := s.putOut[host]
		if !ok {
			read, ok = s.hosted[host]
		}
		if !ok {
			return refuse("copies host state %d in, which was never written", host)
		}
		s.nextRead[at] = read
		return nil
	}
	if s.nextRead[at] == unread {
		return refuse("copies state %d of slot %d out, which was never written", state, op.Slot)
	}
	s.putOut[host] = s.nextRead[at]
	return nil
}

// segmentStates checks the states that segment i names, and notes what it writes.
func (s *Slots) segmentStates(i int, seg *engine.Segment, end int32) error {
	if !s.states {
		if seg.StateFrom != 0 || seg.StateTo != 0 {
			return refuse("segment %d names states %d and %d, and no layer of the model carries one", i, seg.StateFrom, seg.StateTo)
		}
		return nil
	}
	for _, id := range []int32{seg.StateFrom, seg.StateTo} {
		if id < 0 || int(id) > s.cfg.SavedStates {
			return refuse("segment %d names state %d of %d", i, id, s.cfg.SavedStates)
		}
	}
	from, to := s.State(seg.Slot, seg.StateFrom), s.State(seg.Slot, seg.StateTo)
	if s.fed[seg.Slot] && s.next[seg.Slot].state != from {
		return refuse("segment %d reads state %d of slot %d, and the segment before it wrote another", i, seg.StateFrom, seg.Slot)
	}
	if seg.FirstPosition > 0 {
		if read := s.nextRead[from]; read != seg.FirstPosition {
			return refuse("segment %d begins at position %d, and state %d of slot %d has read %d", i, seg.FirstPosition, seg.StateFrom, seg.Slot,
				read)
		}
		u := &s.users[from]
		if u.writer != noSlot && u.writer != seg.Slot {
			return refuse("segment %d of slot %d reads state %d, which slot %d writes in this step", i, seg.Slot, seg.StateFrom, u.writer)
		}
		if u.reader != noSlot && u.reader != seg.Slot {
			u.reader = manySlots
		} else {
			u.reader = seg.Slot
		}
	}
	u := &s.users[to]
	if other := u.writer; other != noSlot && other != seg.Slot {
		return refuse("segment %d of slot %d writes state %d, which slot %d writes in this step", i, seg.Slot, seg.StateTo, other)
	}
	if u.reader != noSlot && u.reader != seg.Slot {
		return refuse("segment %d of slot %d writes state %d, which another slot reads in this step", i, seg.Slot, seg.StateTo)
	}
	u.writer, s.nextRead[to], s.next[seg.Slot].state = seg.Slot, end, to
	return nil
}

func (s *Slots) set(op *engine.PreOp) error {
	if !s.slot(op.Slot) {
		return refuse("sets slot %d of %d", op.Slot, s.cfg.MaxSequences)
	}
	if op.Params == nil {
		return refuse("sets slot %d without parameters", op.Slot)
	}
	if err := CheckParams(op.Params, s.desc.Vocab, s.cfg.MaxTopN); err != nil {
		return fmt.Errorf("sets slot %d: %w", op.Slot, err)
	}
	if most := min(s.desc.Context, s.positions()); len(op.History) > most {
		return refuse("sets slot %d with a history of %d tokens, want at most %d", op.Slot, len(op.History), most)
	}
	for at, id := range op.History {
		if id < 0 || int(id) >= s.desc.Vocab {
			return refuse("sets slot %d with token %d at position %d, not in a vocabulary of %d", op.Slot, id, at, s.desc.Vocab)
		}
	}
	s.next[op.Slot] = Slot{Set: true, Generation: op.SlotGeneration, Length: int32(len(op.History))}
	return nil
}

// positions returns the number of positions of the whole block pool.
func (s *Slots) positions() int { return s.cfg.KVBlocks * s.cfg.BlockSize }

// segments checks the segments and returns their number of tokens.
func (s *Slots) segments(segs []engine.Segment) (int, error) {
	tokens := 0
	clear(s.fed)
	for i := range s.users {
		s.users[i] = users{noSlot, noSlot}
	}
	for i := range segs {
		seg := &segs[i]
		tokens += len(seg.Tokens)
		if err := s.named(seg.Slot, seg.SlotGeneration); err != nil {
			return 0, fmt.Errorf("segment %d: %w", i, err)
		}
		slot := &s.next[seg.Slot]
		end := int64(seg.FirstPosition) + int64(len(seg.Tokens))
		switch {
		case len(seg.Tokens) == 0:
			return 0, refuse("segment %d has no tokens", i)
		case seg.Class != engine.Prefill && seg.Class != engine.Decode:
			return 0, refuse("segment %d has class %d", i, seg.Class)
		case tokens > s.cfg.MaxBatchedTokens:
			return 0, refuse("step has more than %d tokens", s.cfg.MaxBatchedTokens)
		case seg.FirstPosition < 0 || seg.FirstPosition > slot.Length:
			return 0, refuse("segment %d begins at position %d and slot %d holds %d", i, seg.FirstPosition, seg.Slot, slot.Length)
		case s.whole && (seg.FirstPosition != 0 || s.fed[seg.Slot]):
			return 0, refuse("segment %d begins at position %d of slot %d: a layer sees later positions, so a segment is a whole text", i,
				seg.FirstPosition, seg.Slot)
		case s.fed[seg.Slot] && seg.FirstPosition != slot.Length:
			return 0, refuse("segment %d begins at position %d inside an earlier segment of slot %d that ends at %d", i,
				seg.FirstPosition, seg.Slot, slot.Length)
		case end > int64(s.positions()):
			return 0, refuse("segment %d ends at position %d beyond the %d of all blocks", i, end, s.positions())
		case end > int64(s.desc.Context):
			return 0, refuse("segment %d ends at position %d beyond the context of %d", i, end, s.desc.Context)
		case int64(len(seg.Blocks))*int64(s.cfg.BlockSize) < end:
			return 0, refuse("segment %d ends at position %d and its %d blocks hold %d", i, end, len(seg.Blocks),
				len(seg.Blocks)*s.cfg.BlockSize)
		}
		for _, id := range seg.Blocks {
			if !s.block(id) {
				return 0, refuse("segment %d names block %d of %d", i, id, s.cfg.KVBlocks)
			}
		}
		if err := s.windowTable(i, seg, end); err != nil {
			return 0, err
		}
		for _, id := range seg.Tokens {
			switch {
			case id == engine.PreviousSample:
				if seg.Class != engine.Decode || len(seg.Tokens) != 1 {
					return 0, refuse("segment %d: the previous sample stands only as the one token of a decode segment", i)
				}
				if !slot.Sampled {
					return 0, refuse("segment %d: slot %d sampled nothing in the step before", i, seg.Slot)
				}
			case id < 0 || int(id) >= s.desc.Vocab:
				return 0, refuse("segment %d: token %d is not in a vocabulary of %d", i, id, s.desc.Vocab)
			}
		}
		if err := s.segmentStates(i, seg, int32(end)); err != nil {
			return 0, err
		}
		slot.Length, s.fed[seg.Slot] = int32(end), true
	}
	return tokens, nil
}

func (s *Slots) rows(step *engine.Step, tokens int) error {
	switch {
	case len(step.Samples) > s.cfg.MaxSampleRows:
		return refuse("step has %d sample rows of at most %d", len(step.Samples), s.cfg.MaxSampleRows)
	case len(step.Scores) > s.cfg.MaxScoreRows:
		return refuse("step has %d score rows of at most %d", len(step.Scores), s.cfg.MaxScoreRows)
	case len(step.Hidden) > s.cfg.MaxHiddenRows:
		return refuse("step has %d hidden rows of at most %d", len(step.Hidden), s.cfg.MaxHiddenRows)
	}
	for i := range s.next {
		s.next[i].Sampled = false
	}
	words := (s.desc.Vocab + 31) / 32
	for i := range step.Samples {
		row := &step.Samples[i]
		if err := s.named(row.Slot, row.SlotGeneration); err != nil {
			return fmt.Errorf("sample row %d: %w", i, err)
		}
		switch {
		case row.TokenIndex < 0 || int(row.TokenIndex) >= tokens:
			return refuse("sample row %d is of token %d of %d", i, row.TokenIndex, tokens)
		case row.Position < 0 || int(row.Position) > s.desc.Context:
			return refuse("sample row %d is for position %d of a context of %d", i, row.Position, s.desc.Context)
		case row.Mask != nil && row.MaskLate:
			return refuse("sample row %d has a mask that is to come late", i)
		case row.Mask != nil && len(row.Mask) != words:
			return refuse("sample row %d has a mask of %d words, want %d", i, len(row.Mask), words)
		}
		s.next[row.Slot].Sampled = true
	}
	for i, row := range step.Scores {
		switch {
		case row.TokenIndex < 0 || int(row.TokenIndex) >= tokens:
			return refuse("score row %d is of token %d of %d", i, row.TokenIndex, tokens)
		case row.Target < 0 || int(row.Target) >= s.desc.Vocab:
			return refuse("score row %d: target %d is not in a vocabulary of %d", i, row.Target, s.desc.Vocab)
		case row.TopN < 0 || int(row.TopN) > s.cfg.MaxTopN:
			return refuse("score row %d wants %d candidates of at most %d", i, row.TopN, s.cfg.MaxTopN)
		}
	}
	for i, token := range step.Hidden {
		if token < 0 || int(token) >= tokens {
			return refuse("hidden row %d is of token %d of %d", i, token, tokens)
		}
	}
	return nil
}

// named checks that a slot exists, is set, and has the generation.
func (s *Slots) named(i int32, generation uint32) error {
	switch {
	case !s.slot(i):
		return refuse("slot %d of %d", i, s.cfg.MaxSequences)
	case !s.next[i].Set:
		return refuse("slot %d is not set", i)
	case s.next[i].Generation != generation:
		return refuse("slot %d is of generation %d, not %d", i, s.next[i].Generation, generation)
	}
	return nil
}

func (s *Slots) slot(i int32) bool  { return i >= 0 && int(i) < s.cfg.MaxSequences }
func (s *Slots) block(i int32) bool { return i >= 0 && int(i) < s.cfg.KVBlocks }

func refuse(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, engine.ErrInvalid)...)
}
