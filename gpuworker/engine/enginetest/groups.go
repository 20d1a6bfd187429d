package enginetest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
)

// Windowed is a model with layers of two windows, layers without, and one that reads the keys of a
// layer with a window.
func Windowed(large, small int) engine.ModelDesc {
	shape := Small()
	shape.Layers = 5
	d := shape.Model()
	d.Layers[0].Mixer.Window, d.Layers[2].Mixer.Window, d.Layers[4].Mixer.Window = large, small, large
	d.Layers[2].Mixer.KVHeads, d.Layers[2].Mixer.Heads = 3, 6
	m := &d.Layers[3].Mixer
	m.KVLayer, m.Heads, m.KVHeads, m.Window = 1, 6, 3, small
	d.Layers[4].Mixer.Sinks = true
	return d
}

// allWindowed is a model whose layers all have a window.
func allWindowed(window int) engine.ModelDesc {
	d := Small().Model()
	for i := range d.Layers {
		d.Layers[i].Mixer.Window = window
	}
	return d
}

// nanToken is the token whose keys and values are not numbers.
const nanToken = 300

// poisonous returns random weights in which nanToken has an embedding that is not a number.
func poisonous(desc engine.ModelDesc) *reference.Weights {
	w := Random(desc, all(engine.F16), 42)
	for i := range w.Tensors {
		if tensor := &w.Tensors[i]; tensor.Role == engine.RoleEmbedding {
			tensor.Bytes = slices.Clone(tensor.Bytes)
			for at := range desc.Hidden {
				copy(tensor.Bytes[2*(nanToken*desc.Hidden+at):], []byte{0x00, 0x7e})
			}
		}
	}
	return w
}

// groupTest computes a prompt and a few tokens with masks alone, and then with a window group.
type groupTest struct {
	*rig
	desc   engine.ModelDesc
	prompt []int32
	want   []engine.RowResult
}

// groupTokens is the number of tokens that are sampled after the prompt.
const groupTokens = 4

func newGroupTest(t *testing.T, opener func(*testing.T) engine.Device, desc engine.ModelDesc, n int) *groupTest {
	t.Helper()
	dev := open(t, opener)
	skipRefused(t, dev, desc)
	m := Load(t, dev, poisonous(desc))
	cfg := Sizes()
	cfg.MaxBatchedTokens = 512
	masks := &rig{t: t, model: m, cfg: cfg, r: NewRunner(t, m, cfg)}
	s := &groupTest{desc: desc, prompt: numbers(92, n, desc.Vocab-1)}
	s.rig = masks
	l := s.line(0, 0, nil)
	l.size = 0
	s.want = masks.generate(l, nil, s.prompt, groupTokens)
	cfg.WindowBlocks, cfg.HostWindowBlocks, cfg.HostBlocks = 96, 40, 40
	s.rig = &rig{t: t, model: m, cfg: cfg, r: NewRunner(t, m, cfg)}
	return s
}

// skipRefused skips a test of a model that several GPUs do not divide.
func skipRefused(t *testing.T, dev engine.Device, desc engine.ModelDesc) {
	t.Helper()
	m, err := dev.NewModel(desc)
	if errors.Is(err, engine.ErrUnsupported) {
		info, infoErr := dev.Info()
		require.NoError(t, infoErr)
		if info.Devices > 1 {
			t.Skip("several GPUs do not divide the model, one GPU or a CPU runs it: ", err)
		}
	}
	require.NoError(t, err)
	require.NoError(t, m.Close())
}

// line returns a line of the prompt over blocks of the first pool that begin with `first`, and over
// the given blocks of the window group.
func (s *groupTest) line(slot, first int32, window []int32) *line {
	p := Plain(7, 0.9)
	p.TopN = 4
	return &line{
		slot: slot, prompt: len(s.prompt), params: p, blocks: blocksFrom(first, s.blocks()), window: window, size: s.desc.GroupWindow(),
	}
}

// blocks is how many blocks the prompt and the tokens have.
func (s *groupTest) blocks() int32 { return int32(len(s.prompt)+groupTokens+15) / 16 }

// poison overwrites blocks of the window group with keys and values that are not numbers.
func (s *groupTest) poison(ids ...int32) {
	s.t.Helper()
	for part := range slices.Chunk(ids, 8) {
		l := &line{
			slot: 7, prompt: 16 * len(part), params: Plain(1, 1), blocks: blocksFrom(112, int32(len(part))), window: part, size: s.desc.GroupWindow(),
		}
		step := ops(l.set(nil))
		l.feed(step, 0, slices.Repeat([]int32{nanToken}, 16*len(part))...)
		for i := range step.Segments { // all of the blocks are written
			step.Segments[i].WindowBlocks = part
		}
		s.do(step)
	}
}

