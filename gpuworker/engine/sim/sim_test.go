package sim

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

func tensors() []rules.Wanted {
	d := desc()
	return rules.Tensors(&d)
}

func desc() engine.ModelDesc {
	return engine.Uniform{
		Layers: 1, Hidden: 32, Heads: 2, KVHeads: 1, HeadDim: 16, FFN: 32, Vocab: 1000, Context: 4096, RopeDims: 16,
		RopeBase: 10000, RopeScale: 1, NormEps: 1e-5, TiedHead: true,
	}.Model()
}

// runner makes a device, a model and a runner, and closes them when the test ends.
func runner(t testing.TB, opts Options, cfg engine.RunnerConfig) engine.Runner {
	t.Helper()
	dev, err := Open(opts, hclog.NewNullLogger())
	require.NoError(t, err)
	m, err := dev.NewModel(desc())
	require.NoError(t, err)
	for _, w := range tensors() {
		d := engine.TensorDesc{Role: w.Role, Layer: w.Layer, Type: engine.F32, Dims: w.Dims}
		size, err := dev.ResidentSize(d)
		require.NoError(t, err)
		b, err := dev.Alloc(size, engine.Staging)
		require.NoError(t, err)
		require.NoError(t, m.Bind(d, b))
	}
	require.NoError(t, m.Seal())
	r, err := m.NewRunner(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, r.Close())
		require.NoError(t, m.Close())
		info, err := dev.Info()
		require.NoError(t, err)
		require.Equal(t, info.BytesTotal, info.BytesFree)
		require.NoError(t, dev.Close())
	})
	return r
}

func config() engine.RunnerConfig {
	return engine.RunnerConfig{
		KVBlocks: 64, BlockSize: 16, MaxSequences: 4, MaxBatchedTokens: 128, MaxSampleRows: 4, MaxScoreRows: 4, MaxTopN: 8,
		KVType: engine.F32,
	}
}

func params(seed uint64) *engine.SlotParams {
	return &engine.SlotParams{Seed: seed, Temperature: 1, TopP: 1, TypicalP: 1, RepetitionPenalty: 1, TopN: 3}
}

// generate runs a prompt and n further tokens in slot 0 with the given blocks.
func generate(t *testing.T, r engine.Runner, p *engine.SlotParams, prompt []int32, n int, blocks []int32) (tokens []int32) {
	t.Helper()
	step := &engine.Step{
		PreOps:   []engine.PreOp{{SlotGeneration: 1, Params: p}},
		Segments: []engine.Segment{{SlotGeneration: 1, Tokens: prompt, Blocks: blocks}},
		Samples:  []engine.SampleRow{{TokenIndex: int32(len(prompt) - 1), SlotGeneration: 1, Position: int32(len(prompt))}},
	}
	for at := len(prompt); len(tokens) < n; at++ {
		require.NoError(t, r.Submit(step))
		res, err := r.Wait(time.Minute)
		require.NoError(t, err)
		require.Equal(t, engine.RowOK, res.Samples[0].Status)
		tokens = append(tokens, res.Samples[0].Token)
		step = &engine.Step{
			Segments: []engine.Segment{{
				SlotGeneration: 1, Class: engine.Decode, FirstPosition: int32(at), Tokens: []int32{tokens[len(tokens)-1]}, Blocks: blocks,
			}},
			Samples: []engine.SampleRow{{SlotGeneration: 1, Position: int32(at + 1)}},
		}
	}
	return tokens
}

func TestTokensDependOnSeedAndOnEveryEarlierToken(t *testing.T) {
	r := runner(t, Options{Reserved: 16}, config())
	prompt := make([]int32, 40)
	for i := range prompt {
		prompt[i] = int32(100 + i)
	}
	blocks := []int32{3, 1, 9, 4}
	want := generate(t, r, params(7), prompt, 20, blocks)
	require.Equal(t, want, generate(t, r, params(7), prompt, 20, []int32{50, 60, 2, 11}), "block ids do not matter")
	large := config()
	large.BlockSize = 32
	require.Equal(t, want, generate(t, runner(t, Options{Reserved: 16}, large), params(7), prompt, 20, []int32{3, 1}), "nor does their size")
	require.NotEqual(t, want, generate(t, r, params(8), prompt, 20, blocks), "the seed does")
	for i := range prompt {
		other := append([]int32(nil), prompt...)
		other[i]++
		require.NotEqual(t, want, generate(t, r, params(7), other, 20, blocks), "and so does token %d", i)
	}
	for _, id := range want {
		require.GreaterOrEqual(t, id, int32(16), "reserved ids are not sampled")
	}
}

