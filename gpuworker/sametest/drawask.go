package sametest

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// entries is how many different asks there are of one model and length: few enough that scenarios share them, and with them what
// they give alone, and enough that their parameters occur in every combination of two.
const entries = 160

// trunks are beginnings that prompts of a model share.
const (
	trunks      = 5
	trunkLength = 160
)

// size bounds an ask in tokens.
type size struct{ prompt, tokens int }

var (
	ordinary = size{100, 24}
	lasting  = size{60, 44} // generates long enough to be resumed anywhere, and to want more blocks than it began with
	slender  = size{24, 5}  // of a model whose every token is dear
)

// drawAsk is the ask number entry of a model. Lengths lie on the edges of blocks as often as between them.
func drawAsk(model, entry int, most size) ask {
	d := roll(streamAsk, uint64(model)<<40|uint64(most.prompt)<<32|uint64(most.tokens)<<16|uint64(entry))
	vocab := models[model].desc.Vocab
	a := ask{model: model, topN: -1, prompt: drawPrompt(d, model, most.prompt)}
	switch d.IntN(8) {
	case 0:
		a.tokens = d.one(1, 2)
	case 1, 2, 3:
		a.tokens = d.one(1, most.tokens)
	default:
		a.tokens = d.one((most.tokens+1)/2, most.tokens)
	}
	a.params = drawParams(d, vocab)
	a.params.PromptLength = int32(len(a.prompt))
	if d.in(3) {
		a.stops = d.ids(d.one(1, 3), vocab)
		if d.in(2) { // as a server does: what would end the answer too early is not sampled
			a.params.MinTokens = int32(d.one(1, 8))
			a.params.Suppressed = a.stops
			if d.in(12) { // nothing may be sampled at all
				a.params.Allowed = a.stops
			}
		}
	}
	if d.in(5) {
		a.topN = d.one(0, 5)
		if d.in(4) {
			a.tokens = 0
		}
	}
	if d.in(4) {
		a.expression = expressions[d.IntN(len(expressions))]
		a.logprobs = d.in(3)
	}
	return a
}

// drawPrompt is a piece of a trunk and a tail of its own, either of which may be empty, but not both.
func drawPrompt(d dice, model, most int) []int32 {
	vocab := models[model].desc.Vocab
	n := d.one(1, most)
	if d.in(2) {
		n = min(most, max(1, 16*d.one(0, (most+15)/16)+d.one(-1, 1)))
	}
	shared := 0
	if !d.in(3) {
		shared = d.one(n/2, n)
	}
	trunk := roll(streamTokens, uint64(model*trunks+d.IntN(trunks))).ids(trunkLength, vocab)
	return append(slices.Clone(trunk[:shared]), d.ids(n-shared, vocab)...)
}

// drawParams turns each knob in about a third of the asks, so that alone and together each is met many times.
func drawParams(d dice, vocab int) engine.SlotParams {
	p := engine.SlotParams{
		Seed: d.Uint64(), Temperature: pick[float32](d, 0, 0.4, 0.8, 1, 1.7), TopP: 1, TypicalP: 1, RepetitionPenalty: 1,
	}
	knobs := []func(){
		func() { p.TopK = pick[int32](d, 1, 2, 5, 40) },
		func() { p.TopP = pick[float32](d, 0.05, 0.5, 0.9, 0.99) },
		func() { p.MinP = pick[float32](d, 0.01, 0.1, 0.6) },
		func() { p.TypicalP = pick[float32](d, 0.2, 0.7, 0.95) },
		func() {
			p.RepetitionPenalty = pick[float32](d, 0.7, 1.1, 1.8)
			p.PenaltyWindow = pick[int32](d, 1, 5, 16, 64, -1)
		},
		func() {
			p.PresencePenalty = pick[float32](d, -0.7, 0.5, 2)
			p.PenaltyWindow = pick[int32](d, 0, 2, 17, 33, -1)
		},
		func() {
			p.FrequencyPenalty = pick[float32](d, -0.3, 0.2, 1.5)
			p.PenaltyWindow = pick[int32](d, 3, 31, 32, -1)
		},
		func() {
			p.BiasIDs = d.ids(d.one(1, 4), vocab)
			slices.Sort(p.BiasIDs)
			p.BiasIDs = slices.Compact(p.BiasIDs)
			for range p.BiasIDs {
				p.BiasValues = append(p.BiasValues, pick[float32](d, -100, -1, 0.5, 3, 8))
			}
		},
		func() { p.Allowed = d.ids(pick(d, 1, 2, 9, vocab), vocab) },
		func() { p.TopN = int32(d.one(1, 8)) },
	}
	for i, turn := range knobs {
		if d.in(4) || i == len(knobs)-1 && d.in(2) {
			turn()
		}
	}
	return p
}
