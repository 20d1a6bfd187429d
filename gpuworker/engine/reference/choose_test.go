package reference_test

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
	"github.com/millrace/millrace/gpuworker/engine/reference/philox"
	"github.com/millrace/millrace/internal/repotest"
)

// example is the worked example of docs/sampling.md.
func example() string {
	logits := []float32{1.25, 3.5, -0.5, 4.125, 2.75, 4.125, 0.5, 3.875, 2.5, 3}
	prompt, generated := []int32{3, 1, 4, 1, 5}, []int32{7, 9}
	history := slices.Concat(prompt, generated)
	p := &engine.SlotParams{
		Seed: 20, OutputIndex: 1, PromptLength: int32(len(prompt)), MinTokens: 4, Temperature: 0.8,
		TopK: 6, TypicalP: 0.95, TopP: 0.9, MinP: 0.2,
		RepetitionPenalty: 1.25, PresencePenalty: 0.25, FrequencyPenalty: 0.125, PenaltyWindow: 6,
		BiasIDs: []int32{6, 8}, BiasValues: []float32{float32(math.Inf(-1)), 1.5}, Suppressed: []int32{0},
	}
	position := int32(len(history))
	c := reference.Choose(logits, p, history, position, nil)
	var b strings.Builder
	fmt.Fprintf(&b, "prompt %v, generated so far %v: position %d\n", prompt, generated, position)
	fmt.Fprintf(&b, "seed %d, output_index %d, temperature %g, top_k %d, typical_p %g, top_p %g, min_p %g\n", p.Seed, p.OutputIndex,
		p.Temperature, p.TopK, p.TypicalP, p.TopP, p.MinP)
	fmt.Fprintf(&b, "repetition_penalty %g, presence_penalty %g, frequency_penalty %g, penalty_window %d\n", p.RepetitionPenalty,
		p.PresencePenalty, p.FrequencyPenalty, p.PenaltyWindow)
	fmt.Fprintf(&b, "logit_bias {6: -inf, 8: 1.5}, min_tokens %d, the model's end token is 0\n\n", p.MinTokens)
	fmt.Fprintf(&b, "id   logit  processed       weight           mass\n")
	for id, x := range logits {
		fmt.Fprintf(&b, "%2d  %6g  %9.7g  %11.8g  %13d\n", id, x, c.Processed[id], c.Weights[id], c.Masses[id])
	}
	mass := func(ids []int32) (sum uint64) {
		for _, id := range ids {
			sum += c.Masses[id]
		}
		return sum
	}
	fmt.Fprintln(&b)
	for _, f := range []struct {
		name string
		kept []int32
	}{{"top_k", c.TopK}, {"typical_p", c.TypicalP}, {"top_p", c.TopP}, {"min_p", c.MinP}} {
		fmt.Fprintf(&b, "%-9s  keeps %v, mass %d\n", f.name, f.kept, mass(f.kept))
	}
	words := philox.Words(p.Seed, [4]uint32{uint32(position), uint32(p.OutputIndex), 0, 0})
	fmt.Fprintf(&b, "\nPhilox words %08x %08x %08x %08x, r = %d\n", words[0], words[1], words[2], words[3], c.Random)
	fmt.Fprintf(&b, "t = floor(r * %d / 2^64) = %d\n", c.Total, c.Threshold)
	sum := uint64(0)
	for _, id := range c.MinP {
		sum += c.Masses[id]
		fmt.Fprintf(&b, "running sum after id %d: %d\n", id, sum)
		if id == c.Token {
			break
		}
	}
	fmt.Fprintf(&b, "token %d\n", c.Token)
	return b.String()
}

func TestSamplingPageExampleIsRight(t *testing.T) {
	const begin, end = "## A worked example\n\n```text\n", "```\n"
	path := repotest.Path("docs/sampling.md")
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(raw), begin)
	require.True(t, ok, "docs/sampling.md has no worked example")
	shown, behind, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if *repotest.Update {
		raw = []byte(before + begin + example() + end + behind)
		require.NoError(t, os.WriteFile(path, raw, 0o644))
		return
	}
	require.Equal(t, example(), shown, "go test ./gpuworker/engine/reference -run SamplingPage -update writes it")
	require.False(t, bytes.Contains(raw, []byte("\t")))
}

func TestChooseDrawsByProbabilities(t *testing.T) {
	// Where the rules in integers and the ones in float64 say how often a token is drawn, they
	// agree.
	random := rand.New(rand.NewPCG(3, 4))
	for range 40 {
		logits, exact := make([]float32, 50), make([]float64, 50)
		for i := range logits {
			logits[i] = float32(3 * random.NormFloat64())
			exact[i] = float64(logits[i])
		}
		p := &engine.SlotParams{
			Temperature: 0.3 + random.Float32(), TopK: random.Int32N(30), TypicalP: 0.5 + random.Float32()/2,
			TopP: 0.5 + random.Float32()/2, MinP: random.Float32() / 5, RepetitionPenalty: 0.8 + random.Float32(),
			PresencePenalty: random.Float32(), FrequencyPenalty: random.Float32(), PenaltyWindow: random.Int32N(9) - 1,
			BiasIDs: []int32{1}, BiasValues: []float32{2}, Suppressed: []int32{2}, MinTokens: 9,
		}
		history := []int32{4, 5, 4, 9, 1, 4}
		c := reference.Choose(logits, p, history, 6, nil)
		want := reference.Probabilities(reference.Processed(exact, p, history, 6, nil), p)
		for id, q := range want {
			kept := 0.0
			for _, k := range c.MinP {
				if int(k) == id {
					kept = float64(c.Masses[id]) / float64(c.Total)
				}
			}
			require.InDelta(t, q, kept, 1e-5, "token %d of %+v", id, p)
		}
	}
}

func TestChooseTakesTheLowestIDOfTies(t *testing.T) {
	p := &engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1}
	require.EqualValues(t, 1, reference.Choose([]float32{0, 2, 2}, p, nil, 0, nil).Token)
	p.Temperature, p.TopK = 1, 1
	require.Equal(t, []int32{1}, reference.Choose([]float32{0, 2, 2}, p, nil, 0, nil).MinP)
	require.EqualValues(t, -1, reference.Choose([]float32{0, 2, 2}, p, nil, 0, []uint32{0}).Token, "no token is left")
}

func TestWeightsAreRoundedOnce(t *testing.T) {
	// The engines' exponential is within 1.01 units in the last place of e^x, which a fused
	// multiply-add in float32 is needed for.
	random := rand.New(rand.NewPCG(5, 6))
	p := &engine.SlotParams{Temperature: 1, TopP: 1, TypicalP: 1, RepetitionPenalty: 1}
	for range 20000 {
		x := -28 * random.Float32()
		got := float64(reference.Choose([]float32{0, x}, p, nil, 0, nil).Weights[1])
		want := math.Exp(float64(x))
		unit := math.Ldexp(1, new(big.Float).SetFloat64(want).MantExp(nil)-24)
		require.InDelta(t, want, got, 1.01*unit, "e^%v", x)
	}
}