// leave poisons the blocks of a line that a segment from a position on does not see.
func (s *groupTest) leave(l *line, from int) {
	s.t.Helper()
	first := engine.FirstWindowBlock(from, l.size, 16)
	s.poison(l.window[:min(first, len(l.window))]...)
}

// finish computes the prompt of a line from a position on, in chunks, and the tokens. Before each
// step it poisons the blocks that have left the window. It compares the rows with those of masks.
func (s *groupTest) finish(what string, l *line, from, chunk int, before ...engine.PreOp) {
	s.t.Helper()
	step := &engine.Step{PreOps: append(before, l.set(s.prompt[:from]))}
	var rows []engine.RowResult
	tokens := s.prompt[from:]
	for at := from; len(rows) < groupTokens; {
		n := min(chunk, len(tokens))
		first := l.feed(step, at, tokens[:n]...)
		tokens, at = tokens[n:], at+n
		if len(tokens) == 0 {
			l.sample(step, first+int32(n)-1, at)
		}
		got := s.do(step).Samples
		rows = append(rows, got...)
		for _, row := range got {
			tokens = []int32{row.Token}
		}
		s.leave(l, at)
		step = &engine.Step{}
	}
	require.NoError(s.t, sameRows(s.want, rows), what)
}

// testGroups checks that a window group changes no bit, and that freed blocks are not read.
func testGroups(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	long := 300
	if opts.Slow {
		long = 70
	}
	for name, desc := range map[string]engine.ModelDesc{
		"of 37 and 20":      Windowed(37, 20),
		"of 20 and 1":       Windowed(20, 1),
		"of 16":             Windowed(16, 16),
		"of 17":             Windowed(17, 17),
		"of 1":              Windowed(1, 1),
		"of 257":            Windowed(257, 100),
		"in all layers":     allWindowed(33),
		"in all, of 1":      allWindowed(1),
		"that few see over": Windowed(511, 40),
	} {
		t.Run("windows "+name, func(t *testing.T) {
			s := newGroupTest(t, opener, desc, long)
			for i, chunk := range []int{1, 7, 16, 33, 129, long} {
				if chunk == 1 && opts.Slow {
					continue
				}
				l := s.line(int32(i), 0, blocksFrom(int32(i)*8, s.blocks()))
				s.finish(fmt.Sprintf("in chunks of %d", chunk), l, 0, chunk)
			}
		})
	}
	t.Run("a prompt is cut anywhere, and freed blocks are written again at once", func(t *testing.T) {
		s := newGroupTest(t, opener, Windowed(20, 5), 60)
		for cut := 1; cut < len(s.prompt); cut++ {
			ring := ringBlocks(20, len(s.prompt), 16)
			table := make([]int32, s.blocks())
			for i := range table {
				table[i] = int32(i) % ring
			}
			l := s.line(1, 20, table)
			first := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
			l.feed(first, 0, s.prompt[:cut]...)
			s.do(first)
			step := &engine.Step{}
			l.feed(step, cut, s.prompt[cut:]...)
			tokens := int32(len(s.prompt) - cut)
			l.sample(step, tokens-1, len(s.prompt))
			require.NoError(t, sameRows(s.want[:1], s.do(step).Samples), "cut at %d", cut)
		}
	})
	t.Run("a sequence starts from every position with the blocks that it sees alone", func(t *testing.T) {
		s := newGroupTest(t, opener, Windowed(20, 5), 60)
		l := s.line(0, 0, blocksFrom(0, s.blocks()))
		first := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
		l.feed(first, 0, s.prompt...)
		s.do(first)
		for at := 1; at < len(s.prompt); at++ {
			other := s.line(1, 20, blocksFrom(20, s.blocks()))
			s.poison(other.window...)
			copies := share(l, other, at)
			for i := engine.FirstWindowBlock(at, 20, 16); i < (at+15)/16; i++ {
				copies = append(copies, engine.PreOp{Kind: engine.BlockCopy, Src: l.window[i], Dst: other.window[i], Window: true})
			}
			s.finish(fmt.Sprintf("from %d on", at), other, at, 64, copies...)
		}
	})
	t.Run("a sequence goes to host memory and back to other blocks", func(t *testing.T) {
		for name, desc := range map[string]engine.ModelDesc{"some": Windowed(20, 5), "all": allWindowed(20)} {
			s := newGroupTest(t, opener, desc, 60)
			for _, at := range []int{1, 16, 33, 59} {
				l := s.line(0, 0, blocksFrom(0, s.blocks()))
				step := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
				l.feed(step, 0, s.prompt[:at]...)
				s.do(step)
				first, end := int32(engine.FirstWindowBlock(at, 20, 16)), int32(at+15)/16
				var moves []engine.PreOp
				for i := range end {
					moves = append(moves, out(l.blocks[i], i))
				}
				for i := first; i < end; i++ {
					moves = append(moves, engine.PreOp{Kind: engine.BlockOut, Src: l.window[i], Dst: i - first, Window: true})
				}
				s.do(ops(moves...))
				s.poison(l.window...)
				back := s.line(4, 30, blocksFrom(40, s.blocks()))
				moves = nil
				for i := range end {
					moves = append(moves, in(i, back.blocks[i]))
				}
				for i := first; i < end; i++ {
					moves = append(moves, engine.PreOp{Kind: engine.BlockIn, Src: i - first, Dst: back.window[i], Window: true})
				}
				s.finish(fmt.Sprintf("%s, at %d", name, at), back, at, 64, moves...)
			}
		}
	})
	t.Run("random descriptions, in a batch with others", func(t *testing.T) { testGroupedDescriptions(t, opener, opts) })
	t.Run("wrong tables and operations are refused", func(t *testing.T) { refusedGroups(t, opener) })
	t.Run("memory is counted", func(t *testing.T) { testGroupCost(t, opener) })
}

