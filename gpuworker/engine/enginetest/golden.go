package enginetest

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/modeltest"
	"github.com/millrace/millrace/internal/repotest"
)

// Golden data of the stories models, with paths relative to the repository's root. The test of this
// package writes them with -update, from package reference. The other logprobs come from an
// independent implementation.
const (
	continuationsFile = "testdata/golden/stories-continuations.json"
	perplexityFile    = "testdata/golden/stories-perplexity.json"
)

// continuation is the greedy continuation of a prompt by the f16 model.
type continuation struct {
	Prompt []int32 `json:"prompt"`
	Tokens []int32 `json:"tokens"`
}

// window is a text for perplexity, sampled from the f16 model after BOS. NLL is the sum of -ln p of
// every token except the first, by variant, in float64. Head is the sum of the first headTokens.
type window struct {
	TokenIDs []int32            `json:"token_ids"`
	Text     string             `json:"text"`
	NLL      map[string]float64 `json:"nll"`
	Head     map[string]float64 `json:"head"`
}

const headTokens = 12

func readGolden(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(repotest.Path(file))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, into))
}

func testGolden(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	t.Run("logprobs of the f16 model", func(t *testing.T) {
		m := Load(t, open(t, opener), story(t, gguf.F16))
		texts := modeltest.ReadGolden(t)
		require.Len(t, texts, 3)
		for name, text := range texts {
			checkLogprobs(t, m, text, engine.Prefill, 0, opts, name+", prefill")
			for _, chunk := range []int{1, 8, 64} {
				checkLogprobs(t, m, text, engine.Decode, chunk, opts, fmt.Sprintf("%s, replayed by %d", name, chunk))
			}
		}
		var want map[string]continuation
		readGolden(t, continuationsFile, &want)
		require.Len(t, want, 3)
		for name, c := range want {
			require.Equal(t, texts[name].TokenIDs[:16], c.Prompt)
			checkContinuation(t, m, c, opts, name)
		}
	})
	t.Run("stories are the same in any company", func(t *testing.T) {
		w := story(t, gguf.Q8_0)
		prompt := modeltest.ReadGolden(t)["gen1"].TokenIDs[:70]
		_, err := sameness(Load(t, open(t, opener), w), subject{w, prompt, 20, []int{1, 7, 64}, engine.F32, 0}, opts.OneClass)
		require.NoError(t, err)
	})
	t.Run("perplexities", func(t *testing.T) {
		for _, typ := range scored() {
			checkPerplexities(t, opener, typ, opts)
		}
	})
}

// RunPerplexity checks that the perplexity of an engine with the cache of the options is within 0.5
// % of the float64 reference on the golden texts. It replaces the contract for a cache that is too
// coarse for it.
func RunPerplexity(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	t.Helper()
	opener = withCache(opener, opts)
	for _, typ := range []gguf.Type{gguf.F16, gguf.Q8_0, gguf.Q4K} {
		checkPerplexities(t, opener, typ, opts)
	}
}

func checkPerplexities(t *testing.T, opener func(*testing.T) engine.Device, typ gguf.Type, opts Options) {
	t.Helper()
	var windows []window
	readGolden(t, perplexityFile, &windows)
	t.Run(variant(typ), func(t *testing.T) { checkPerplexity(t, open(t, opener), typ, windows, opts) })
}

