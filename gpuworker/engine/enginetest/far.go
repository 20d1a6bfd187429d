package enginetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// farEdge is a number of keys that does not fit 16 bits; slow engines get fewer.
func farEdge(opts Options) int {
	if opts.Slow {
		return 1 << 13
	}
	return 1 << 16
}

// testFar checks a request with many keys before it: its bits must not depend on the size of
// chunks, on the number of threads, on the end of a cached prefix, or on other requests in the
// batch.
func testFar(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	const tokens = 6
	edge := farEdge(opts)
	n := edge + 24
	desc := engine.Uniform{
		Layers: 1, Hidden: 16, Heads: 1, KVHeads: 1, HeadDim: 4, FFN: 16, Vocab: 100, Context: n + 64, RopeDims: 4,
		RopeBase: 1e6, RopeScale: 1, NormEps: 1e-5,
	}
	weights := Random(desc.Model(), all(engine.F16), 77)
	prompt := numbers(77, n, desc.Vocab)
	each := int32((n+tokens)/16 + 1) // blocks
	cfg := Sizes()
	cfg.KVBlocks, cfg.MaxBatchedTokens, cfg.KVType = int(each)+256, 4096, engine.BF16
	if opts.Cache != engine.F32 {
		cfg.KVType = opts.Cache
	}
	owner := &line{prompt: n, params: penalised(-1), blocks: blocksFrom(256, each)}

	// compute returns a runner with the owner's sequence in its blocks, and the rows of that
	// sequence.
	compute := func(opener func(*testing.T) engine.Device, chunk int) (*rig, []engine.RowResult) {
		g := &rig{t: t, desc: desc, cfg: cfg}
		g.model = Load(t, open(t, opener), weights)
		g.r = NewRunner(t, g.model, cfg)
		step := ops(owner.set(nil))
		for at := 0; at < n; at += chunk {
			end := min(at+chunk, n)
			first := owner.feed(step, at, prompt[at:end]...)
			if end == n {
				owner.sample(step, first+int32(end-at)-1, n)
			}
			rows := g.do(step).Samples
			if end == n {
				for len(rows) < tokens {
					step = &engine.Step{}
					owner.sample(step, owner.feed(step, n+len(rows)-1, rows[len(rows)-1].Token), n+len(rows))
					rows = append(rows, g.do(step).Samples...)
				}
				return g, rows
			}
			step = &engine.Step{}
		}
		return nil, nil
	}
	other := opener
	if opts.Threads != nil {
		other = func(t *testing.T) engine.Device {
			t.Helper()
			return opts.Threads(t, 1)
		}
	}
	_, want := compute(other, 1777)
	g, got := compute(opener, 4096)
	require.NoError(t, sameRows(want, got), "in chunks of 1 777 and 4 096")

	for _, at := range []int{n - 1, n - 300, edge - 257, edge - 1, edge, edge + 1, edge + 16} {
		for _, company := range []int{0, 3} {
			l := &line{slot: 3, prompt: n, params: penalised(-1), blocks: append([]int32(nil), owner.blocks...)}
			copied := ops()
			for i := at / 16; i < len(l.blocks); i++ { // from the block of the next position on they are the line's own
				l.blocks[i] = int32(i - at/16)
				copied.PreOps = append(copied.PreOps, engine.PreOp{Kind: engine.BlockCopy, Src: owner.blocks[i], Dst: l.blocks[i]})
			}
			step := &engine.Step{PreOps: append(copied.PreOps, l.set(prompt[:at]))}
			for i := range int32(company) {
				stranger := &line{slot: 4 + i, prompt: 50, params: Plain(9, 1), blocks: blocksFrom(200+4*i, 4)}
				step.PreOps = append(step.PreOps, stranger.set(nil))
				stranger.feed(step, 0, numbers(uint64(i), 7+20*int(i), desc.Vocab)...)
			}
			l.sample(step, l.feed(step, at, prompt[at:]...)+int32(n-at)-1, n)
			rows := g.do(step).Samples
			for i := 1; i < tokens; i++ {
				next := &engine.Step{}
				l.sample(next, l.feed(next, n+i-1, rows[i-1].Token), n+i)
				rows = append(rows, g.do(next).Samples...)
			}
			require.NoError(t, sameRows(want, rows), "from position %d beside %d others", at, company)
		}
	}
}
