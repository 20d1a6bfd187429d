package enginetest

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// guard bounds the time of a step.
const guard = 2 * time.Minute

// Request is one sequence for Play.
type Request struct {
	Prompt []int32
	Tokens int // to generate
	Params *engine.SlotParams
	Chunk  int                // prompt tokens a step; 0 = all at once
	Class  engine.KernelClass // of the prompt's segments
	Start  int                // step at which it begins
	Slot   int32
	Blocks []int32 // nil = taken from the pool in order
	Score  bool    // score every prompt token but the first
	Hidden []int   // positions of the prompt whose hidden rows are wanted, ascending
	Window int     // of the window group, whose blocks it reuses once they left the window; 0 = no group
}

// Output is the result of a request.
type Output struct {
	Tokens   []int32
	Logprobs []float32          // of Tokens, raw
	Tops     []engine.Candidate // of every generated token, one after another
	Scores   []engine.RowResult // of prompt tokens 1 .. len-1; candidates are copied
	Hidden   []float32          // the wanted hidden rows
}

// equal returns an error for the first difference of two outputs in tokens or bits.
func (o Output) equal(other Output) error {
	if !slices.Equal(o.Tokens, other.Tokens) {
		return fmt.Errorf("tokens %v and %v", o.Tokens, other.Tokens)
	}
	for i := range o.Logprobs {
		if math.Float32bits(o.Logprobs[i]) != math.Float32bits(other.Logprobs[i]) {
			return fmt.Errorf("logprob of token %d: %v and %v", i, o.Logprobs[i], other.Logprobs[i])
		}
	}
	if err := equalCandidates(o.Tops, other.Tops); err != nil {
		return err
	}
	if len(o.Hidden) != len(other.Hidden) {
		return fmt.Errorf("%d numbers of hidden rows and %d", len(o.Hidden), len(other.Hidden))
	}
	for i := range o.Hidden {
		if math.Float32bits(o.Hidden[i]) != math.Float32bits(other.Hidden[i]) {
			return fmt.Errorf("number %d of the hidden rows: %v and %v", i, o.Hidden[i], other.Hidden[i])
		}
	}
	if len(o.Scores) != len(other.Scores) {
		return fmt.Errorf("%d scores and %d", len(o.Scores), len(other.Scores))
	}
	for i, s := range o.Scores {
		q := other.Scores[i]
		if math.Float32bits(s.Logprob) != math.Float32bits(q.Logprob) || s.Rank != q.Rank {
			return fmt.Errorf("score of prompt token %d: %v (rank %d) and %v (rank %d)", i+1, s.Logprob, s.Rank, q.Logprob, q.Rank)
		}
		if err := equalCandidates(s.Candidates, q.Candidates); err != nil {
			return fmt.Errorf("score of prompt token %d: %w", i+1, err)
		}
	}
	return nil
}

func equalCandidates(a, b []engine.Candidate) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d candidates and %d", len(a), len(b))
	}
	for i := range a {
		if a[i].Token != b[i].Token || math.Float32bits(a[i].Logprob) != math.Float32bits(b[i].Logprob) {
			return fmt.Errorf("candidate %d: %v and %v", i, a[i], b[i])
		}
	}
	return nil
}

// ringBlocks is the number of blocks that a sequence needs in the window group.
func ringBlocks(window, chunk, size int) int32 { return int32((window+chunk+size-2)/size + 1) }

// windowRing returns the window table of a segment of positions from to end-1, with blocks of a
// ring.
func windowRing(first, ring int32, from, end, window, size int) []int32 {
	table := make([]int32, (end+size-1)/size)
	for i := range table {
		table[i] = engine.NoBlock
		if i >= engine.FirstWindowBlock(from, window, size) {
			table[i] = first + int32(i)%ring
		}
	}
	return table
}

// playing is a running request.
type playing struct {
	Request
	out  Output
	done int // positions computed
	// Its blocks of the window group are a ring of `ring` ids from `first` on.
	first, ring int32
	size        int // positions a block
}

// Play runs requests together on a new runner. Every step has one piece of each unfinished request,
// in their order.
func Play(m engine.Model, cfg engine.RunnerConfig, requests ...Request) (outputs []Output, err error) {
	r, err := m.NewRunner(cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := r.Close(); err == nil {
			err = closeErr
		}
	}()
	return PlayOn(r, cfg, requests...)
}

