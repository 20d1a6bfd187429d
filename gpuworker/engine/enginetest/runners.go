package enginetest

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// rig is a small model with one runner.
type rig struct {
	t     *testing.T
	model engine.Model
	r     engine.Runner
	desc  engine.Uniform
	cfg   engine.RunnerConfig
}

func newRig(t *testing.T, opener func(*testing.T) engine.Device, spoil func(*engine.RunnerConfig)) *rig {
	t.Helper()
	shape := Small()
	shape.Layers = 1
	g := rigOf(t, opener, shape.Model(), spoil)
	g.desc = shape
	return g
}

// rigOf returns a rig of another model. Its desc is not set.
func rigOf(t *testing.T, opener func(*testing.T) engine.Device, desc engine.ModelDesc, spoil func(*engine.RunnerConfig)) *rig {
	t.Helper()
	g := &rig{t: t, cfg: Sizes()}
	if spoil != nil {
		spoil(&g.cfg)
	}
	dev := open(t, opener)
	skipUnbuilt(t, dev, &desc)
	skipRefused(t, dev, desc)
	g.model = Load(t, dev, Random(desc, all(engine.F16), 42))
	g.r = NewRunner(t, g.model, g.cfg)
	return g
}

// do runs a step and returns a copy of its result.
func (g *rig) do(s *engine.Step) *engine.StepResult {
	g.t.Helper()
	require.NoError(g.t, g.r.Submit(s))
	return g.wait()
}

func (g *rig) wait() *engine.StepResult {
	g.t.Helper()
	res, err := g.r.Wait(guard)
	require.NoError(g.t, err)
	return &engine.StepResult{
		Samples: cloneRows(res.Samples), Scores: cloneRows(res.Scores), DeviceTime: res.DeviceTime, BytesRead: res.BytesRead,
	}
}

func cloneRows(rows []engine.RowResult) []engine.RowResult {
	rows = slices.Clone(rows)
	for i := range rows {
		rows[i].Candidates = slices.Clone(rows[i].Candidates)
	}
	return rows
}

func set(slot int32, generation uint32, p *engine.SlotParams) engine.PreOp {
	return engine.PreOp{Slot: slot, SlotGeneration: generation, Params: p}
}

