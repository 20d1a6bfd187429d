package enginetest

import (
	"encoding/binary"
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
)

// farStateTokensVariable names the variable of the environment that says how many tokens a soak
// carries a state over.
const farStateTokensVariable = "MILLRACE_STATE_TOKENS"

const (
	farStateChunk = 256 // tokens a step
	farStateRows  = 64  // compared at the end of a step
)

// farStateModel has a delta net of two heads, one of which forgets almost nothing, and attention
// that sees few positions. So errors come from the state.
func farStateModel() *reference.Weights {
	desc := engine.Uniform{
		Layers: 2, Hidden: 64, Heads: 2, KVHeads: 1, HeadDim: 32, FFN: 64, Vocab: 120, Context: 1 << 20, RopeDims: 32,
		RopeBase: 1e6, RopeScale: 1, NormEps: 1e-5,
	}.Model()
	desc.Layers[0].Mixer = engine.Mixer{
		Kind: engine.MixDelta, Heads: 2, KVHeads: 1, KeyDim: 32, ValueDim: 32, Conv: 4, Rope: engine.NoRope,
	}
	desc.Layers[1].Mixer.Window = 16
	weights := Random(desc, all(engine.F32), 92)
	a := weights.Tensors[weights.Find(engine.RoleDeltaA, 0)].Bytes
	binary.LittleEndian.PutUint32(a, math.Float32bits(-1e-6))
	return weights
}

// testFarStates checks that logprobs after thousands of tokens have an error against float64 that a
// short text is allowed too.
func testFarStates(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	n := 4096
	if text := os.Getenv(farStateTokensVariable); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err, farStateTokensVariable)
	}
	n = (n + farStateChunk - 1) / farStateChunk * farStateChunk
	weights := farStateModel()
	within := family{weights, engine.F32, tolerance{2e-5, 1e-4}}.on(opts)
	d, err := reference.NewDecoder(weights)
	require.NoError(t, err)
	want := d.NewSequence()
	g := &rig{t: t, cfg: Sizes()}
	g.cfg.KVBlocks = n/16 + 1
	dev := open(t, opener)
	skipUnbuilt(t, dev, &weights.Desc)
	g.model = Load(t, dev, weights)
	g.r = NewRunner(t, g.model, g.cfg)

	tokens := numbers(93, n+1, weights.Desc.Vocab)
	l := &line{prompt: n, params: Plain(1, 0), blocks: blocksFrom(0, int32(g.cfg.KVBlocks))}
	step := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
	for end := farStateChunk; end <= n; end += farStateChunk {
		first := end - farStateChunk
		l.feed(step, first, tokens[first:end]...)
		logits := want.Append(tokens[first:end])
		compared := end&(end-1) == 0 || end == n // powers of two, and the last
		for i := farStateChunk - farStateRows; compared && i < farStateChunk; i++ {
			step.Scores = append(step.Scores, engine.ScoreRow{TokenIndex: int32(i), Target: tokens[first+i+1], TopN: 16})
		}
		var errors drift
		for i, row := range g.do(step).Scores {
			logprobs := reference.LogSoftmax(logits[farStateChunk-farStateRows+i])
			errors.add(t, row.Logprob, logprobs[row.Token])
			for _, c := range row.Candidates {
				errors.add(t, c.Logprob, logprobs[c.Token])
			}
		}
		step = &engine.Step{}
		if !compared {
			continue
		}
		found := errors.found()
		t.Logf("after %d tokens: error of a logprob: rms %.2g, largest %.2g", end, found.rms, found.max)
		require.LessOrEqual(t, found.rms, within.rms, "after %d tokens", end)
		require.LessOrEqual(t, found.max, within.max, "after %d tokens", end)
	}
}
