package enginetest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
)

// sampler is a tiny model whose logits are known, and a runner with many slots over one prompt.
type sampler struct {
	t      *testing.T
	r      engine.Runner
	prompt []int32
	logits []float64
	within float64 // how far a logit of the engine may be from the reference's
}

const samplerSlots = 64

func newSampler(t *testing.T, opener func(*testing.T) engine.Device, opts Options) *sampler {
	t.Helper()
	desc := Small()
	desc.Layers, desc.Vocab = 1, 77
	w := Random(desc.Model(), all(engine.F32), 3)
	d, err := reference.NewDecoder(w)
	require.NoError(t, err)
	s := &sampler{t: t, within: opts.logprobBound(engine.F32, 1e-4), prompt: []int32{5, 9, 5, 30, 31, 5, 60, 76, 0, 9, 30, 12}}
	logits := d.NewSequence().Append(s.prompt)
	s.logits = logits[len(logits)-1]
	cfg := Sizes()
	cfg.MaxSequences, cfg.MaxSampleRows, cfg.MaxBatchedTokens = samplerSlots, samplerSlots, 2048
	s.r = NewRunner(t, Load(t, open(t, opener), w), cfg)
	if opts.Activations[engine.F32] != engine.F32 {
		s.takeLogits()
	}
	return s
}

// logprobs returns the engine's logprobs by token. They replace its logits, from which they differ
// by a constant and one rounding.
func (s *sampler) logprobs() []float32 {
	s.t.Helper()
	step := &engine.Step{
		PreOps:   []engine.PreOp{set(0, 1, Plain(0, 0))},
		Segments: []engine.Segment{{SlotGeneration: 1, Tokens: s.prompt, Blocks: []int32{0}}},
	}
	for token := range s.logits {
		step.Scores = append(step.Scores, engine.ScoreRow{TokenIndex: int32(len(s.prompt) - 1), Target: int32(token)})
	}
	require.NoError(s.t, s.r.Submit(step))
	res, err := s.r.Wait(guard)
	require.NoError(s.t, err)
	out := make([]float32, len(s.logits))
	for token, row := range res.Scores {
		out[token] = row.Logprob
	}
	return out
}

// checkTokens draws with many seeds and checks for the exact tokens that docs/sampling.md defines.
func (s *sampler) checkTokens(change func(*engine.SlotParams)) {
	s.t.Helper()
	logits, shift := s.logprobs(), 0.0
	for token, v := range logits {
		shift += (s.logits[token] - float64(v)) / float64(len(logits))
	}
	for token := range logits { // penalties look at a logit's sign
		logits[token] = float32(float64(logits[token]) + shift)
	}
	position := int32(len(s.prompt))
	var params []*engine.SlotParams
	for i := range samplerSlots {
		p := Plain(uint64(i+1)*0x9e3779b97f4a7c15, 1)
		p.OutputIndex = int32(i % 3)
		change(p)
		params = append(params, p)
	}
	for i, row := range s.draw(nil, params...) {
		want := reference.Choose(logits, params[i], s.prompt, position, nil)
		require.Equal(s.t, want.Token, row.Token, "draw %d", i)
	}
}

// takeLogits replaces the reference's logits by those of the engine, which rounded activations
// change: they decide which tokens may be drawn and their ranks.
func (s *sampler) takeLogits() {
	s.t.Helper()
	logprobs, shift := s.logprobs(), 0.0 // from logprobs to logits
	for token, v := range logprobs {
		shift += (s.logits[token] - float64(v)) / float64(len(s.logits))
	}
	for token, v := range logprobs {
		got := float64(v) + shift
		require.InDelta(s.t, s.logits[token], got, s.within)
		s.logits[token] = got
	}
}

// draw samples the position after the prompt once for each of the parameters. Slots whose
// parameters depend on the history compute the prompt; the others sample from the logits of the
// first one.
func (s *sampler) draw(mask []uint32, params ...*engine.SlotParams) []engine.RowResult {
	s.t.Helper()
	step := &engine.Step{}
	n := int32(len(s.prompt))
	for i, p := range params {
		slot := int32(i)
		step.PreOps = append(step.PreOps, set(slot, 1, p))
		if i == 0 || p.PenaltyWindow != 0 {
			step.Segments = append(step.Segments, engine.Segment{Slot: slot, SlotGeneration: 1, Tokens: s.prompt, Blocks: []int32{slot}})
		}
		step.Samples = append(step.Samples, engine.SampleRow{
			TokenIndex: n*int32(len(step.Segments)) - 1, Slot: slot, SlotGeneration: 1, Position: n, Mask: mask,
		})
	}
	require.NoError(s.t, s.r.Submit(step))
	res, err := s.r.Wait(guard)
	require.NoError(s.t, err)
	return slices.Clone(res.Samples)
}