// PlayOn runs requests together on a runner of that configuration. The runner must have no step in
// flight; its earlier steps do not matter.
func PlayOn(r engine.Runner, cfg engine.RunnerConfig, requests ...Request) (outputs []Output, err error) {
	active := make([]*playing, len(requests))
	pool, windowPool := int32(0), int32(0)
	for i, q := range requests {
		if q.Blocks == nil {
			for range (len(q.Prompt) + q.Tokens + cfg.BlockSize - 1) / cfg.BlockSize {
				q.Blocks = append(q.Blocks, pool)
				pool++
			}
		}
		if q.Chunk == 0 {
			q.Chunk = len(q.Prompt)
		}
		active[i] = &playing{Request: q, size: cfg.BlockSize}
		if q.Window > 0 {
			active[i].first, active[i].ring = windowPool, ringBlocks(q.Window, q.Chunk, cfg.BlockSize)
			windowPool += active[i].ring
		}
	}
	for round := 0; ; round++ {
		step, takers, finished := &engine.Step{}, []func(*engine.StepResult) error{}, true
		for _, p := range active {
			if p.done == len(p.Prompt)+max(p.Tokens-1, 0) {
				continue
			}
			finished = false
			if round >= p.Start {
				takers = append(takers, p.add(step))
			}
		}
		if finished {
			break
		}
		if len(step.Segments) == 0 {
			continue
		}
		if err := r.Submit(step); err != nil {
			return nil, err
		}
		res, err := r.Wait(guard)
		if err != nil {
			return nil, err
		}
		for _, take := range takers {
			if err := take(res); err != nil {
				return nil, err
			}
		}
	}
	for _, p := range active {
		outputs = append(outputs, p.out)
	}
	return outputs, nil
}

// add adds the next piece of the request to the step. It returns the function that reads its rows
// from the result.
func (p *playing) add(step *engine.Step) func(*engine.StepResult) error {
	seg := engine.Segment{Slot: p.Slot, SlotGeneration: 1, FirstPosition: int32(p.done), Class: p.Class}
	if p.done == 0 {
		step.PreOps = append(step.PreOps, engine.PreOp{Slot: p.Slot, SlotGeneration: 1, Params: p.Params})
	}
	if p.done < len(p.Prompt) {
		seg.Tokens = p.Prompt[p.done:min(p.done+p.Chunk, len(p.Prompt))]
	} else {
		seg.Class, seg.Tokens = engine.Decode, p.out.Tokens[len(p.out.Tokens)-1:]
	}
	first := 0
	for i := range step.Segments {
		first += len(step.Segments[i].Tokens)
	}
	end := p.done + len(seg.Tokens)
	seg.Blocks = p.Blocks
	if p.Window > 0 {
		seg.WindowBlocks = windowRing(p.first, p.ring, p.done, end, p.Window, p.size)
	}
	step.Segments = append(step.Segments, seg)
	scoreAt := len(step.Scores)
	if p.Score {
		for i := p.done; i < min(end, len(p.Prompt)-1); i++ {
			step.Scores = append(step.Scores, engine.ScoreRow{
				TokenIndex: int32(first + i - p.done), Target: p.Prompt[i+1], TopN: p.Params.TopN,
			})
		}
	}
	scores := len(step.Scores) - scoreAt
	hiddenAt := len(step.Hidden)
	for _, position := range p.Hidden {
		if position >= p.done && position < end {
			step.Hidden = append(step.Hidden, int32(first+position-p.done))
		}
	}
	hidden := len(step.Hidden) - hiddenAt
	sampleAt := -1
	if end >= len(p.Prompt) && p.Tokens > 0 {
		sampleAt = len(step.Samples)
		step.Samples = append(step.Samples, engine.SampleRow{
			TokenIndex: int32(first + len(seg.Tokens) - 1), Slot: p.Slot, SlotGeneration: 1, Position: int32(end),
		})
	}
	p.done = end
	return func(res *engine.StepResult) error {
		for _, s := range res.Scores[scoreAt : scoreAt+scores] {
			s.Candidates = slices.Clone(s.Candidates)
			p.out.Scores = append(p.out.Scores, s)
		}
		if hidden > 0 {
			width := len(res.Hidden) / len(step.Hidden)
			p.out.Hidden = append(p.out.Hidden, res.Hidden[hiddenAt*width:(hiddenAt+hidden)*width]...)
		}
		if sampleAt < 0 {
			return nil
		}
		row := res.Samples[sampleAt]
		if row.Status != engine.RowOK || row.Slot != p.Slot || row.Position != int32(end) {
			return fmt.Errorf("sample row for slot %d position %d: %+v", p.Slot, end, row)
		}
		p.out.Tokens = append(p.out.Tokens, row.Token)
		p.out.Logprobs = append(p.out.Logprobs, row.Logprob)
		p.out.Tops = append(p.out.Tops, row.Candidates...)
		return nil
	}
}
