package sametest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// patience is how long a step may take before it counts as hung.
const patience = 2 * time.Minute

// solo computes one ask at a time on a runner of its own, in the plainest way: slot 0, blocks from 0 on, the whole prompt in one
// segment where a step holds it, then a token a step, each step waited for before the next is made.
type solo struct {
	runner     engine.Runner
	cfg        engine.RunnerConfig
	generation uint32
}

func (s *solo) solve(a *ask) (answer, error) {
	s.generation++
	blocks := make([]int32, (a.length()+s.cfg.BlockSize-1)/s.cfg.BlockSize)
	for i := range blocks {
		blocks[i] = int32(i)
	}
	var out answer
	preOps := []engine.PreOp{{SlotGeneration: s.generation, Params: &a.params}}
	class, run, at := a.class, a.prompt, 0
	guided := a.begin()
	for {
		tokens := run[:min(len(run), s.limit(a))]
		run = run[len(tokens):]
		step := &engine.Step{PreOps: preOps, Segments: []engine.Segment{{
			SlotGeneration: s.generation, Class: class, FirstPosition: int32(at), Tokens: tokens, Blocks: blocks,
		}}}
		preOps = nil
		if a.topN >= 0 {
			for i := range tokens {
				if next := at + i + 1; next < len(a.prompt) {
					step.Scores = append(step.Scores, engine.ScoreRow{
						TokenIndex: int32(i), Target: a.prompt[next], TopN: int32(a.topN),
					})
				}
			}
		}
		at += len(tokens)
		if len(run) == 0 && a.tokens > 0 {
			step.Samples = []engine.SampleRow{{
				TokenIndex: int32(len(tokens) - 1), SlotGeneration: s.generation, Position: int32(at),
			}}
			if !guided.Free() { // the loop's masks follow their step
				step.Samples[0].Mask = make([]uint32, guided.Words())
				if err := guided.Mask(step.Samples[0].Mask); err != nil {
					return answer{}, fmt.Errorf("alone, at position %d: %w", at, err)
				}
			}
		}
		result, err := s.do(step)
		if err != nil {
			return answer{}, fmt.Errorf("alone, at position %d: %w", at, err)
		}
		out.scores = append(out.scores, cloned(result.Scores)...)
		if len(run) > 0 {
			continue
		}
		if out.end = out.take(a, result.Samples); out.end != "" {
			return out, nil
		}
		class, run = engine.Decode, []int32{out.rows[len(out.rows)-1].Token}
		if guided, err = behind(guided, run); err != nil {
			return answer{}, err
		}
	}
}

// limit is how many tokens of a prompt go into one step.
func (s *solo) limit(a *ask) int {
	if a.topN >= 0 {
		return min(s.cfg.MaxBatchedTokens, s.cfg.MaxScoreRows)
	}
	return s.cfg.MaxBatchedTokens
}

// take adds the row sampled last and says why the answer ends with it; empty: it does not.
func (a *answer) take(of *ask, samples []engine.RowResult) (end string) {
	if of.tokens == 0 {
		return endLength
	}
	switch row := cloned(samples)[0]; {
	case row.Status == engine.RowNaN:
		return endNaN
	case row.Status == engine.RowEmpty:
		return endEmpty
	default:
		a.rows = append(a.rows, of.read(row))
		if slices.Contains(of.stops, row.Token) {
			return stopEnd(row.Token)
		}
		if len(a.rows) == of.tokens {
			return endLength
		}
		return ""
	}
}

// read is the part of a row that the reader of an ask compares: forced tokens have no logprobs unless it reads them.
func (a *ask) read(row engine.RowResult) engine.RowResult {
	if a.expression == "" || a.logprobs || a.params.TopN > 0 {
		return row
	}
	return engine.RowResult{Status: row.Status, Slot: row.Slot, Position: row.Position, Token: row.Token}
}

func stopEnd(id int32) string { return fmt.Sprint(endStop, " ", id) }

func (s *solo) do(step *engine.Step) (*engine.StepResult, error) {
	if err := s.runner.Submit(step); err != nil {
		return nil, err
	}
	return s.runner.Wait(patience)
}

// cloned are rows that outlive the result they came with.
func cloned(rows []engine.RowResult) []engine.RowResult {
	out := slices.Clone(rows)
	for i := range out {
		out[i].Candidates = slices.Clone(out[i].Candidates)
	}
	return out
}

// answers remembers what asks give alone. Several goroutines may ask: an answer is computed once, by the first that wants it.
type answers struct {
	oneClass bool
	mu       sync.Mutex
	known    map[string]func() (answer, error)
}

func (k *answers) get(a *ask, compute func(*ask) (answer, error)) (answer, error) {
	key := a.key(k.oneClass)
	k.mu.Lock()
	once := k.known[key]
	if once == nil {
		own := *a
		once = sync.OnceValues(func() (answer, error) { return compute(&own) })
		if k.known == nil {
			k.known = map[string]func() (answer, error){}
		}
		k.known[key] = once
	}
	k.mu.Unlock()
	return once()
}