// samplingCases change plain parameters; each is checked greedily and as a distribution.
func samplingCases() map[string]func(*engine.SlotParams) {
	return map[string]func(*engine.SlotParams){
		"nothing":              func(*engine.SlotParams) {},
		"a low temperature":    func(p *engine.SlotParams) { p.Temperature *= 0.4 },
		"a high temperature":   func(p *engine.SlotParams) { p.Temperature *= 2 },
		"top k":                func(p *engine.SlotParams) { p.TopK = 5 },
		"top k of one":         func(p *engine.SlotParams) { p.TopK = 1 },
		"top k above all":      func(p *engine.SlotParams) { p.TopK = 1000 },
		"top p":                func(p *engine.SlotParams) { p.TopP = 0.6 },
		"a tiny top p":         func(p *engine.SlotParams) { p.TopP = 1e-6 },
		"min p":                func(p *engine.SlotParams) { p.MinP = 0.2 },
		"min p of one":         func(p *engine.SlotParams) { p.MinP = 1 },
		"typical p":            func(p *engine.SlotParams) { p.TypicalP = 0.5 },
		"every filter":         func(p *engine.SlotParams) { p.TopK, p.TypicalP, p.TopP, p.MinP = 30, 0.9, 0.85, 0.05 },
		"a repetition penalty": func(p *engine.SlotParams) { p.RepetitionPenalty, p.PenaltyWindow = 1.8, -1 },
		"a penalty over a window": func(p *engine.SlotParams) {
			p.RepetitionPenalty, p.PresencePenalty, p.PenaltyWindow = 1.5, 0.7, 4
		},
		"a penalty over no window":    func(p *engine.SlotParams) { p.FrequencyPenalty, p.PenaltyWindow = 9, 0 },
		"a window beyond the history": func(p *engine.SlotParams) { p.FrequencyPenalty, p.PenaltyWindow = 0.9, 100 },
		"a penalty that rewards":      func(p *engine.SlotParams) { p.FrequencyPenalty, p.PenaltyWindow = -0.8, -1 },
		"a bias": func(p *engine.SlotParams) {
			p.BiasIDs, p.BiasValues = []int32{3, 70, 12}, []float32{3, -2, float32(math.Inf(-1))}
		},
		"a bias and a penalty on the same token": func(p *engine.SlotParams) {
			p.BiasIDs, p.BiasValues, p.RepetitionPenalty, p.PenaltyWindow = []int32{5}, []float32{4}, 1.5, -1
		},
		"allowed tokens":           func(p *engine.SlotParams) { p.Allowed = []int32{76, 2, 31, 32, 64} },
		"one allowed token":        func(p *engine.SlotParams) { p.Allowed = []int32{33} },
		"suppressed tokens":        func(p *engine.SlotParams) { p.Suppressed, p.MinTokens, p.PromptLength = span(0, 40), 1, 12 },
		"tokens suppressed before": func(p *engine.SlotParams) { p.Suppressed, p.MinTokens, p.PromptLength = span(0, 40), 3, 9 },
		"everything": func(p *engine.SlotParams) {
			p.Allowed, p.Suppressed, p.MinTokens, p.PromptLength = span(10, 77), []int32{20, 21}, 5, 12
			p.BiasIDs, p.BiasValues = []int32{40, 41}, []float32{2, 2}
			p.RepetitionPenalty, p.PresencePenalty, p.FrequencyPenalty, p.PenaltyWindow = 1.2, 0.3, 0.2, 10
			p.TopK, p.TypicalP, p.TopP, p.MinP = 40, 0.95, 0.9, 0.02
		},
	}
}