func span(from, to int32) []int32 {
	var out []int32
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

// prompt returns a step that sets slot 0 and runs 20 tokens of it, with a sample and a score.
func prompt() *engine.Step {
	return &engine.Step{
		PreOps:   []engine.PreOp{set(0, 1, Plain(7, 1))},
		Segments: []engine.Segment{{SlotGeneration: 1, Tokens: span(50, 70), Blocks: []int32{4, 2}}},
		Samples:  []engine.SampleRow{{TokenIndex: 19, SlotGeneration: 1, Position: 20}},
		Scores:   []engine.ScoreRow{{TokenIndex: 3, Target: 54, TopN: 2}},
	}
}

// next returns a decode step of slot 0 at a position.
func next(at int32, token int32) *engine.Step {
	return &engine.Step{
		Segments: []engine.Segment{{
			SlotGeneration: 1, Class: engine.Decode, FirstPosition: at, Tokens: []int32{token}, Blocks: []int32{4, 2, 9, 1},
		}},
		Samples: []engine.SampleRow{{SlotGeneration: 1, Position: at + 1}},
	}
}

func testRunner(t *testing.T, opener func(*testing.T) engine.Device, _ Options) {
	t.Run("gives a row for every row", func(t *testing.T) {
		g := newRig(t, opener, nil)
		step := prompt()
		step.PreOps[0].Params.TopN = 5
		res := g.do(step)
		require.Len(t, res.Samples, 1)
		require.Len(t, res.Scores, 1)
		s := res.Samples[0]
		require.Equal(t, engine.RowOK, s.Status)
		require.EqualValues(t, 0, s.Slot)
		require.EqualValues(t, 20, s.Position)
		require.True(t, s.Token >= 0 && int(s.Token) < g.desc.Vocab)
		require.Len(t, s.Candidates, 5)
		for i := 1; i < 5; i++ {
			require.GreaterOrEqual(t, s.Candidates[i-1].Logprob, s.Candidates[i].Logprob, "best first")
		}
		for i, c := range s.Candidates {
			if c.Token == s.Token {
				require.EqualValues(t, i+1, s.Rank)
				require.Equal(t, c.Logprob, s.Logprob)
			}
		}
		score := res.Scores[0]
		require.EqualValues(t, -1, score.Slot)
		require.EqualValues(t, -1, score.Position)
		require.EqualValues(t, 54, score.Token)
		require.Len(t, score.Candidates, 2)
		require.LessOrEqual(t, score.Logprob, score.Candidates[0].Logprob)
		require.Positive(t, score.Rank)
		require.Positive(t, res.BytesRead)
	})
	t.Run("refuses a wrong step and changes nothing", testRefusals(opener))
	t.Run("takes the token of the step before at depth two", func(t *testing.T) {
		const n = 12
		alone := newRig(t, opener, nil)
		var want []int32
		res := alone.do(prompt())
		want = append(want, res.Samples[0].Token)
		for i := int32(20); len(want) < n; i++ {
			want = append(want, alone.do(next(i, want[len(want)-1])).Samples[0].Token)
		}
		g := newRig(t, opener, nil)
		require.NoError(t, g.r.Submit(prompt()))
		var got []int32
		for i := int32(20); len(got) < n; i++ {
			require.NoError(t, g.r.Submit(next(i, engine.PreviousSample)))
			got = append(got, g.wait().Samples[0].Token)
		}
		g.wait()
		require.Equal(t, want, got)
	})
	t.Run("keeps two steps in flight and not three", func(t *testing.T) {
		g := newRig(t, opener, nil)
		_, err := g.r.Wait(0)
		require.ErrorIs(t, err, engine.ErrPrecondition, "none is in flight")
		require.NoError(t, g.r.Submit(prompt()))
		require.NoError(t, g.r.Submit(next(20, 7)))
		require.ErrorIs(t, g.r.Submit(next(21, 8)), engine.ErrPrecondition)
		require.EqualValues(t, 20, g.wait().Samples[0].Position)
		require.NoError(t, g.r.Submit(next(21, 8)), "the refused step left no trace")
		require.EqualValues(t, 21, g.wait().Samples[0].Position)
		require.EqualValues(t, 22, g.wait().Samples[0].Position)
		p := g.r.Progress()
		require.Equal(t, engine.Progress{Submitted: 3, Completed: 3}, p)
	})
	t.Run("goes on from a rollback as if the dropped tokens never were", func(t *testing.T) {
		g := newRig(t, opener, nil)
		g.do(prompt())
		want := []int32{}
		for i, token := range []int32{11, 12, 13} {
			want = append(want, g.do(next(20+int32(i), token)).Samples[0].Token)
		}
		for i, token := range []int32{91, 92, 93, 94} { // a wrong way, into the next block
			g.do(next(23+int32(i), token))
		}
		got := []int32{}
		for i, token := range []int32{11, 12, 13} {
			got = append(got, g.do(next(20+int32(i), token)).Samples[0].Token)
		}
		require.Equal(t, want, got)
		again := prompt()
		again.PreOps = nil
		first := g.do(again).Samples[0]
		fresh := newRig(t, opener, nil)
		require.Equal(t, fresh.do(prompt()).Samples[0], first, "rolled back to the first position")
	})
	t.Run("copies a block before the step", func(t *testing.T) {
		g := newRig(t, opener, nil)
		g.do(prompt())
		want := g.do(next(20, 11)).Samples[0]
		step := next(20, 11)
		step.PreOps = []engine.PreOp{{Kind: engine.BlockCopy, Src: 2, Dst: 30}}
		step.Segments[0].Blocks = []int32{4, 30}
		require.Equal(t, want, g.do(step).Samples[0])
	})
	t.Run("does pre-operations in their order", func(t *testing.T) {
		g := newRig(t, opener, nil)
		g.do(prompt())
		want := g.do(next(20, 11)).Samples[0]
		step := next(20, 11)
		step.PreOps = []engine.PreOp{{Kind: engine.BlockCopy, Src: 2, Dst: 30}, {Kind: engine.BlockCopy, Src: 4, Dst: 2}, {Kind: engine.BlockCopy, Src: 30, Dst: 31}, {Kind: engine.BlockCopy, Src: 2, Dst: 33}}
		step.Segments[0].Blocks = []int32{33, 31}
		require.Equal(t, want, g.do(step).Samples[0])
	})
	t.Run("samples one row for several slots", func(t *testing.T) {
		g := newRig(t, opener, nil)
		step := prompt()
		for i := int32(1); i < 6; i++ {
			p := Plain(7, 1)
			p.OutputIndex = i
			step.PreOps = append(step.PreOps, set(i, 3, p))
			step.Samples = append(step.Samples, engine.SampleRow{TokenIndex: 19, Slot: i, SlotGeneration: 3, Position: 20})
		}
		res := g.do(step)
		require.Len(t, res.Samples, 6)
		distinct := map[int32]bool{}
		for i, s := range res.Samples {
			require.Equal(t, engine.RowOK, s.Status)
			require.EqualValues(t, i, s.Slot)
			distinct[s.Token] = true
		}
		require.Greater(t, len(distinct), 1, "different output indexes differ")
	})
	t.Run("runs in whichever slot and blocks", func(t *testing.T) {
		g := newRig(t, opener, nil)
		want := g.do(prompt()).Samples[0]
		step := prompt()
		step.PreOps[0].Slot, step.Segments[0].Slot, step.Samples[0].Slot = 7, 7, 7
		step.Segments[0].Blocks = []int32{100, 101, 102}
		got := g.do(step).Samples[0]
		require.EqualValues(t, 7, got.Slot)
		got.Slot = 0
		require.Equal(t, want, got)
	})
	t.Run("is an error once closed", func(t *testing.T) {
		g := newRig(t, opener, nil)
		r, err := g.model.NewRunner(g.cfg)
		require.NoError(t, err)
		require.NoError(t, r.Submit(prompt()))
		require.NoError(t, r.Close(), "a step in flight does not matter")
		require.ErrorIs(t, r.Submit(prompt()), engine.ErrPrecondition)
		_, err = r.Wait(0)
		require.ErrorIs(t, err, engine.ErrPrecondition)
		require.Equal(t, engine.Progress{}, r.Progress())
	})
}

func testRefusals(opener func(*testing.T) engine.Device) func(*testing.T) {
	nan := float32(math.NaN())
	params := func(change func(*engine.SlotParams)) func(*engine.Step) {
		return func(s *engine.Step) {
			p := Plain(1, 1)
			change(p)
			s.PreOps = []engine.PreOp{set(0, 2, p)}
			s.Segments, s.Samples, s.Scores = nil, nil, nil
		}
	}
	spoils := map[string]func(*engine.Step){
		"a slot outside":                    func(s *engine.Step) { s.Segments[0].Slot = 8 },
		"a negative slot":                   func(s *engine.Step) { s.Segments[0].Slot = -1 },
		"another generation":                func(s *engine.Step) { s.Segments[0].SlotGeneration = 2 },
		"a slot never set":                  func(s *engine.Step) { s.Segments[0].Slot, s.Segments[0].FirstPosition = 5, 0 },
		"a gap in the history":              func(s *engine.Step) { s.Segments[0].FirstPosition = 21 },
		"a negative position":               func(s *engine.Step) { s.Segments[0].FirstPosition = -1 },
		"too few blocks":                    func(s *engine.Step) { s.Segments[0].Blocks = []int32{4} },
		"a block outside":                   func(s *engine.Step) { s.Segments[0].Blocks = []int32{4, 128} },
		"a negative block":                  func(s *engine.Step) { s.Segments[0].Blocks = []int32{-1, 2} },
		"no tokens":                         func(s *engine.Step) { s.Segments[0].Tokens = nil },
		"more tokens than a step holds":     func(s *engine.Step) { s.Segments[0].Tokens, s.Segments[0].Blocks = make([]int32, 257), span(0, 20) },
		"a token outside":                   func(s *engine.Step) { s.Segments[0].Tokens = []int32{301} },
		"a token below the previous sample": func(s *engine.Step) { s.Segments[0].Tokens = []int32{-2} },
		"the previous sample of a prompt":   func(s *engine.Step) { s.Segments[0].Class, s.Segments[0].Tokens[0] = engine.Prefill, -1 },
		"the previous sample among others":  func(s *engine.Step) { s.Segments[0].Tokens = []int32{-1, 5} },
		"an unknown class":                  func(s *engine.Step) { s.Segments[0].Class = 2 },
		"a sample of a token outside":       func(s *engine.Step) { s.Samples[0].TokenIndex = 1 },
		"a sample of a negative token":      func(s *engine.Step) { s.Samples[0].TokenIndex = -1 },
		"a sample for a slot outside":       func(s *engine.Step) { s.Samples[0].Slot = 8 },
		"a sample for another generation":   func(s *engine.Step) { s.Samples[0].SlotGeneration = 9 },
		"a sample at a negative position":   func(s *engine.Step) { s.Samples[0].Position = -1 },
		"a mask that is too short":          func(s *engine.Step) { s.Samples[0].Mask = make([]uint32, 9) },
		"more sample rows than there may be": func(s *engine.Step) {
			for range 8 {
				s.Samples = append(s.Samples, s.Samples[0])
			}
		},
		"a score of a token outside":       func(s *engine.Step) { s.Scores = []engine.ScoreRow{{TokenIndex: 1}} },
		"a score of a target outside":      func(s *engine.Step) { s.Scores = []engine.ScoreRow{{Target: 301}} },
		"a score with too many candidates": func(s *engine.Step) { s.Scores = []engine.ScoreRow{{TopN: 17}} },
		"a copy from a block outside":      func(s *engine.Step) { s.PreOps = []engine.PreOp{{Kind: engine.BlockCopy, Src: 128, Dst: 1}} },
		"a copy to a block outside":        func(s *engine.Step) { s.PreOps = []engine.PreOp{{Kind: engine.BlockCopy, Src: 1, Dst: -1}} },
		"a slot outside to set":            func(s *engine.Step) { s.PreOps = []engine.PreOp{set(8, 1, Plain(1, 1))} },
		"a set slot and then a wrong token": func(s *engine.Step) {
			s.PreOps = []engine.PreOp{set(0, 2, Plain(1, 1)), {Kind: engine.BlockCopy, Src: 100, Dst: 4}}
			s.Segments[0].SlotGeneration, s.Segments[0].FirstPosition, s.Segments[0].Tokens = 2, 0, []int32{999}
			s.Samples[0].SlotGeneration = 2
		},
		"a temperature that is no number": params(func(p *engine.SlotParams) { p.Temperature = nan }),
		"a negative temperature":          params(func(p *engine.SlotParams) { p.Temperature = -1 }),
		"a negative top k":                params(func(p *engine.SlotParams) { p.TopK = -1 }),
		"a negative top p":                params(func(p *engine.SlotParams) { p.TopP = -0.5 }),
		"top p above one":                 params(func(p *engine.SlotParams) { p.TopP = 1.5 }),
		"top p that is no number":         params(func(p *engine.SlotParams) { p.TopP = nan }),
		"min p above one":                 params(func(p *engine.SlotParams) { p.MinP = 1.5 }),
		"a negative min p":                params(func(p *engine.SlotParams) { p.MinP = -0.5 }),
		"a negative typical p":            params(func(p *engine.SlotParams) { p.TypicalP = -0.5 }),
		"a repetition penalty of zero":    params(func(p *engine.SlotParams) { p.RepetitionPenalty = 0 }),
		"a penalty that is no number":     params(func(p *engine.SlotParams) { p.PresencePenalty = nan }),
		"an infinite frequency penalty":   params(func(p *engine.SlotParams) { p.FrequencyPenalty = float32(math.Inf(1)) }),
		"a window below minus one":        params(func(p *engine.SlotParams) { p.PenaltyWindow = -2 }),
		"a bias on a token outside":       params(func(p *engine.SlotParams) { p.BiasIDs, p.BiasValues = []int32{301}, []float32{1} }),
		"a bias that is no number":        params(func(p *engine.SlotParams) { p.BiasIDs, p.BiasValues = []int32{3}, []float32{nan} }),
		"biases without values":           params(func(p *engine.SlotParams) { p.BiasIDs = []int32{3} }),
		"an empty list of allowed tokens": params(func(p *engine.SlotParams) { p.Allowed = []int32{} }),
		"an allowed token outside":        params(func(p *engine.SlotParams) { p.Allowed = []int32{-1} }),
		"a suppressed token outside":      params(func(p *engine.SlotParams) { p.Suppressed = []int32{301} }),
		"too many candidates":             params(func(p *engine.SlotParams) { p.TopN = 17 }),
	}
	return func(t *testing.T) {
		fresh := newRig(t, opener, nil)
		fresh.do(prompt())
		want := fresh.do(next(20, 11)).Samples[0]

		g := newRig(t, opener, nil)
		g.do(prompt())
		for name, spoil := range spoils {
			step := next(20, 11)
			spoil(step)
			require.ErrorIs(t, g.r.Submit(step), engine.ErrInvalid, name)
		}
		_, err := g.r.Wait(0)
		require.ErrorIs(t, err, engine.ErrPrecondition, "no refused step is in flight")
		require.Equal(t, engine.Progress{Submitted: 1, Completed: 1}, g.r.Progress())
		require.Equal(t, want, g.do(next(20, 11)).Samples[0], "slot, blocks and history are as they were")
		step := next(21, engine.PreviousSample)
		require.NoError(t, g.r.Submit(step))
		g.wait()
		silent := next(22, 5)
		silent.Samples = nil
		g.do(silent)
		require.ErrorIs(t, g.r.Submit(next(23, engine.PreviousSample)), engine.ErrInvalid, "the step before sampled nothing")
		far := next(20, 11)
		far.Segments[0].FirstPosition, far.Segments[0].Tokens = 23, span(0, 256)
		far.Segments[0].Blocks = span(0, 40)
		far.Samples = nil
		g.do(far)
		far.Segments[0].FirstPosition = 279
		require.ErrorIs(t, g.r.Submit(far), engine.ErrInvalid, "beyond the context")
	}
}

func testFaults(t *testing.T, opener func(*testing.T) engine.Device, _ Options) {
	t.Run("a timeout leaves the step in flight and a hang shows in progress", func(t *testing.T) {
		g := newRig(t, opener, nil)
		want := g.do(prompt()).Samples[0]
		// Where the machine stood still for as long as the step hangs, one that hangs for longer is
		// looked at.
		for hang := 400 * time.Millisecond; ; hang *= 2 {
			require.Less(t, hang, guard)
			before := g.r.Progress()
			require.NoError(t, g.r.(engine.Faulter).Fault(engine.FaultHangStep, 0, uint64(hang)))
			again := prompt()
			begin := time.Now()
			require.NoError(t, g.r.Submit(again))
			late, err := g.r.Wait(50 * time.Millisecond)
			var p engine.Progress
			for p.Running == 0 && time.Since(begin) < hang { // it is begun by a thread that may still wait for a processor
				seen := make(chan engine.Progress)
				go func() { seen <- g.r.Progress() }()
				p = <-seen
			}
			if time.Since(begin) < hang {
				require.ErrorIs(t, err, engine.ErrTimeout)
				require.Equal(t, before.Submitted+1, p.Submitted)
				require.Equal(t, before.Completed, p.Completed)
				require.Positive(t, p.Running, "it was begun")
				require.LessOrEqual(t, p.Running, time.Since(begin))
				require.Equal(t, want, g.wait().Samples[0], "late, and not changed")
				break
			}
			if err != nil {
				require.ErrorIs(t, err, engine.ErrTimeout)
				late = g.wait()
			}
			require.Equal(t, want, late.Samples[0])
		}
		require.Zero(t, g.r.Progress().Running)
		require.Equal(t, want, g.do(prompt()).Samples[0], "the fault was for one step")
	})
	t.Run("a row that is not a number fails alone", func(t *testing.T) {
		g := newRig(t, opener, nil)
		step := prompt()
		for i := int32(1); i < 4; i++ {
			step.PreOps = append(step.PreOps, set(i, 1, Plain(7, 1)))
			step.Samples = append(step.Samples, engine.SampleRow{TokenIndex: 15 + i, Slot: i, SlotGeneration: 1, Position: 16 + i})
		}
		want := g.do(step).Samples
		require.NoError(t, g.r.(engine.Faulter).Fault(engine.FaultNaNLogits, 2, 0))
		got := g.do(step).Samples
		for i := range want {
			if i == 2 {
				require.Equal(t, engine.RowNaN, got[i].Status)
				require.EqualValues(t, 2, got[i].Slot)
				require.EqualValues(t, 18, got[i].Position)
				continue
			}
			require.Equal(t, want[i], got[i])
		}
		require.Equal(t, want, g.do(step).Samples, "the fault was for one step")
	})
	t.Run("with states", func(t *testing.T) { testStateFaults(t, opener) })
}
