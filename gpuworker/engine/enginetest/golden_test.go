package enginetest

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine/reference"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/modeltest"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	"github.com/millrace/millrace/internal/repotest"
)

var only = flag.String("variants", "", "with -update: compute the perplexities of these weight types alone, on the recorded "+
	"texts: q6_k,iq4_nl")

func decoder(t *testing.T, typ gguf.Type) *reference.Decoder {
	t.Helper()
	d, err := reference.NewDecoder(story(t, typ))
	require.NoError(t, err)
	return d
}

func writeGolden(t *testing.T, file string, v any) {
	t.Helper()
	data, err := json.MarshalIndent(v, "", " ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(repotest.Path(file), append(data, '\n'), 0o644))
}

func TestReferenceMatchesIndependentLogprobs(t *testing.T) {
	d := decoder(t, gguf.F16)
	for name, text := range modeltest.ReadGolden(t) {
		logits := d.NewSequence().Append(text.TokenIDs)
		for i, want := range text.NextLogprob {
			require.InDelta(t, want, reference.LogSoftmax(logits[i])[text.TokenIDs[i+1]], 2e-6, "%s: token %d", name, i+1)
		}
		for i, top := range text.Top8 {
			for _, w := range top {
				require.InDelta(t, w[1], reference.LogSoftmax(logits[i])[int(w[0])], 2e-6, "%s: position %d", name, i)
			}
		}
	}
}

func TestGoldenContinuationsAreTheReferences(t *testing.T) {
	d := decoder(t, gguf.F16)
	texts := modeltest.ReadGolden(t)
	const length = 64
	check := 4 // of the recorded tokens
	anew := *repotest.Update && *only == ""
	if anew {
		check = length
	}
	got := map[string]continuation{}
	for name, text := range texts {
		c := continuation{Prompt: text.TokenIDs[:16]}
		seq := d.NewSequence()
		logits := seq.Append(c.Prompt)
		for len(c.Tokens) < check {
			last := logits[len(logits)-1]
			best := int32(slices.Index(last, slices.Max(last)))
			sorted := slices.Sorted(slices.Values(last))
			require.Greater(t, sorted[len(sorted)-1]-sorted[len(sorted)-2], 4e-3, "%s: a tie is no golden data", name)
			c.Tokens = append(c.Tokens, best)
			logits = seq.Append([]int32{best})
		}
		got[name] = c
	}
	if anew {
		writeGolden(t, continuationsFile, got)
		return
	}
	var want map[string]continuation
	readGolden(t, continuationsFile, &want)
	require.Len(t, want, len(got))
	for name, c := range got {
		require.Equal(t, c.Prompt, want[name].Prompt)
		require.Len(t, want[name].Tokens, length)
		require.Equal(t, c.Tokens, want[name].Tokens[:check])
	}
}

func TestGoldenPerplexitiesAreTheReferences(t *testing.T) {
	require.False(t, *only != "" && !*repotest.Update, "-variants says what -update computes")
	if *repotest.Update {
		updatePerplexities(t)
	}
	var windows []window
	readGolden(t, perplexityFile, &windows)
	tokens := 0
	for _, w := range windows {
		tokens += len(w.TokenIDs) - 1
	}
	require.GreaterOrEqual(t, tokens, 10_000)
	for _, typ := range scored() {
		name := variant(typ)
		for _, w := range windows {
			require.Contains(t, w.NLL, name)
		}
		d := decoder(t, typ)
		for _, w := range windows[:2] { // a short piece: the whole takes minutes
			require.InDelta(t, w.Head[name], nll(d, w.TokenIDs[:headTokens+1]), 1e-9,
				"%s: are these other weights? go test ./gpuworker/engine/enginetest -update -variants %s", name, name)
		}
	}
}

// updatePerplexities computes the texts under every variant, or under those of -variants alone.
func updatePerplexities(t *testing.T) {
	t.Helper()
	var windows []window
	types := scored()
	if *only == "" {
		windows = sampleWindows(t)
	} else {
		readGolden(t, perplexityFile, &windows)
		types = nil
		for name := range strings.SplitSeq(*only, ",") {
			i := slices.IndexFunc(scored(), func(typ gguf.Type) bool { return variant(typ) == name })
			require.GreaterOrEqual(t, i, 0, "-variants: %q is none of %v", name, scored())
			types = append(types, scored()[i])
		}
	}
	for _, typ := range types {
		d, name := decoder(t, typ), variant(typ)
		sum, n := 0.0, 0
		for _, w := range windows {
			w.NLL[name], w.Head[name] = nll(d, w.TokenIDs), nll(d, w.TokenIDs[:headTokens+1])
			sum, n = sum+w.NLL[name], n+len(w.TokenIDs)-1
		}
		t.Logf("%s: perplexity %.5f over %d tokens", name, math.Exp(sum/float64(n)), n)
	}
	writeGolden(t, perplexityFile, windows)
}

// sampleWindows samples texts from the f16 model.
func sampleWindows(t *testing.T) []window {
	t.Helper()
	f, err := gguf.Open(modeltest.Stories(t, gguf.F16))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	tok, err := tokenizer.New(f.Metadata())
	require.NoError(t, err)
	d := decoder(t, gguf.F16)
	const bos, eos, longest, least = 0, 1, 400, 10_000
	var windows []window
	for tokens, seed := 0, uint64(1); tokens < least; seed++ {
		rng := generator(seed)
		ids := []int32{bos}
		seq := d.NewSequence()
		for len(ids) < longest && (len(ids) == 1 || ids[len(ids)-1] != eos) {
			logits := seq.Append(ids[len(ids)-1:])
			u := rng.Float64()
			next := int32(0)
			for i, p := range reference.Softmax(logits[0]) {
				if u -= p; u < 0 {
					next = int32(i)
					break
				}
			}
			ids = append(ids, next)
		}
		if len(ids) <= headTokens+1 {
			continue
		}
		text, err := tok.Decode(ids, tokenizer.DecodeOptions{})
		require.NoError(t, err)
		windows = append(windows, window{
			TokenIDs: ids, Text: text, NLL: map[string]float64{}, Head: map[string]float64{},
		})
		tokens += len(ids) - 1
	}
	return windows
}