func testSampling(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	s := newSampler(t, opener, opts)
	position := int32(len(s.prompt))
	s.run("greedy takes the greatest with", func(name string, change func(*engine.SlotParams)) {
		p := Plain(1, 0)
		change(p)
		got := s.draw(nil, p)[0]
		processed := reference.Processed(s.logits, p, s.prompt, position, nil)
		best := slices.Max(processed)
		require.InDelta(s.t, best, processed[got.Token], s.within)
	})
	s.run("draws fit the expected frequencies with", func(name string, change func(*engine.SlotParams)) {
		s.checkFrequencies(nil, change)
	})
	s.run("the written rules give the token with", func(_ string, change func(*engine.SlotParams)) {
		s.checkTokens(change)
	})
	t.Run("a mask rules tokens out", func(t *testing.T) {
		s.t = t
		mask := []uint32{0x0f0f0001, 0, 0x1000}
		s.checkFrequencies(mask, func(*engine.SlotParams) {})
		s.checkFrequencies(mask, func(p *engine.SlotParams) { p.Allowed = []int32{76, 75, 24} })
	})
	t.Run("no token left is an empty row", func(t *testing.T) {
		s.t = t
		for name, p := range map[string]*engine.SlotParams{
			"suppressed whole":       {Suppressed: span(0, 77), MinTokens: 1, PromptLength: 12},
			"allowed and suppressed": {Allowed: []int32{3}, Suppressed: []int32{3}, MinTokens: 1, PromptLength: 12},
			"forbidden by bias":      {Allowed: []int32{3}, BiasIDs: []int32{3}, BiasValues: []float32{float32(math.Inf(-1))}},
		} {
			p.TopP, p.TypicalP, p.RepetitionPenalty = 1, 1, 1
			for _, temperature := range []float32{0, 1} {
				p.Temperature = temperature
				require.Equal(t, engine.RowEmpty, s.draw(nil, p)[0].Status, name)
			}
		}
		require.Equal(t, engine.RowEmpty, s.draw(make([]uint32, 3), Plain(1, 1))[0].Status, "masked whole")
	})
	t.Run("logprobs and ranks are of the raw logits, whatever the parameters", func(t *testing.T) {
		s.t = t
		want := reference.LogSoftmax(s.logits)
		p := Plain(5, 3)
		p.Allowed, p.TopN, p.BiasIDs, p.BiasValues = []int32{66}, 16, []int32{66}, []float32{-5}
		got := s.draw(nil, p)[0]
		require.EqualValues(t, 66, got.Token)
		require.InDelta(t, want[66], got.Logprob, s.within)
		rank := 1
		for _, v := range want {
			if v > want[66] {
				rank++
			}
		}
		require.EqualValues(t, rank, got.Rank)
		for _, c := range got.Candidates {
			require.InDelta(t, want[c.Token], c.Logprob, s.within)
		}
	})
	t.Run("the lowest id wins a tie", func(t *testing.T) {
		s.t = t
		// A bias that lifts several tokens far above the rest to the same f32: the sum is rounded
		// to the bias.
		p := Plain(1, 0)
		p.BiasIDs, p.BiasValues = []int32{70, 33, 44, 34}, []float32{1e9, 1e9, 1e9, 1e9}
		require.EqualValues(t, 33, s.draw(nil, p)[0].Token)
	})
	t.Run("the same seed draws the same token, and output indexes and positions differ", func(t *testing.T) {
		s.t = t
		var params []*engine.SlotParams
		for i := range samplerSlots {
			p := Plain(uint64(i/2)*0x9e3779b97f4a7c15, 1.5)
			params = append(params, p)
		}
		first := s.draw(nil, params...)
		for i := 0; i < len(first); i += 2 {
			require.Equal(t, first[i].Token, first[i+1].Token, "slots do not matter")
		}
		require.Equal(t, first, s.draw(nil, params...), "run again it is the same")
		for i := range params {
			params[i].Seed, params[i].OutputIndex = 77, int32(i)
		}
		distinct := map[int32]bool{}
		for _, row := range s.draw(nil, params...) {
			distinct[row.Token] = true
		}
		require.Greater(t, len(distinct), 8, "output indexes draw apart")
	})
	t.Run("ends the suppression with the first token beyond the minimum", func(t *testing.T) {
		s.t = t
		p := Plain(1, 0)
		p.Suppressed, p.MinTokens, p.PromptLength = span(0, 76), 2, 11 // one token is generated: the history's last
		require.EqualValues(t, 76, s.draw(nil, p)[0].Token)
		p.MinTokens = 1
		plain := s.draw(nil, Plain(1, 0))[0].Token
		require.Equal(t, plain, s.draw(nil, p)[0].Token)
	})
}

// run runs a check for every sampling case as a subtest.
func (s *sampler) run(prefix string, check func(name string, change func(*engine.SlotParams))) {
	t := s.t
	for name, change := range samplingCases() {
		t.Run(fmt.Sprintf("%s %s", prefix, name), func(t *testing.T) {
			s.t = t
			check(name, change)
		})
	}
	s.t = t
}

// checkFrequencies draws with many seeds and compares the frequencies with the reference by
// chi-square. The seeds are fixed, so the result is deterministic.
func (s *sampler) checkFrequencies(mask []uint32, change func(*engine.SlotParams)) {
	s.t.Helper()
	const draws = 20 * samplerSlots
	position := int32(len(s.prompt))
	counts := make([]float64, len(s.logits))
	var probs []float64
	for round := 0; round < draws; round += samplerSlots {
		var params []*engine.SlotParams
		for i := range samplerSlots {
			p := Plain(uint64(round+i), 1)
			change(p)
			params = append(params, p)
		}
		probs = reference.Probabilities(reference.Processed(s.logits, params[0], s.prompt, position, mask), params[0])
		for _, row := range s.draw(mask, params...) {
			require.Equal(s.t, engine.RowOK, row.Status)
			require.Positive(s.t, probs[row.Token], "token %d cannot be drawn", row.Token)
			counts[row.Token]++
		}
	}
	chi, degrees, restWant, restGot := 0.0, -1, 0.0, 0.0
	for i, p := range probs {
		want := p * draws
		if want < 5 { // too rare alone: counted together
			restWant, restGot = restWant+want, restGot+counts[i]
			continue
		}
		chi += (counts[i] - want) * (counts[i] - want) / want
		degrees++
	}
	if restWant >= 5 {
		chi += (restGot - restWant) * (restGot - restWant) / restWant
		degrees++
	}
	if degrees > 0 {
		require.Less(s.t, chi, chiSquareLimit(degrees), "chi-square of %d degrees", degrees)
	}
}

// chiSquareLimit returns a limit that chance exceeds once in a hundred thousand times, by the
// Wilson-Hilferty approximation.
func chiSquareLimit(degrees int) float64 {
	k := float64(degrees)
	root := 1 - 2/(9*k) + 4.265*math.Sqrt(2/(9*k))
	return k * root * root * root
}
