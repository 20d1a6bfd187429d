package enginetest

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
)

// testHiddenRows checks the hidden states that embeddings are made of: the reference judges their
// numbers, and their bits depend on the tokens of their sequence alone.
func testHiddenRows(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	dev := open(t, opener)
	info, err := dev.Info()
	require.NoError(t, err)
	require.True(t, info.HiddenRows)
	w := Random(Small().Model(), all(engine.F32), 51)
	m := Load(t, dev, w)
	cfg := Sizes()
	cfg.MaxHiddenRows = cfg.MaxBatchedTokens
	request := Request{Prompt: numbers(52, 70, w.Desc.Vocab), Params: Plain(1, 0), Hidden: positions(70)}
	whole, err := Play(m, cfg, request)
	require.NoError(t, err)
	require.Len(t, whole[0].Hidden, 70*w.Desc.Hidden)
	if opts.Numeric {
		judgeHidden(t, w, request.Prompt, whole[0].Hidden, family{w, engine.F32, tolerance{2e-3, 2e-3}}.on(opts).max)
	}
	t.Run("sameness", func(t *testing.T) { hiddenSameness(t, m, cfg, request, whole[0], opts) })
	t.Run("behind a prefix of another slot", func(t *testing.T) { hiddenBehind(t, m, cfg, request, whole[0]) })
	t.Run("refusals", func(t *testing.T) { refuseHidden(t, m, cfg, request.Prompt) })
}

// positions are 0 to n-1.
func positions(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// judgeHidden compares hidden rows with those of the reference. Every row is normalised, so that
// errors of float32 stay small compared with the row's length; `within` bounds their share of it.
func judgeHidden(t *testing.T, w *reference.Weights, prompt []int32, got []float32, within float64) {
	t.Helper()
	decoder, err := reference.NewDecoder(w)
	require.NoError(t, err)
	want := decoder.NewSequence().Hidden(prompt)
	for row := range prompt {
		var apart, length float64
		for i := row * w.Desc.Hidden; i < (row+1)*w.Desc.Hidden; i++ {
			apart += (float64(got[i]) - want[i]) * (float64(got[i]) - want[i])
			length += want[i] * want[i]
		}
		require.Less(t, math.Sqrt(apart/length), within, "hidden row of position %d", row)
	}
}

// hiddenSameness compares the rows of a prompt that ran alone with those of other batches.
func hiddenSameness(t *testing.T, m engine.Model, cfg engine.RunnerConfig, request Request, want Output, opts Options) {
	t.Helper()
	same := func(what string, requests ...Request) {
		t.Helper()
		got, err := Play(m, cfg, requests...)
		require.NoError(t, err, what)
		require.NoError(t, want.equal(got[0]), what)
	}
	others := strangers(Small().Model().Vocab)
	others[1].Hidden = []int{0, 40, 89}
	same("beside three others", append([]Request{request}, others...)...)
	for _, chunk := range []int{1, 7, 16, 64} {
		chunked := request
		chunked.Chunk, chunked.Slot = chunk, 5
		same(fmt.Sprintf("in chunks of %d", chunk), chunked)
		same(fmt.Sprintf("in chunks of %d beside three others", chunk), append([]Request{chunked}, others...)...)
	}
	if opts.OneClass {
		decoded := request
		decoded.Class = engine.Decode
		same("through the decode kernels", decoded)
	}
	last := request
	last.Hidden, last.Tokens = []int{69}, 2
	got, err := Play(m, cfg, last)
	require.NoError(t, err)
	require.NoError(t, Output{Hidden: want.Hidden[69*len(want.Hidden)/70:]}.equal(Output{Hidden: got[0].Hidden}), "the last row alone, before two tokens")
}

// hiddenBehind computes the end of a prompt in a slot whose first blocks another slot has computed,
// as a hit in the prefix cache does.
func hiddenBehind(t *testing.T, m engine.Model, cfg engine.RunnerConfig, request Request, want Output) {
	t.Helper()
	r, err := m.NewRunner(cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	_, err = PlayOn(r, cfg, Request{Prompt: request.Prompt, Params: request.Params, Blocks: []int32{0, 1, 2, 3, 4}})
	require.NoError(t, err)
	step := &engine.Step{
		PreOps: []engine.PreOp{{Slot: 3, SlotGeneration: 9, Params: request.Params, History: request.Prompt[:48]}},
		Segments: []engine.Segment{{
			Slot: 3, SlotGeneration: 9, FirstPosition: 48, Tokens: request.Prompt[48:], Blocks: []int32{0, 1, 2, 7, 8},
		}},
		Hidden: []int32{21, 0, 21}, // in any order, and a row twice
	}
	require.NoError(t, r.Submit(step))
	result, err := r.Wait(guard)
	require.NoError(t, err)
	width := len(want.Hidden) / 70
	row := func(position int) []float32 { return want.Hidden[position*width : (position+1)*width] }
	for i, position := range []int{69, 48, 69} {
		got := Output{Hidden: result.Hidden[i*width : (i+1)*width]}
		require.NoError(t, Output{Hidden: row(position)}.equal(got), "position %d", position)
	}
}

// refuseHidden checks the bounds of hidden rows.
func refuseHidden(t *testing.T, m engine.Model, cfg engine.RunnerConfig, prompt []int32) {
	t.Helper()
	bad := cfg
	bad.MaxHiddenRows = -1
	_, err := m.NewRunner(bad)
	require.ErrorIs(t, err, engine.ErrInvalid)
	cfg.MaxHiddenRows = 2
	r, err := m.NewRunner(cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	for name, rows := range map[string][]int32{"a third row": {0, 1, 2}, "a token behind the step": {0, 70}, "a token before it": {-1}} {
		err := r.Submit(&engine.Step{
			PreOps:   []engine.PreOp{{SlotGeneration: 1, Params: Plain(1, 0)}},
			Segments: []engine.Segment{{SlotGeneration: 1, Tokens: prompt, Blocks: []int32{0, 1, 2, 3, 4}}}, Hidden: rows,
		})
		require.ErrorIs(t, err, engine.ErrInvalid, name)
		require.ErrorContains(t, err, "hidden row", name)
	}
}
