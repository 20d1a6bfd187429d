package enginetest

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// Hybrid is a model with every kind of layer that carries a state, of odd sizes, and with attention
// with and without a gate.
func Hybrid() engine.ModelDesc {
	shape := Small()
	shape.Layers = 5
	d := shape.Model()
	d.Layers[0].Mixer = engine.Mixer{
		Kind: engine.MixDelta, Heads: 4, KVHeads: 2, KeyDim: 20, ValueDim: 36, Conv: 4, Rope: engine.NoRope,
	}
	d.Layers[1].Mixer.OutGate, d.Layers[1].Mixer.QKNorm = true, true
	d.Layers[2].Mixer = engine.Mixer{Kind: engine.MixConv, Conv: 3, Rope: engine.NoRope}
	d.Layers[3].Mixer = engine.Mixer{
		Kind: engine.MixDelta, Heads: 6, KVHeads: 3, KeyDim: 9, ValueDim: 33, Conv: 2, Rope: engine.NoRope, TiledHeads: true, Scale: 0.4, EndNorm: true,
	}
	return d
}

// outputGates is a model of gated attention, with heads of whole panels in one layer and biases in
// the other.
func outputGates() engine.ModelDesc {
	shape := Small()
	shape.HeadDim, shape.RopeDims = 32, 16
	d := shape.Model()
	for i := range d.Layers {
		d.Layers[i].Mixer.OutGate = true
	}
	m := &d.Layers[1].Mixer
	m.KeyDim, m.ValueDim, m.QKVBias, m.OutBias, m.QKNorm = 20, 20, true, true, true
	return d
}

// stateTest computes a prompt and a few tokens of a model with states, alone, and then in other
// ways.
type stateTest struct {
	*rig
	prompt []int32
	want   []engine.RowResult
}

func newStateTest(t *testing.T, opener func(*testing.T) engine.Device, n int) *stateTest {
	t.Helper()
	return stateTestOf(t, opener, Hybrid(), n)
}

func stateTestOf(t *testing.T, opener func(*testing.T) engine.Device, desc engine.ModelDesc, n int) *stateTest {
	t.Helper()
	g := rigOf(t, opener, desc, func(c *engine.RunnerConfig) {
		c.SavedStates, c.HostStates, c.HostBlocks = 5, 2, 16
		c.MaxBatchedTokens = max(c.MaxBatchedTokens, n)
	})
	s := &stateTest{rig: g, prompt: numbers(91, n, desc.Vocab)}
	s.want = g.generate(s.line(0, 0), nil, s.prompt, stateTokens)
	return s
}

// stateTokens is the number of tokens that are sampled after the prompt.
const stateTokens = 5

// line returns a line of the prompt over blocks that begin with `first`.
func (s *stateTest) line(slot, first int32) *line {
	p := Plain(7, 0.9)
	p.TopN = 4
	return &line{slot: slot, prompt: len(s.prompt), params: p, blocks: blocksFrom(first, int32(len(s.prompt)+stateTokens+15)/16)}
}

// finish computes the prompt from position `from` on, whose state is `state`, and the tokens, and
// compares them with those computed alone.
func (s *stateTest) finish(l *line, from int, state int32, before ...engine.PreOp) {
	s.t.Helper()
	step := &engine.Step{PreOps: append(before, l.set(s.prompt[:from]))}
	l.feed(step, from, s.prompt[from:]...)
	step.Segments[0].StateFrom = state
	rows := s.rows(l, step, len(s.prompt))
	require.NoError(s.t, sameRows(s.want, rows))
}

// rows samples after the last token of a step and generates the rest.
func (s *stateTest) rows(l *line, step *engine.Step, at int) []engine.RowResult {
	s.t.Helper()
	tokens := 0
	for i := range step.Segments {
		tokens += len(step.Segments[i].Tokens)
	}
	l.sample(step, int32(tokens)-1, at)
	rows := slices.Clone(s.do(step).Samples)
	for len(rows) < stateTokens {
		next := &engine.Step{}
		l.feed(next, at, rows[len(rows)-1].Token)
		at++
		l.sample(next, 0, at)
		rows = append(rows, s.do(next).Samples...)
	}
	return rows
}