func TestOverwrittenBlockChangesTheContinuation(t *testing.T) {
	c := cache{blockSize: 16, cells: make([]uint64, 4*16)}
	blocks := []int32{0, 1, 2}
	tokens := func(first, n int) (run []int32) {
		for i := range n {
			run = append(run, int32(first+i))
		}
		return run
	}
	own := &history{}
	cells := own.add(tokens(0, 40))
	c.write(blocks, 0, tokens(0, 40), cells)
	want := c.context(blocks, 39)
	require.Equal(t, want, own.context(39))
	c.write([]int32{0}, 0, tokens(900, 5), (&history{}).add(tokens(900, 5))) // a stranger writes five tokens into the first block
	require.NotEqual(t, want, c.context(blocks, 39))
	c.write(blocks, 5, tokens(5, 11), cells[5:])
	require.NotEqual(t, want, c.context(blocks, 39), "what follows the stranger's tokens follows them")
	for _, n := range []int{16, 7, 1} {
		for p := 0; p < 16; p += n {
			run := tokens(p, min(n, 16-p))
			c.write(blocks, p, run, cells[p:])
		}
	}
	require.Equal(t, want, c.context(blocks, 39), "written again as it was, it is as it was")
	c.copyBlock(3, 2)
	require.Equal(t, want, c.context([]int32{0, 1, 3}, 39))
}

func TestWrongHistoryChangesTheContinuation(t *testing.T) {
	r := runner(t, Options{Reserved: 16}, config())
	prompt := make([]int32, 40)
	for i := range prompt {
		prompt[i] = int32(200 + i)
	}
	blocks := []int32{3, 1, 9, 4}
	want := generate(t, r, params(7), prompt, 1, blocks)
	from := func(at int32, change func(history, blocks []int32)) int32 {
		history, own := slices.Clone(prompt[:at]), slices.Clone(blocks)
		change(history, own)
		require.NoError(t, r.Submit(&engine.Step{
			PreOps:   []engine.PreOp{{Slot: 1, Params: params(7), History: history}},
			Segments: []engine.Segment{{Slot: 1, FirstPosition: at, Tokens: prompt[at:], Blocks: own}},
			Samples:  []engine.SampleRow{{TokenIndex: 39 - at, Slot: 1, Position: 40}},
		}))
		res, err := r.Wait(time.Minute)
		require.NoError(t, err)
		return res.Samples[0].Token
	}
	for _, at := range []int32{1, 15, 16, 17, 32, 39} {
		require.Equal(t, want[0], from(at, func([]int32, []int32) {}), at)
		for i := range at {
			require.NotEqual(t, want[0], from(at, func(history, _ []int32) { history[i] += 300 }), "token %d of %d", i, at)
		}
		require.NotEqual(t, want[0], from(at, func(_, own []int32) { own[0] = 20 }), "a block that nobody wrote, behind %d", at)
	}
}

func TestTheDistributionSumsToOneAndRanksAgree(t *testing.T) {
	for _, vocab := range []int{1, 3, 64, 1000} {
		d := newDistribution(0xfeedface, vocab)
		sum, seen := 0.0, map[int32]bool{}
		for rank := 1; rank <= vocab; rank++ {
			sum += math.Exp(float64(d.logprob(rank)))
			seen[d.token(rank)] = true
			require.Equal(t, rank, d.rank(d.token(rank)))
		}
		require.InDelta(t, 1, sum, 1e-5)
		require.Len(t, seen, vocab)
	}
}

func TestDrawsFollowTheDistribution(t *testing.T) {
	const draws = 200_000
	d := newDistribution(5, 1000)
	counts := make([]float64, 41)
	for seed := range draws {
		p := params(uint64(seed))
		counts[min(d.draw(p, 99, 3), 41)-1]++
	}
	chi, rest := 0.0, 1.0
	for rank := 1; rank <= 40; rank++ {
		p := math.Exp(float64(d.logprob(rank)))
		rest -= p
		chi += (counts[rank-1] - p*draws) * (counts[rank-1] - p*draws) / (p * draws)
	}
	chi += (counts[40] - rest*draws) * (counts[40] - rest*draws) / (rest * draws)
	require.Less(t, chi, 73.4, "one in a thousand at 40 degrees of freedom; the draws are fixed")
	require.LessOrEqual(t, d.draw(&engine.SlotParams{Temperature: 1, TopK: 2, Seed: 3}, 1, 1), 2)
	require.Equal(t, 1, d.draw(&engine.SlotParams{Seed: 3}, 1, 1))
}