// testGroupedDescriptions compares random descriptions that have a window group with masks.
func testGroupedDescriptions(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	compared, want := 0, 12
	if opts.Slow || !opts.Numeric {
		want = 4
	}
	dev := open(t, opener)
	for seed := uint64(0); compared < want; seed++ {
		d := Description(seed)
		if d.GroupWindow() == 0 {
			continue
		}
		m, err := dev.NewModel(d)
		if err != nil {
			require.ErrorIs(t, err, engine.ErrUnsupported, "seed %d", seed)
			requireUnbuilt(t, dev, &d, err)
			continue
		}
		require.NoError(t, m.Close())
		compared++
		model := Load(t, dev, Random(d, all(engine.F32), seed))
		cfg := Sizes()
		var requests []Request
		for i, n := range []int{90, 61, 33} {
			p := Plain(uint64(i), 0.8)
			p.TopN = 4
			requests = append(requests, Request{
				Prompt: numbers(seed+uint64(i), n, d.Vocab), Tokens: 5, Params: p, Slot: int32(i), Chunk: 13 + 9*i, Start: i, Score: true,
			})
		}
		masks, err := Play(model, cfg, requests...)
		require.NoError(t, err, "seed %d", seed)
		cfg.WindowBlocks = 96
		for i := range requests {
			requests[i].Window, requests[i].Chunk = d.GroupWindow(), 17-4*i
		}
		groups, err := Play(model, cfg, requests...)
		require.NoError(t, err, "seed %d", seed)
		for i := range masks {
			require.NoError(t, masks[i].equal(groups[i]), "seed %d, request %d, with masks and with groups", seed, i)
		}
	}
}

