package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

const fakeVocab = 1000

// fakeRunner samples a hash of seed and all earlier ids, and refuses steps that break the contract: it is the loop's
// conscience. A KV model checks that every position read was written through the same block.
type fakeRunner struct {
	cfg    engine.RunnerConfig
	gate   chan struct{} // when not nil, each step takes a token from it
	failAt int           // step number that fails; 0 = none
	// refuse says why a step is not taken, before it changes anything; keep why the result of one is not given.
	refuse  func(*engine.Step) error
	keep    func() error
	nanSlot int32 // slot whose samples are NaN; -1 = none
	prompts engine.KernelClass

	mu      sync.Mutex
	steps   int
	tokens  int
	largest int // tokens of the largest step
	slots   map[int32]*fakeSlot
	owner   map[int32]string // block -> slot/generation that wrote it
	pending *engine.StepResult
	broken  error // the first rule that a step broke; the test fails of it
}

type fakeSlot struct {
	generation uint32
	params     engine.SlotParams
	history    []int32
}

func newFake(cfg engine.RunnerConfig) *fakeRunner {
	return &fakeRunner{cfg: cfg, nanSlot: -1, slots: map[int32]*fakeSlot{}, owner: map[int32]string{}}
}

func (f *fakeRunner) Submit(step *engine.Step) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		if err := f.refuse(step); err != nil {
			return err
		}
	}
	f.steps++
	if f.steps == f.failAt {
		return engine.ErrDevice
	}
	f.pending = &engine.StepResult{}
	if err := f.run(step); err != nil && f.broken == nil {
		f.broken = err
	}
	return f.broken
}

func (f *fakeRunner) run(step *engine.Step) error {
	for _, op := range step.PreOps {
		f.slots[op.Slot] = &fakeSlot{generation: op.SlotGeneration, params: *op.Params}
	}
	var prefix [][]int32 // history after each token of the step
	seen := map[int32]bool{}
	for _, seg := range step.Segments {
		slot := f.slots[seg.Slot]
		switch {
		case slot == nil || slot.generation != seg.SlotGeneration:
			return fmt.Errorf("slot %d generation %d is not set", seg.Slot, seg.SlotGeneration)
		case int(seg.FirstPosition) != len(slot.history):
			return fmt.Errorf("segment at %d, history %d", seg.FirstPosition, len(slot.history))
		case len(seg.Tokens) == 0 || len(seg.Blocks)*f.cfg.BlockSize < len(slot.history)+len(seg.Tokens):
			return fmt.Errorf("%d blocks for %d+%d tokens", len(seg.Blocks), len(slot.history), len(seg.Tokens))
		case seen[seg.Slot]:
			return errors.New("two segments of one slot")
		}
		seen[seg.Slot] = true
		me := fmt.Sprintf("%d/%d", seg.Slot, seg.SlotGeneration)
		for i := range seg.Tokens {
			class, position := f.prompts, len(slot.history)
			if position >= int(slot.params.PromptLength) {
				class = engine.Decode
			}
			if class != seg.Class {
				return fmt.Errorf("position %d computed by class %d", position, seg.Class)
			}
			for at := range position {
				if b := seg.Blocks[at/f.cfg.BlockSize]; at%f.cfg.BlockSize == 0 && f.owner[b] != me {
					return fmt.Errorf("block %d of %s was written by %s", b, me, f.owner[b])
				}
			}
			f.owner[seg.Blocks[position/f.cfg.BlockSize]] = me
			slot.history = append(slot.history, seg.Tokens[i])
			prefix = append(prefix, slot.history[:len(slot.history):len(slot.history)])
		}
	}
	if len(prefix) > f.cfg.MaxBatchedTokens || len(step.Samples) > f.cfg.MaxSampleRows || len(step.Scores) > f.cfg.MaxScoreRows {
		return errors.New("step too large")
	}
	f.tokens += len(prefix)
	f.largest = max(f.largest, len(prefix))
	for _, row := range step.Samples {
		slot := f.slots[row.Slot]
		history := prefix[row.TokenIndex]
		if int(row.Position) != len(history) {
			return fmt.Errorf("sample position %d after %d tokens", row.Position, len(history))
		}
		r := engine.RowResult{Slot: row.Slot, Position: row.Position, Rank: 1, Token: fakeToken(slot.params, history)}
		if row.Slot == f.nanSlot {
			r.Status = engine.RowNaN
		}
		f.pending.Samples = append(f.pending.Samples, r)
	}
	for _, row := range step.Scores {
		f.pending.Scores = append(f.pending.Scores, engine.RowResult{
			Slot: -1, Position: -1, Token: row.Target, Logprob: -float32(len(prefix[row.TokenIndex])), Rank: 1,
		})
	}
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
	return f.pending, nil
}

func (f *fakeRunner) Progress() engine.Progress { return engine.Progress{} }
func (f *fakeRunner) Close() error              { return nil }

func (f *fakeRunner) computed() (steps, tokens int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.steps, f.tokens
}
