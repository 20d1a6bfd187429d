package enginetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
)

// subject is a model and a prompt on which sameness is checked.
type subject struct {
	weights *reference.Weights
	prompt  []int32
	tokens  int
	chunks  []int
	kv      engine.Type
	slow    int // tokens of the prompt that slow engines get; 0 = all
}

// keptSubjects are the subjects, made once. They are read-only.
var keptSubjects = sync.OnceValue(subjects)

// subjects are cheap enough for every path: a small model, one of width 4096 whose products run
// over long rows, one with a prompt that chunks of 512 and 128 cut, and one with more keys than
// 8192.
func subjects() map[string]subject {
	wide := engine.Uniform{
		Layers: 1, Hidden: 4096, Heads: 8, KVHeads: 2, HeadDim: 128, FFN: 512, Vocab: 320, Context: 512, RopeDims: 128,
		RopeBase: 10000, RopeScale: 1, NormEps: 1e-5,
	}
	deep := engine.Uniform{
		Layers: 1, Hidden: 64, Heads: 2, KVHeads: 1, HeadDim: 32, FFN: 64, Vocab: 200, Context: 9000, RopeDims: 32,
		RopeBase: 500_000, RopeScale: 1, NormEps: 1e-5,
	}
	long := engine.Uniform{
		Layers: 2, Hidden: 512, Heads: 4, KVHeads: 2, HeadDim: 128, FFN: 1024, Vocab: 320, Context: 1200, RopeDims: 128,
		RopeBase: 10000, RopeScale: 1, NormEps: 1e-5,
	}
	byRole := func(r engine.Role) engine.Type { // every kind of product in one model
		if r == engine.RoleRouter {
			return engine.F32
		}
		return []engine.Type{engine.Q8_0, engine.Q4_K, engine.BF16, engine.Q6_K, engine.F16, engine.Q4_0}[int(r)%6]
	}
	return map[string]subject{
		"a small model":         {Random(Small().Model(), all(engine.F32), 1), numbers(1, 70, 301), 10, []int{1, 7, 64}, engine.F32, 20},
		"a model of width 4096": {Random(wide.Model(), byRole, 2), numbers(2, 70, 320), 4, []int{1, 7, 64}, engine.F32, 20},
		"experts":               {Random(grouped(mixture(long.Model(), 16, 4)), withMXFP4(byRole), 5), numbers(5, 70, 320), 6, []int{1, 7, 64}, engine.F32, 20},
		"a prompt of 1100":      {Random(long.Model(), byRole, 4), numbers(4, 1100, 320), 4, []int{512, 128, 37}, engine.F32, 140},
		"latents":               {Random(grouped(mixture(wideLatents(long.Model()), 16, 4)), byRole, 6), numbers(6, 70, 320), 6, []int{1, 7, 64}, engine.F16, 20},
		"latents in pieces":     {Random(wideQueries(), all(engine.F32), 7), numbers(7, 70, 37), 2, []int{64}, engine.F32, 0},
		"keys beyond 8192":      {Random(deep.Model(), all(engine.Q8_0), 3), numbers(3, 8300, 200), 6, []int{257}, engine.BF16, 0},
	}
}

// withMXFP4 returns the types of matrices with MXFP4 for those of the experts.
func withMXFP4(types func(engine.Role) engine.Type) func(engine.Role) engine.Type {
	return func(r engine.Role) engine.Type {
		if r == engine.RoleExpertGate || r == engine.RoleExpertUp || r == engine.RoleExpertDown {
			return engine.MXFP4
		}
		return types(r)
	}
}

// strangers are three other requests in the batch, which start at other steps.
func strangers(vocab int) []Request {
	return []Request{
		{Prompt: numbers(11, 5, vocab), Tokens: 14, Params: Plain(1, 1), Slot: 4},
		{Prompt: numbers(12, 90, vocab), Tokens: 9, Params: Plain(2, 0), Slot: 1, Chunk: 33, Start: 1},
		{Prompt: numbers(13, 33, vocab), Tokens: 11, Params: Plain(3, 2), Slot: 7, Start: 3},
	}
}