func TestAStepTakesItsModelledTime(t *testing.T) {
	r := runner(t, Options{StepTime: time.Hour}, config())
	step := &engine.Step{
		PreOps:   []engine.PreOp{{SlotGeneration: 1, Params: params(1)}},
		Segments: []engine.Segment{{SlotGeneration: 1, Tokens: []int32{1}, Blocks: []int32{0}}},
	}
	require.NoError(t, r.Submit(step))
	_, err := r.Wait(time.Millisecond)
	require.ErrorIs(t, err, engine.ErrTimeout)
	p := r.Progress()
	require.Equal(t, uint64(1), p.Submitted)
	require.Zero(t, p.Completed)
	require.Positive(t, p.Running)
}

func TestOptionsParse(t *testing.T) {
	o, err := ParseOptions("sim")
	require.NoError(t, err)
	require.Equal(t, Default(), o)
	o, err = ParseOptions("sim:step=2ms,prefill=1us,decode=0s,memory=1000,reserved=0")
	require.NoError(t, err)
	require.Equal(t, Options{StepTime: 2 * time.Millisecond, PrefillTime: time.Microsecond, Memory: 1000}, o)
	for _, s := range []string{"cpu", "simulator", "sim:", "sim:step", "sim:step=-1s", "sim:memory=x", "sim:speed=1"} {
		_, err := ParseOptions(s)
		require.ErrorIs(t, err, engine.ErrInvalid, s)
	}
}

// BenchmarkPrefill reports how long one core takes for a prompt of 4000 tokens.
func BenchmarkPrefill(b *testing.B) {
	const length = 4000
	cfg := config()
	cfg.MaxSequences, cfg.KVBlocks, cfg.MaxBatchedTokens = 1, length/16+1, length
	r := runner(b, Options{}, cfg)
	blocks := make([]int32, cfg.KVBlocks)
	for i := range blocks {
		blocks[i] = int32(i)
	}
	s := &engine.Step{
		PreOps:   []engine.PreOp{{Params: params(1)}},
		Segments: []engine.Segment{{Tokens: make([]int32, length), Blocks: blocks}},
		Samples:  []engine.SampleRow{{TokenIndex: length - 1, Position: length}},
	}
	b.ReportAllocs()
	for b.Loop() {
		require.NoError(b, r.Submit(s))
		_, err := r.Wait(time.Minute)
		require.NoError(b, err)
	}
}

// BenchmarkDecode100 reports how many tokens a second one core makes for 100 sequences of 1000
// tokens.
func BenchmarkDecode100(b *testing.B) {
	const sequences, length = 100, 1000
	cfg := config()
	cfg.MaxSequences, cfg.MaxSampleRows, cfg.KVBlocks, cfg.MaxBatchedTokens = sequences, sequences, sequences*64, sequences*length
	r := runner(b, Options{Reserved: 16}, cfg)
	first, next := &engine.Step{}, &engine.Step{}
	for i := range int32(sequences) {
		blocks := make([]int32, 64)
		for j := range blocks {
			blocks[j] = i*64 + int32(j)
		}
		first.PreOps = append(first.PreOps, engine.PreOp{Slot: i, Params: params(uint64(i))})
		first.Segments = append(first.Segments, engine.Segment{Slot: i, Tokens: make([]int32, length), Blocks: blocks})
		first.Samples = append(first.Samples, engine.SampleRow{TokenIndex: length*i + length - 1, Slot: i, Position: length})
		next.Segments = append(next.Segments, engine.Segment{
			Slot: i, Class: engine.Decode, FirstPosition: length, Tokens: []int32{engine.PreviousSample}, Blocks: blocks,
		})
		next.Samples = append(next.Samples, engine.SampleRow{TokenIndex: i, Slot: i, Position: length + 1})
	}
	require.NoError(b, r.Submit(first))
	_, err := r.Wait(time.Minute)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		require.NoError(b, r.Submit(next))
		_, err := r.Wait(time.Minute)
		require.NoError(b, err)
	}
	b.ReportMetric(float64(sequences)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
}
