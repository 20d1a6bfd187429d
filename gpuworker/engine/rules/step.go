package rules

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Slot is what is known of a slot of a runner.
type Slot struct {
	Set        bool
	Generation uint32
	Length     int32 // positions in its history
	Sampled    bool  // the last admitted step samples for it, so that the next may say PreviousSample
}

// Slots mirrors the slots of one runner from the steps it was given.
type Slots struct {
	desc  engine.ModelDesc
	cfg   engine.RunnerConfig
	slots []Slot
	next  []Slot // scratch
}

// NewSlots begins with every slot unset.
func NewSlots(desc engine.ModelDesc, cfg engine.RunnerConfig) *Slots {
	return &Slots{desc: desc, cfg: cfg, slots: make([]Slot, cfg.MaxSequences), next: make([]Slot, cfg.MaxSequences)}
}

// Slot is the state of slot i after the last admitted step.
func (s *Slots) Slot(i int32) Slot { return s.slots[i] }

// Admit checks a step against the slots. ErrInvalid changes nothing; nil moves the slots on as the step does.
func (s *Slots) Admit(step *engine.Step) error {
	copy(s.next, s.slots)
	if err := s.preOps(step.PreOps); err != nil {
		return err
	}
	tokens, err := s.segments(step.Segments)
	if err != nil {
		return err
	}
	if err := s.rows(step, tokens); err != nil {
		return err
	}
	s.slots, s.next = s.next, s.slots
	return nil
}

func (s *Slots) preOps(ops []engine.PreOp) error {
	for i := range ops {
		op := &ops[i]
		switch op.Kind {
		case engine.SlotSet:
		case engine.BlockCopy:
			if !s.block(op.Src) || !s.block(op.Dst) {
				return refuse("pre-operation %d copies block %d to %d of %d", i, op.Src, op.Dst, s.cfg.KVBlocks)
			}
			continue
		case engine.BlockOut:
			if !s.block(op.Src) || !s.hostBlock(op.Dst) {
				return refuse("pre-operation %d copies block %d of %d out to host block %d of %d", i, op.Src, s.cfg.KVBlocks,
					op.Dst, s.cfg.HostBlocks)
			}
			continue
		case engine.BlockIn:
			if !s.hostBlock(op.Src) || !s.block(op.Dst) {
				return refuse("pre-operation %d copies host block %d of %d in to block %d of %d", i, op.Src, s.cfg.HostBlocks,
					op.Dst, s.cfg.KVBlocks)
			}
			continue
		default:
			return refuse("pre-operation %d is of kind %d", i, op.Kind)
		}
		if op.Params == nil {
			return refuse("pre-operation %d sets slot %d without parameters", i, op.Slot)
		}
		if !s.slot(op.Slot) {
			return refuse("pre-operation %d sets slot %d of %d", i, op.Slot, s.cfg.MaxSequences)
		}
		if err := CheckParams(op.Params, s.desc.Vocab, s.cfg.MaxTopN); err != nil {
			return fmt.Errorf("slot %d: %w", op.Slot, err)
		}
		if most := min(s.desc.Context, s.cfg.KVBlocks*s.cfg.BlockSize); len(op.History) > most {
			return refuse("pre-operation %d: a history of %d tokens, want at most %d", i, len(op.History), most)
		}
		for at, id := range op.History {
			if id < 0 || int(id) >= s.desc.Vocab {
				return refuse("pre-operation %d: token %d of the history is %d, not in a vocabulary of %d", i, at, id, s.desc.Vocab)
			}
		}
		s.next[op.Slot] = Slot{Set: true, Generation: op.SlotGeneration, Length: int32(len(op.History))}
	}
	return nil
}

// segments returns how many tokens they have.
func (s *Slots) segments(segs []engine.Segment) (int, error) {
	tokens := 0
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
		slot.Length = int32(end)
	}
	return tokens, nil
}

func (s *Slots) rows(step *engine.Step, tokens int) error {
	switch {
	case len(step.Samples) > s.cfg.MaxSampleRows:
		return refuse("step has %d sample rows of at most %d", len(step.Samples), s.cfg.MaxSampleRows)
	case len(step.Scores) > s.cfg.MaxScoreRows:
		return refuse("step has %d score rows of at most %d", len(step.Scores), s.cfg.MaxScoreRows)
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
	return nil
}

// named checks that a slot exists, is set, and is of that generation.
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

func (s *Slots) hostBlock(i int32) bool { return i >= 0 && int(i) < s.cfg.HostBlocks }

func refuse(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, engine.ErrInvalid)...)
}