// share copies the blocks of positions below `to` from a line to another. Whole blocks are shared.
func share(from, to *line, end int) (copies []engine.PreOp) {
	whole := end / 16
	copy(to.blocks, from.blocks[:whole])
	if end%16 > 0 {
		copies = append(copies, engine.PreOp{Kind: engine.BlockCopy, Src: from.blocks[whole], Dst: to.blocks[whole]})
	}
	return copies
}

// testStates checks that a state has the same bits however a sequence came to it.
func testStates(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	const n = 45
	t.Run("a prompt is cut anywhere, in steps and in segments of a step", func(t *testing.T) {
		s := newStateTest(t, opener, n)
		for cut := 1; cut < n; cut++ {
			l := s.line(1, 20)
			first := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
			l.feed(first, 0, s.prompt[:cut]...)
			s.do(first)
			step := &engine.Step{}
			l.feed(step, cut, s.prompt[cut:]...)
			require.NoError(t, sameRows(s.want, s.rows(l, step, n)), "in two steps, cut at %d", cut)
			l = s.line(2, 40)
			step = &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
			l.feed(step, 0, s.prompt[:cut]...)
			l.feed(step, cut, s.prompt[cut:]...)
			require.NoError(t, sameRows(s.want, s.rows(l, step, n)), "in two segments, cut at %d", cut)
		}
		for _, by := range []int{1, 2, 3, 7} {
			l := s.line(3, 60)
			step := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
			for at := 0; at < n; at += by {
				l.feed(step, at, s.prompt[at:min(at+by, n)]...)
			}
			require.NoError(t, sameRows(s.want, s.rows(l, step, n)), "in segments of %d", by)
		}
	})
	t.Run("heads of published widths, in a prompt of many rows, cut and saved", func(t *testing.T) {
		for _, keys := range []int{64, 128, 256} {
			desc := Hybrid()
			first, second := &desc.Layers[0].Mixer, &desc.Layers[3].Mixer
			first.KeyDim, first.ValueDim = keys, 64
			second.KeyDim, second.ValueDim, second.Conv = keys, 32, 4
			const n = 300
			s := stateTestOf(t, opener, desc, n)
			for _, cut := range []int{4, 17, 299} {
				l := s.line(1, 20)
				step := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
				l.feed(step, 0, s.prompt[:cut]...)
				step.Segments[0].StateTo = 3
				s.do(step)
				other := s.line(2, 40)
				s.finish(other, cut, 3, share(l, other, cut)...)
				step = &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
				l.feed(step, 0, s.prompt[:cut]...)
				l.feed(step, cut, s.prompt[cut:]...)
				require.NoError(t, sameRows(s.want, s.rows(l, step, n)), "%d keys, cut at %d", keys, cut)
			}
		}
	})
	t.Run("saved between two segments and read by other slots", func(t *testing.T) {
		s := newStateTest(t, opener, n)
		for _, cut := range []int{1, 2, 3, 16, 31, 44} {
			l := s.line(0, 0)
			step := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
			l.feed(step, 0, s.prompt[:cut]...)
			l.feed(step, cut, s.prompt[cut:]...)
			step.Segments[0].StateTo, step.Segments[1].StateFrom = 2, 2
			require.NoError(t, sameRows(s.want, s.rows(l, step, n)), "saved at %d", cut)
			for slot := range int32(3) {
				other := s.line(1+slot, 20+20*slot)
				s.finish(other, cut, 2, share(l, other, cut)...)
			}
		}
	})
	t.Run("read by several slots of one step, which decode together", func(t *testing.T) {
		s := newStateTest(t, opener, n)
		l := s.line(0, 0)
		step := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
		l.feed(step, 0, s.prompt[:30]...)
		step.Segments[0].StateTo = 5
		s.do(step)
		step = &engine.Step{}
		lines := []*line{s.line(3, 20), s.line(1, 40), s.line(6, 60)}
		for i, other := range lines {
			step.PreOps = append(step.PreOps, append(share(l, other, 30), other.set(s.prompt[:30]))...)
			at := other.feed(step, 30, s.prompt[30:]...)
			step.Segments[i].StateFrom = 5
			other.sample(step, at+n-30-1, n)
		}
		for i := range stateTokens {
			rows := s.do(step).Samples
			step = &engine.Step{}
			for j, other := range lines {
				require.NoError(t, sameRows(s.want[i:i+1], rows[j:j+1]), "row %d of line %d", i, j)
				other.sample(step, other.feed(step, n+i, rows[j].Token), n+i+1)
			}
		}
	})
	t.Run("swapped out to host memory and back to another slot", func(t *testing.T) {
		s := newStateTest(t, opener, n)
		for _, at := range []int{1, 16, 33, 44} {
			l := s.line(0, 0)
			step := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
			l.feed(step, 0, s.prompt[:at]...)
			s.do(step)
			moves := []engine.PreOp{{Kind: engine.StateOut, Slot: 0, Dst: 1}}
			for i := range int32((at + 15) / 16) {
				moves = append(moves, out(l.blocks[i], i))
			}
			s.do(ops(moves...))
			other := s.line(0, 0) // takes the slot and the blocks
			other.params = Plain(1, 1)
			s.generate(other, nil, numbers(5, n, 300), 2)
			back := s.line(4, 30)
			moves = []engine.PreOp{{Kind: engine.StateIn, Slot: 4, Src: 1}}
			for i := range int32((at + 15) / 16) {
				moves = append(moves, in(i, back.blocks[i]))
			}
			s.finish(back, at, 0, moves...)
		}
	})
	t.Run("a saved state goes to host memory and back to another place", func(t *testing.T) {
		s := newStateTest(t, opener, n)
		l := s.line(0, 0)
		step := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
		l.feed(step, 0, s.prompt[:20]...)
		step.Segments[0].StateTo = 1
		s.do(step)
		s.do(ops(engine.PreOp{Kind: engine.StateOut, Src: 1, Dst: 0}))
		s.do(ops(engine.PreOp{Kind: engine.StateIn, Slot: 7, Src: 0, Dst: 3}))
		other := s.line(2, 20)
		s.finish(other, 20, 3, share(l, other, 20)...)
	})
	t.Run("moved in the order of pre-operations, next to a step in flight", func(t *testing.T) {
		s := newStateTest(t, opener, n)
		l := s.line(0, 0)
		step := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
		l.feed(step, 0, s.prompt[:20]...)
		require.NoError(t, s.r.Submit(step))
		require.NoError(t, s.r.Submit(ops(
			engine.PreOp{Kind: engine.StateOut, Slot: 0, Dst: 0}, engine.PreOp{Kind: engine.StateIn, Slot: 4, Src: 0},
			engine.PreOp{Kind: engine.StateOut, Slot: 4, Dst: 1}, engine.PreOp{Kind: engine.StateIn, Src: 1, Dst: 3},
		)))
		s.wait()
		s.wait()
		for slot, state := range map[int32]int32{4: 0, 2: 3} {
			other := s.line(slot, 20*(1+state))
			s.finish(other, 20, state, share(l, other, 20)...)
		}
	})
	t.Run("that the host has no memory for are refused, and nothing changes", func(t *testing.T) {
		dev := open(t, opener)
		refuse := refuser(t, dev)
		s := newStateTest(t, func(*testing.T) engine.Device { return keptOpen{dev} }, n)
		l := s.line(0, 0)
		step := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
		l.feed(step, 0, s.prompt[:20]...)
		s.do(step)
		before := BooksOf(t, dev)
		move := ops(out(l.blocks[0], 0), engine.PreOp{Kind: engine.StateOut, Slot: 0, Dst: 1})
		for range 2 {
			refuse(engine.RefuseAlloc, 1, 1) // of the state, when the block has its memory
			require.ErrorIs(t, s.r.Submit(move), engine.ErrOutOfMemory)
			require.ErrorIs(t, s.r.Submit(ops(engine.PreOp{Kind: engine.StateIn, Slot: 4, Src: 1})), engine.ErrInvalid)
			require.ErrorIs(t, s.r.Submit(ops(in(0, 60))), engine.ErrInvalid)
			require.Equal(t, before, BooksOf(t, dev))
		}
		s.do(move)
		other := s.line(4, 20)
		moved := []engine.PreOp{{Kind: engine.StateIn, Slot: 4, Src: 1}, in(0, other.blocks[0])}
		s.finish(other, 20, 0, append(moved, share(l, other, 20)...)...)
	})
	t.Run("in a batch with others, in chunks", func(t *testing.T) {
		s := newStateTest(t, opener, n)
		if opts.Numeric {
			desc := Hybrid()
			requests := []Request{{Prompt: s.prompt, Tokens: stateTokens, Params: s.line(0, 0).params, Slot: 1, Chunk: 10}}
			for i := range 5 {
				requests = append(requests, Request{
					Prompt: numbers(uint64(i), 11+9*i, desc.Vocab), Tokens: 4, Params: Plain(uint64(i), 1), Slot: int32(2 + i), Chunk: 3 + i, Start: i,
				})
			}
			got, err := PlayOn(s.r, s.cfg, requests...)
			require.NoError(t, err)
			require.Equal(t, tokensOf(s.want), got[0].Tokens)
			for i, row := range s.want {
				require.Equal(t, row.Logprob, got[0].Logprobs[i], "token %d", i)
			}
		}
	})
	t.Run("a state is as far as the segment begins, or the segment is refused", func(t *testing.T) { refusedStates(t, opener) })
	t.Run("a member that is 0 or -0 counts as unset", func(t *testing.T) {
		desc := Hybrid()
		desc.Layers[0].Mixer.ScoreCap, desc.Layers[3].Mixer.TemperatureScale = negativeZero(), negativeZero()
		desc.Layers[2].Mixer.Scale, desc.Layers[2].MLP.Experts.WeightScale = negativeZero(), negativeZero()
		require.NoError(t, rules.CheckModel(&desc))
		dev := open(t, opener)
		skipUnbuilt(t, dev, &desc)
		m, err := dev.NewModel(desc)
		require.NoError(t, err)
		require.NoError(t, m.Close())
	})
	t.Run("memory is counted", func(t *testing.T) {
		desc := Hybrid()
		dev := open(t, opener)
		skipUnbuilt(t, dev, &desc)
		m := Load(t, dev, Random(desc, all(engine.F32), 1))
		cfg := Sizes()
		before, err := m.RunnerCost(cfg)
		require.NoError(t, err)
		// An engine may round each layer's numbers up to whole 16 bytes.
		require.GreaterOrEqual(t, before.BytesPerState, uint64(4*desc.StateFloats()))
		require.LessOrEqual(t, before.BytesPerState, uint64(4*desc.StateFloats()+12*len(desc.Layers)))
		require.Equal(t, before.BytesPerState, before.HostBytesPerState)
		cfg.SavedStates = 10
		after, err := m.RunnerCost(cfg)
		require.NoError(t, err)
		require.Equal(t, 10*before.BytesPerState, after.KVBytes-before.KVBytes)
		require.Equal(t, uint64(cfg.KVBlocks)*before.BytesPerBlock+uint64(cfg.MaxSequences)*before.BytesPerState, before.KVBytes)
		cfg.SavedStates = 1 << 20
		_, err = m.NewRunner(cfg)
		require.ErrorIs(t, err, engine.ErrOutOfMemory)
		for _, spoil := range []func(*engine.RunnerConfig){
			func(c *engine.RunnerConfig) { c.SavedStates = -1 }, func(c *engine.RunnerConfig) { c.HostStates = -1 },
		} {
			cfg := Sizes()
			spoil(&cfg)
			_, err := m.NewRunner(cfg)
			require.ErrorIs(t, err, engine.ErrInvalid)
		}
		plain := Load(t, dev, Random(Small().Model(), all(engine.F32), 1))
		cfg = Sizes()
		cfg.SavedStates = 1
		_, err = plain.NewRunner(cfg)
		require.ErrorIs(t, err, engine.ErrInvalid, "no layer carries a state")
	})
}

