package enginetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func out(src, dst int32) engine.PreOp { return engine.PreOp{Kind: engine.BlockOut, Src: src, Dst: dst} }
func in(src, dst int32) engine.PreOp  { return engine.PreOp{Kind: engine.BlockIn, Src: src, Dst: dst} }

func ops(of ...engine.PreOp) *engine.Step { return &engine.Step{PreOps: of} }

// overwrite fills blocks 4 and 2 with tokens of another sequence.
func overwrite() *engine.Step {
	l := &line{slot: 6, prompt: 32, params: Plain(1, 1), blocks: []int32{4, 2}}
	step := ops(l.set(nil))
	l.feed(step, 0, span(100, 132)...)
	return step
}

// behind returns the step after prompt, over these blocks.
func behind(blocks ...int32) *engine.Step {
	step := next(20, 11)
	step.Segments[0].Blocks = blocks
	return step
}

func testHostBlocks(t *testing.T, opener func(*testing.T) engine.Device, _ Options) {
	const blocks = 20_000 // more than a piece of host memory holds
	with := func(t *testing.T) (*rig, engine.RowResult) {
		t.Helper()
		g := newRig(t, opener, func(c *engine.RunnerConfig) { c.HostBlocks = blocks })
		g.do(prompt())
		want := g.do(behind(4, 2)).Samples[0]
		return g, want
	}
	t.Run("bring a swapped sequence back to other blocks", func(t *testing.T) {
		g, want := with(t)
		g.do(ops(out(4, 3), out(2, blocks-1)))
		g.do(overwrite())
		require.NotEqual(t, want, g.do(behind(4, 2)).Samples[0], "the blocks are another's")
		step := behind(60, 61)
		step.PreOps = []engine.PreOp{in(3, 60), in(blocks-1, 61)}
		require.Equal(t, want, g.do(step).Samples[0])
		step.Segments[0].Blocks, step.PreOps = []int32{70, 61}, []engine.PreOp{in(3, 70)}
		require.Equal(t, want, g.do(step).Samples[0], "a block of host memory lasts")
	})
	t.Run("move in the order of pre-operations", func(t *testing.T) {
		g, want := with(t)
		step := behind(60, 61)
		step.PreOps = []engine.PreOp{
			out(4, 0), out(2, 1), {Kind: engine.BlockCopy, Src: 4, Dst: 2}, // out before it is overwritten
			in(0, 60), in(1, 61), // out and in within a step
			out(60, 1), in(0, 4), // a block of host memory is overwritten once it was read
		}
		require.Equal(t, want, g.do(step).Samples[0])
		step = behind(80, 81)
		step.PreOps = []engine.PreOp{in(1, 80), out(61, 0), in(0, 81)}
		require.Equal(t, want, g.do(step).Samples[0])
	})
	t.Run("move beside a step in flight", func(t *testing.T) {
		g, want := with(t)
		for range 20 {
			require.NoError(t, g.r.Submit(ops(out(4, 7), out(2, 8))))
			require.NoError(t, g.r.Submit(overwrite()))
			g.wait()
			step := behind(4, 2)
			step.PreOps = []engine.PreOp{in(7, 4), in(8, 2)}
			require.NoError(t, g.r.Submit(step))
			g.wait()
			require.Equal(t, want, g.wait().Samples[0])
		}
	})
	t.Run("keep what many sequences left there", func(t *testing.T) {
		g, _ := with(t)
		var want []engine.RowResult
		swapped := func(i int) *line {
			return &line{slot: 1, prompt: 20, params: Plain(uint64(i), 1), blocks: []int32{30, 31}}
		}
		host := func(i int) int32 { return int32(i * (blocks - 2) / 39) } // from the first to the last but one
		for i := range 40 {
			l := swapped(i)
			want = append(want, g.generate(l, nil, numbers(uint64(i), 20, g.desc.Vocab), 1)...)
			g.do(ops(out(30, host(i)), out(31, host(i)+1)))
		}
		for i := 39; i >= 0; i-- {
			l, ids := swapped(i), numbers(uint64(i), 20, g.desc.Vocab)
			l.blocks = []int32{90, 91}
			step := ops(in(host(i), 90), in(host(i)+1, 91), l.set(ids[:19]))
			l.sample(step, l.feed(step, 19, ids[19]), 20)
			require.NoError(t, sameRows(want[i:i+1], g.do(step).Samples), "sequence %d", i)
		}
	})
	t.Run("outside or never written are refused, and nothing changes", func(t *testing.T) {
		g, want := with(t)
		g.do(ops(out(4, 5)))
		for name, op := range map[string]engine.PreOp{
			"out to a block outside":         out(4, blocks),
			"out to a negative block":        out(4, -1),
			"out from a block outside":       out(128, 0),
			"out from a negative block":      out(-1, 0),
			"in from a block outside":        in(blocks, 0),
			"in from a negative block":       in(-1, 0),
			"in to a block outside":          in(5, 128),
			"in to a negative block":         in(5, -1),
			"in from a block never written":  in(6, 50),
			"an unknown kind of operation":   {Kind: 6},
			"a state out of a model without": {Kind: engine.StateOut},
			"a state in of a model without":  {Kind: engine.StateIn},
			"a negative kind of operation":   {Kind: -1},
			"a slot set without parameters":  {Kind: engine.SlotSet},
			"in from the last, never before": in(blocks-1, 50),
		} {
			require.ErrorIs(t, g.r.Submit(ops(out(4, 9), op)), engine.ErrInvalid, name)
			require.ErrorIs(t, g.r.Submit(ops(in(9, 50))), engine.ErrInvalid, "a refused step wrote a block, with %s", name)
		}
		require.Equal(t, want, g.do(behind(4, 2)).Samples[0])
		none := newRig(t, opener, nil)
		require.ErrorIs(t, none.r.Submit(ops(out(0, 0))), engine.ErrInvalid, "a runner without host blocks")
		require.ErrorIs(t, none.r.Submit(ops(in(0, 0))), engine.ErrInvalid)
	})
	t.Run("that the host has no memory for are refused, and nothing changes", func(t *testing.T) {
		dev := open(t, opener)
		refuse := refuser(t, dev)
		g := newRig(t, func(*testing.T) engine.Device { return keptOpen{dev} }, func(c *engine.RunnerConfig) { c.HostBlocks = 4 })
		g.do(prompt())
		want := g.do(behind(4, 2)).Samples[0]
		before := BooksOf(t, dev)
		for range 2 {
			refuse(engine.RefuseAlloc, 0, 1)
			step := overwrite()
			step.PreOps = append([]engine.PreOp{out(4, 1), set(0, 2, Plain(1, 1))}, step.PreOps...)
			require.ErrorIs(t, g.r.Submit(step), engine.ErrOutOfMemory)
			require.ErrorIs(t, g.r.Submit(ops(in(1, 50))), engine.ErrInvalid, "nothing was written")
			require.Equal(t, want, g.do(behind(4, 2)).Samples[0], "slot and blocks are as they were")
		}
		g.do(ops(out(4, 1), out(2, 3)))
		require.Equal(t, before, BooksOf(t, dev), "the ledger is the device's")
		g.do(overwrite())
		step := behind(60, 61)
		step.PreOps = []engine.PreOp{in(1, 60), in(3, 61)}
		require.Equal(t, want, g.do(step).Samples[0])
	})
	t.Run("have a size that is known before, and a number", func(t *testing.T) {
		m := Load(t, open(t, opener), Random(Small().Model(), all(engine.F16), 1))
		cfg := Sizes()
		plain, err := m.RunnerCost(cfg)
		require.NoError(t, err)
		cfg.HostBlocks = 1 << 30
		cost, err := m.RunnerCost(cfg)
		require.NoError(t, err)
		cfg.KVType = engine.F16 // the smallest that every engine has
		require.GreaterOrEqual(t, cost.HostBytesPerBlock, blockBytes(Small(), cfg))
		require.Equal(t, plain.KVBytes, cost.KVBytes, "host blocks take nothing of the device")
		require.NoError(t, NewRunner(t, m, cfg).Submit(ops(out(0, 1<<30-1))), "and of the host only what is written")
		for _, n := range []int{-1, 1 << 31, 1 << 40} {
			cfg.HostBlocks = n
			_, err := m.NewRunner(cfg)
			require.ErrorIs(t, err, engine.ErrInvalid, n)
		}
	})
}

// keptOpen is a device whose Close does nothing, because its owner closes it.
type keptOpen struct{ engine.Device }

func (keptOpen) Close() error { return nil }