func refusedGroups(t *testing.T, opener func(*testing.T) engine.Device) {
	t.Helper()
	s := newGroupTest(t, opener, Windowed(20, 5), 60)
	l := s.line(0, 0, blocksFrom(0, s.blocks()))
	step := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
	l.feed(step, 0, s.prompt[:40]...)
	s.do(step)
	s.do(ops(engine.PreOp{Kind: engine.BlockOut, Src: 0, Dst: 3, Window: true}))
	segment := func(change func(*engine.Segment)) engine.Segment {
		step := &engine.Step{}
		l.feed(step, 40, s.prompt[40:]...)
		change(&step.Segments[0])
		return step.Segments[0]
	}
	for name, change := range map[string]func(*engine.Segment){
		"no window table":                   func(s *engine.Segment) { s.WindowBlocks = nil },
		"a table that is too short":         func(s *engine.Segment) { s.WindowBlocks = s.WindowBlocks[:3] },
		"a block beyond the last":           func(s *engine.Segment) { s.WindowBlocks[2] = 96 },
		"no block for positions it sees":    func(s *engine.Segment) { s.WindowBlocks[1] = engine.NoBlock },
		"a negative block outside":          func(s *engine.Segment) { s.WindowBlocks[0] = -2 },
		"a block beyond the last, not seen": func(s *engine.Segment) { s.WindowBlocks[0] = 96 },
	} {
		require.ErrorIs(t, s.r.Submit(&engine.Step{Segments: []engine.Segment{segment(change)}}), engine.ErrInvalid, name)
	}
	for name, op := range map[string]engine.PreOp{
		"a copy from beyond the last":  {Kind: engine.BlockCopy, Src: 96, Dst: 1, Window: true},
		"a copy to beyond the last":    {Kind: engine.BlockCopy, Src: 1, Dst: 96, Window: true},
		"out from beyond the last":     {Kind: engine.BlockOut, Src: 96, Dst: 1, Window: true},
		"out to beyond the last":       {Kind: engine.BlockOut, Src: 1, Dst: 40, Window: true},
		"in that was never written":    {Kind: engine.BlockIn, Src: 4, Dst: 1, Window: true},
		"in that only the group wrote": {Kind: engine.BlockIn, Src: 3, Dst: 1},
		"in to beyond the last":        {Kind: engine.BlockIn, Src: 3, Dst: 96, Window: true},
	} {
		require.ErrorIs(t, s.r.Submit(ops(op)), engine.ErrInvalid, name)
	}
	s.finish("after all refusals", l, 40, 64)

	masks := newRig(t, opener, nil)
	step = next(0, 5)
	step.PreOps, step.Segments[0].WindowBlocks = []engine.PreOp{set(0, 1, Plain(1, 1))}, []int32{0}
	require.ErrorIs(t, masks.r.Submit(step), engine.ErrInvalid, "a runner without the group")
	require.ErrorIs(t, masks.r.Submit(ops(engine.PreOp{Kind: engine.BlockCopy, Window: true})), engine.ErrInvalid)
	for _, n := range []int{-1, 1} { // no layer has a window
		cfg := Sizes()
		cfg.WindowBlocks = n
		_, err := masks.model.NewRunner(cfg)
		require.ErrorIs(t, err, engine.ErrInvalid)
	}
	for _, n := range []int{-1, 1} { // no device block
		cfg := Sizes()
		cfg.HostWindowBlocks = n
		_, err := s.model.NewRunner(cfg)
		require.ErrorIs(t, err, engine.ErrInvalid)
	}
}

func testGroupCost(t *testing.T, opener func(*testing.T) engine.Device) {
	t.Helper()
	for _, desc := range []engine.ModelDesc{Windowed(20, 5), allWindowed(20)} {
		dev := open(t, opener)
		skipRefused(t, dev, desc)
		m := Load(t, dev, Random(desc, all(engine.F16), 1))
		cfg := Sizes()
		masks, err := m.RunnerCost(cfg)
		require.NoError(t, err)
		require.Zero(t, masks.BytesPerWindowBlock)
		cfg.WindowBlocks, cfg.HostWindowBlocks = 50, 1<<30
		groups, err := m.RunnerCost(cfg)
		require.NoError(t, err)
		require.Equal(t, masks.BytesPerBlock, groups.BytesPerBlock+groups.BytesPerWindowBlock, "a block of all layers")
		require.Equal(t, groups.BytesPerWindowBlock, groups.HostBytesPerWindowBlock)
		require.Equal(t, uint64(cfg.KVBlocks)*groups.BytesPerBlock+51*groups.BytesPerWindowBlock, groups.KVBytes, "and one of zeros")
	}
	m := Load(t, open(t, opener), Random(Windowed(20, 5), all(engine.F16), 1))
	cfg := Sizes()
	cfg.BlockSize, cfg.WindowBlocks = 32, math.MaxInt32/64
	_, err := m.NewRunner(cfg)
	require.ErrorIs(t, err, engine.ErrOutOfMemory)
	d := Windowed(20, 5)
	require.Equal(t, []bool{true, false, true, true, true}, []bool{
		d.InWindowGroup(0), d.InWindowGroup(1), d.InWindowGroup(2), d.InWindowGroup(3), d.InWindowGroup(4),
	})
	require.Equal(t, 20, d.GroupWindow())
	d.Layers[3].Mixer.Window = 0
	require.False(t, d.InWindowGroup(2), "a layer that sees all positions reads its keys")
	d.Layers[3].Mixer.Window = d.Context
	require.False(t, d.InWindowGroup(3))
}