// checkLogprobs scores a whole text, `chunk` tokens a step (0: in one step), and compares every
// logprob and every set of the best eight tokens.
//
// An f16 cache with all else in float64 moves a candidate of these texts by 0.009, and f16
// activations in addition by up to 0.018. On engines that round, candidates therefore have twice
// the bound of next tokens.
func checkLogprobs(t *testing.T, m engine.Model, text modeltest.Golden, class engine.KernelClass, chunk int, opts Options,
	what string,
) {
	t.Helper()
	within := opts.logprobBound(engine.F16, 2e-3)
	candidates := within
	if _, rounds := opts.Activations[engine.F16]; rounds {
		candidates *= 2
	}
	p := Plain(0, 0)
	p.TopN = 8
	request := Request{Prompt: text.TokenIDs, Tokens: 1, Params: p, Score: true, Class: class, Chunk: chunk}
	out, err := Play(m, Sizes(), request)
	require.NoError(t, err)
	tops := [][]engine.Candidate{}
	sum, worst := 0.0, 0.0
	for i, row := range out[0].Scores {
		e := math.Abs(text.NextLogprob[i] - float64(row.Logprob))
		sum, worst = sum+e, math.Max(worst, e)
		require.False(t, math.IsNaN(e), "%s: token %d", what, i+1)
		tops = append(tops, row.Candidates)
	}
	t.Logf("%s: error of a next token's logprob: %.2g on average, largest %.2g", what, sum/float64(len(out[0].Scores)), worst)
	require.LessOrEqual(t, worst, within, what)
	require.LessOrEqual(t, sum/float64(len(out[0].Scores)), within/8, what)
	tops = append(tops, out[0].Tops)
	require.Len(t, tops, len(text.Top8))
	worst = 0
	defer func() { t.Logf("%s: largest error of a candidate's logprob: %.2g", what, worst) }()
	for i, want := range text.Top8 {
		require.Len(t, tops[i], 8)
		for j, c := range tops[i] {
			at := slices.IndexFunc(want[:], func(w [2]float64) bool { return int32(w[0]) == c.Token })
			if at < 0 { // only a tie with the eighth may be another token
				require.InDelta(t, want[7][1], c.Logprob, candidates, "%s: position %d: candidate %d", what, i, j)
				continue
			}
			worst = math.Max(worst, math.Abs(want[at][1]-float64(c.Logprob)))
			require.InDelta(t, want[at][1], c.Logprob, candidates, "%s: position %d: candidate %d", what, i, j)
		}
	}
}

// checkContinuation compares a greedy continuation token by token. It stops where the two best
// tokens are closer than the bound of a logprob: rounding decides between them, and from there on
// the texts may differ.
func checkContinuation(t *testing.T, m engine.Model, c continuation, opts Options, name string) {
	t.Helper()
	p := Plain(0, 0)
	p.TopN = 2
	tie := activationsIn[opts.Activations[engine.F16]].max
	out, err := Play(m, Sizes(), Request{Prompt: c.Prompt, Tokens: len(c.Tokens), Params: p})
	require.NoError(t, err)
	require.Len(t, out[0].Tokens, len(c.Tokens))
	equal := 0
	for equal < len(c.Tokens) && out[0].Tokens[equal] == c.Tokens[equal] {
		equal++
	}
	t.Logf("%s: %d of %d greedy tokens are the same", name, equal, len(c.Tokens))
	if equal < len(c.Tokens) {
		best := out[0].Tops[2*equal:]
		require.Less(t, best[0].Logprob-best[1].Logprob, float32(tie), "token %d of the greedy continuation of %s is %d, want %d",
			equal, name, out[0].Tokens[equal], c.Tokens[equal])
	}
}

// checkPerplexity scores the windows and compares the perplexity over them with the reference's.
func checkPerplexity(t *testing.T, dev engine.Device, typ gguf.Type, windows []window, opts Options) {
	t.Helper()
	m, name := Load(t, dev, story(t, typ)), variant(typ)
	cfg := Sizes()
	cfg.KVBlocks, cfg.MaxBatchedTokens, cfg.MaxScoreRows = 512, 2048, 2048
	if opts.Slow {
		windows = windows[:6]
	}
	got, want, tokens := 0.0, 0.0, 0
	for group := range slices.Chunk(windows, 4) {
		var requests []Request
		for i, win := range group {
			requests = append(requests, Request{Prompt: win.TokenIDs, Params: Plain(0, 0), Score: true, Slot: int32(i)})
			require.Contains(t, win.NLL, name)
			want += win.NLL[name]
			tokens += len(win.TokenIDs) - 1
		}
		outputs, err := Play(m, cfg, requests...)
		require.NoError(t, err)
		for _, o := range outputs {
			for _, row := range o.Scores {
				got -= float64(row.Logprob)
			}
		}
	}
	if !opts.Slow {
		require.GreaterOrEqual(t, tokens, 10_000)
	}
	gotPPL, wantPPL := math.Exp(got/float64(tokens)), math.Exp(want/float64(tokens))
	t.Logf("perplexity over %d tokens is %.5f, want %.5f: %+.4f %%", tokens, gotPPL, wantPPL, 100*(gotPPL/wantPPL-1))
	require.InEpsilon(t, wantPPL, gotPPL, 0.005)
}

// nll returns the sum of -ln p of the tokens after the first, by the reference.
func nll(d *reference.Decoder, tokens []int32) float64 {
	sum := 0.0
	logits := d.NewSequence().Append(tokens[:len(tokens)-1])
	for i, row := range logits {
		sum -= reference.LogSoftmax(row)[tokens[i+1]]
	}
	return sum
}