func negativeZero() float32 { return float32(math.Copysign(0, -1)) }

func refusedStates(t *testing.T, opener func(*testing.T) engine.Device) {
	t.Helper()
	s := newStateTest(t, opener, 20)
	l, other := s.line(0, 0), s.line(1, 20)
	step := &engine.Step{PreOps: []engine.PreOp{l.set(nil), other.set(nil)}}
	l.feed(step, 0, s.prompt[:10]...)
	other.feed(step, 0, s.prompt[:10]...)
	step.Segments[0].StateTo = 1
	s.do(step)
	segment := func(l *line, from int, tokens int, read, write int32) engine.Segment {
		step := &engine.Step{}
		l.feed(step, from, s.prompt[from:from+tokens]...)
		step.Segments[0].StateFrom, step.Segments[0].StateTo = read, write
		return step.Segments[0]
	}
	for name, segments := range map[string][]engine.Segment{
		"a state that has read more":                      {segment(other, 9, 1, 0, 0)},
		"a state that nothing wrote":                      {segment(l, 10, 1, 2, 0)},
		"the slot's own, which a saved one replaced":      {segment(l, 10, 1, 0, 0)},
		"a state beyond the last":                         {segment(l, 10, 1, 6, 0)},
		"a negative state":                                {segment(l, 10, 1, -1, 0)},
		"to a state beyond the last":                      {segment(l, 10, 1, 1, 6)},
		"to a negative state":                             {segment(l, 10, 1, 1, -1)},
		"a state that another slot writes":                {segment(l, 10, 1, 1, 1), segment(other, 10, 1, 1, 0)},
		"to a state that another slot reads":              {segment(other, 10, 1, 1, 0), segment(l, 10, 1, 1, 1)},
		"to a state that another slot writes":             {segment(l, 10, 1, 1, 3), segment(other, 10, 1, 0, 3)},
		"another than the segment before it wrote":        {segment(l, 10, 2, 1, 0), segment(l, 12, 2, 1, 0)},
		"its own, where the one before wrote a saved one": {segment(l, 10, 2, 1, 4), segment(l, 12, 2, 0, 0)},
	} {
		require.ErrorIs(t, s.r.Submit(&engine.Step{Segments: segments}), engine.ErrInvalid, name)
	}
	for name, op := range map[string]engine.PreOp{
		"out of a state that nothing wrote":    {Kind: engine.StateOut, Src: 2},
		"out of a state beyond the last":       {Kind: engine.StateOut, Src: 6},
		"out of a slot beyond the last":        {Kind: engine.StateOut, Slot: 8},
		"out to host memory beyond the last":   {Kind: engine.StateOut, Slot: 1, Dst: 2},
		"in from host memory never written":    {Kind: engine.StateIn, Src: 0},
		"in to a state beyond the last":        {Kind: engine.StateIn, Src: 0, Dst: 6},
		"in from host memory beyond the last":  {Kind: engine.StateIn, Src: 2},
		"in from host memory of a negative id": {Kind: engine.StateIn, Src: -1},
	} {
		require.ErrorIs(t, s.r.Submit(ops(op)), engine.ErrInvalid, name)
	}
	refused := ops(engine.PreOp{Kind: engine.StateOut, Slot: 1}, engine.PreOp{Kind: engine.StateOut, Src: 9})
	require.ErrorIs(t, s.r.Submit(refused), engine.ErrInvalid)
	require.ErrorIs(t, s.r.Submit(ops(engine.PreOp{Kind: engine.StateIn})), engine.ErrInvalid, "a refused step wrote a state")
	// After all refusals, both go on where they were.
	for _, tc := range []struct {
		l    *line
		read int32
	}{{l, 1}, {other, 0}} {
		step := &engine.Step{Segments: []engine.Segment{segment(tc.l, 10, 10, tc.read, 0)}}
		require.NoError(t, sameRows(s.want, s.rows(tc.l, step, 20)), "slot %d", tc.l.slot)
	}
}