// sameness returns an error if an output of a model depends on the other requests in the batch, the
// chunks, the slot, the blocks, or (with oneClass) the kernel class of a request.
func sameness(m engine.Model, s subject, oneClass bool) (Output, error) {
	cfg := Sizes()
	cfg.KVType, cfg.MaxScoreRows = s.kv, len(s.prompt)+200
	cfg.MaxBatchedTokens = len(s.prompt) + 200
	cfg.KVBlocks = (len(s.prompt)+s.tokens)/cfg.BlockSize + 64
	p := Plain(99, 0.8)
	p.TopN = 8
	request := Request{Prompt: s.prompt, Tokens: s.tokens, Params: p, Score: true}
	alone, err := Play(m, cfg, request)
	if err != nil {
		return Output{}, err
	}
	want := alone[0]
	try := func(what string, requests ...Request) error {
		got, err := Play(m, cfg, requests...)
		if err == nil {
			err = want.equal(got[0])
		}
		if err != nil {
			return fmt.Errorf("alone and %s: %w", what, err)
		}
		return nil
	}
	if err := try("beside three others", append([]Request{request}, strangers(s.weights.Desc.Vocab)...)...); err != nil {
		return want, err
	}
	for _, chunk := range s.chunks {
		chunked := request
		chunked.Chunk = chunk
		if err := try(fmt.Sprintf("in chunks of %d", chunk), chunked); err != nil {
			return want, err
		}
		if chunk == 7 {
			if err := try("in chunks of 7 beside three others", append([]Request{chunked}, strangers(s.weights.Desc.Vocab)...)...); err != nil {
				return want, err
			}
		}
	}
	moved := request
	moved.Slot = 5
	for i := cfg.KVBlocks - 1; len(moved.Blocks)*cfg.BlockSize < len(s.prompt)+s.tokens; i-- {
		moved.Blocks = append(moved.Blocks, int32(i))
	}
	if err := try("in another slot and other blocks", moved); err != nil {
		return want, err
	}
	if oneClass {
		decoded := request
		decoded.Class = engine.Decode
		if err := try("with the prompt through the decode kernels", decoded); err != nil {
			return want, err
		}
		if len(s.prompt) < 1000 {
			decoded.Chunk = 1
			if err := try("with the prompt through the decode kernels one at a time", decoded); err != nil {
				return want, err
			}
		}
	}
	if len(s.prompt) < 1000 {
		err = replays(m, cfg, request)
	}
	return want, err
}

// replays returns an error if outputs differ when the decode kernels compute the prompt, one, eight
// or sixty-four tokens at a time. After a preemption, generated tokens are computed in this way.
func replays(m engine.Model, cfg engine.RunnerConfig, request Request) error {
	request.Class, request.Chunk = engine.Decode, 1
	single, err := Play(m, cfg, request)
	if err != nil {
		return err
	}
	for _, chunk := range []int{8, 64} {
		request.Chunk = chunk
		got, err := Play(m, cfg, request)
		if err == nil {
			err = single[0].equal(got[0])
		}
		if err != nil {
			return fmt.Errorf("replayed one at a time and %d: %w", chunk, err)
		}
	}
	return nil
}

func testSameness(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	for name, s := range keptSubjects() {
		if opts.Slow && s.slow > 0 {
			s.prompt, s.tokens = s.prompt[:s.slow], 3
		}
		t.Run(name, func(t *testing.T) {
			dev := open(t, opener)
			skipUnbuilt(t, dev, &s.weights.Desc)
			m := Load(t, dev, s.weights)
			want, err := sameness(m, s, opts.OneClass)
			require.NoError(t, err)
			if opts.Threads == nil {
				return
			}
			for _, threads := range []int{1, 2} {
				threaded := func(t *testing.T) engine.Device {
					t.Helper()
					return opts.Threads(t, threads)
				}
				m := Load(t, open(t, threaded), s.weights)
				cfg := Sizes()
				cfg.KVType, cfg.MaxScoreRows, cfg.MaxBatchedTokens = s.kv, len(s.prompt), len(s.prompt)
				cfg.KVBlocks = len(s.prompt)/cfg.BlockSize + 8
				p := Plain(99, 0.8)
				p.TopN = 8
				got, err := Play(m, cfg, Request{Prompt: s.prompt, Tokens: s.tokens, Params: p, Score: true})
				require.NoError(t, err)
				require.NoError(t, want.equal(got[0]), "with %d threads", threads)
			}
		})
	}
	t.Run("catches an engine that splits by the size of the batch", func(t *testing.T) {
		s := keptSubjects()["a small model"]
		mutants := map[string]func(StepShape) bool{
			"more than one segment": func(s StepShape) bool { return s.Segments > 1 },
			"more than 32 tokens":   func(s StepShape) bool { return s.Tokens > 32 },
			"one token":             func(s StepShape) bool { return s.Tokens == 1 },
		}
		for name, splits := range mutants {
			mutant := Intercept(open(t, opener), Hooks{Result: func(shape StepShape, res *engine.StepResult) {
				if !splits(shape) {
					return
				}
				for _, rows := range [][]engine.RowResult{res.Samples, res.Scores} {
					for i := range rows {
						rows[i].Logprob *= 1 + 1.0/(1<<23) // the last bit
					}
				}
			}})
			_, err := sameness(Load(t, mutant, s.weights), s, opts.OneClass)
			require.ErrorContains(t, err, "alone and ", "a split at %s", name)
		}
	})
}
