package enginetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// testWholeTexts checks models whose layers see later positions: the reference judges their hidden
// rows, whose bits depend on the tokens of their own text alone, and a step with a part of a text is
// refused. An engine may refuse such a model by name.
func testWholeTexts(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	dev := open(t, opener)
	d := Small().Model()
	d.Layers = append(d.Layers, d.Layers...)
	for i := range d.Layers { // without a window, with a short and a long one, and causal
		d.Layers[i].Mixer.Window, d.Layers[i].Mixer.Bidirectional = []int{0, 17, 300, 0}[i], i != 3
	}
	empty, err := dev.NewModel(d)
	if errors.Is(err, engine.ErrUnsupported) {
		require.ErrorContains(t, err, "layer 0 has attention that sees later positions")
		return
	}
	require.NoError(t, err)
	require.NoError(t, empty.Close())
	w := Random(d, all(engine.F32), 61)
	m := Load(t, dev, w)
	cfg := Sizes()
	cfg.MaxHiddenRows, cfg.MaxBatchedTokens = 400, 400
	r, err := m.NewRunner(cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	text := func(n int) Request {
		return Request{Prompt: numbers(uint64(n), n, d.Vocab), Params: Plain(1, 0), Hidden: positions(n)}
	}
	rows := map[int][]float32{}
	for _, n := range []int{1, 2, 16, 17, 18, 31, 70, 255, 257, 301, 330} {
		got, err := PlayOn(r, cfg, text(n))
		require.NoError(t, err, "%d tokens", n)
		rows[n] = got[0].Hidden
		require.Len(t, rows[n], n*d.Hidden)
		if opts.Numeric {
			judgeHidden(t, w, text(n).Prompt, rows[n], 2e-3)
		}
	}
	t.Run("sameness", func(t *testing.T) {
		others := []Request{text(31), text(257), text(16), text(2), text(70)}
		for i := range others {
			others[i].Slot = int32(i)
		}
		for _, at := range [][]int{{0, 1, 2, 3, 4}, {4, 2}, {3, 1, 0}, {2}} {
			var some []Request
			for _, i := range at {
				some = append(some, others[i])
			}
			got, err := PlayOn(r, cfg, some...)
			require.NoError(t, err)
			for i, request := range some {
				require.NoError(t, Output{Hidden: rows[len(request.Prompt)]}.equal(Output{Hidden: got[i].Hidden}), "texts %v, text %d", at, i)
			}
		}
	})
	t.Run("every row depends on the last token", func(t *testing.T) {
		changed := text(16) // within the window of 17
		changed.Prompt[15] = (changed.Prompt[15] + 1) % int32(d.Vocab)
		got, err := PlayOn(r, cfg, changed)
		require.NoError(t, err)
		for i := range 16 {
			row := Output{Hidden: rows[16][i*d.Hidden : (i+1)*d.Hidden]}
			require.Error(t, row.equal(Output{Hidden: got[0].Hidden[i*d.Hidden : (i+1)*d.Hidden]}), "position %d", i)
		}
	})
	t.Run("refusals", func(t *testing.T) { refuseParts(t, r, text(40).Prompt) })
	if opts.Numeric {
		t.Run("random descriptions", func(t *testing.T) { wholeDescriptions(t, dev, opts) })
	}
}

// refuseParts checks that a step with a part of a text is refused and changes nothing.
func refuseParts(t *testing.T, r engine.Runner, ids []int32) {
	t.Helper()
	set := []engine.PreOp{{Slot: 1, SlotGeneration: 7, Params: Plain(1, 0)}}
	part := func(from, to int) engine.Segment {
		return engine.Segment{Slot: 1, SlotGeneration: 7, FirstPosition: int32(from), Tokens: ids[from:to], Blocks: []int32{0, 1, 2}}
	}
	run := func(step *engine.Step) {
		t.Helper()
		require.NoError(t, r.Submit(step))
		_, err := r.Wait(guard)
		require.NoError(t, err)
	}
	run(&engine.Step{PreOps: set, Segments: []engine.Segment{part(0, 20)}})
	for name, step := range map[string]*engine.Step{
		"a second part":         {Segments: []engine.Segment{part(20, 40)}},
		"two parts in one step": {PreOps: set, Segments: []engine.Segment{part(0, 20), part(20, 40)}},
		"a part twice":          {Segments: []engine.Segment{part(0, 20), part(0, 20)}},
		"an end after a history": {
			PreOps:   []engine.PreOp{{Slot: 1, SlotGeneration: 7, Params: Plain(1, 0), History: ids[:20]}},
			Segments: []engine.Segment{part(20, 40)},
		},
	} {
		err := r.Submit(step)
		require.ErrorIs(t, err, engine.ErrInvalid, name)
		require.ErrorContains(t, err, "later positions", name)
	}
	run(&engine.Step{Segments: []engine.Segment{part(0, 40)}}) // the slot again, from its beginning
}

// wholeDescriptions compares random descriptions, some of whose layers see later positions, with
// the reference.
func wholeDescriptions(t *testing.T, dev engine.Device, opts Options) {
	t.Helper()
	for seed := range uint64(12) {
		d := Description(seed + 1000)
		sees := false
		for i := range d.Layers {
			m := &d.Layers[i].Mixer
			m.Bidirectional = m.Kind == engine.MixAttention && (!sees || (seed>>i)%2 == 0)
			sees = sees || m.Bidirectional
		}
		require.NoError(t, rules.CheckModel(&d))
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			tinyModel{desc: d, weights: engine.F32, seed: seed, prompt: []int{21, 40, 300}[seed%3], slack: 9}.checkWhole(t, dev, opts)
		})
	}
}

// checkWhole compares every type of cache with the reference on a text that is one segment, by the
// kernels of prompts and of decoding.
func (m tinyModel) checkWhole(t *testing.T, dev engine.Device, opts Options) {
	t.Helper()
	want, err := m.reference()
	require.NoError(t, err)
	model := Load(t, dev, want.weights)
	n := len(want.prompt)
	for _, kv := range opts.caches(&m.desc) {
		cfg := engine.RunnerConfig{
			KVBlocks: n/16 + 1, BlockSize: 16, MaxSequences: 1, MaxBatchedTokens: n, MaxSampleRows: 1, MaxScoreRows: n, MaxTopN: 4, KVType: kv,
		}
		p := Plain(5, 0)
		p.TopN = 4
		for _, class := range []engine.KernelClass{engine.Prefill, engine.Decode} {
			got, err := Play(model, cfg, Request{Prompt: want.prompt, Params: p, Score: true, Class: class, Chunk: n})
			require.NoError(t, err)
			within := want.within(kv, m.slack, opts)
			if want.farthest(got[0]) > within.max {
				within = want.conditioned(t, within, kv)
			}
			m.judge(t, fmt.Sprintf("cache of type %d, class %d", kv, class), got[0], want, within)
		}
	}
}
