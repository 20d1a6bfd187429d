package enginetest

import (
	"fmt"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
)

// Two sequences of farPeriod tokens are computed. A third sequence has their keys, one period after
// another of the first or of the second, as farSecond selects. So an engine that loses a bit of a
// position, or the keys beyond some number, reads wrong keys.
const (
	farPeriod = 1024
	farRows   = 24 // computed behind them
)

// farBelow are the numbers of keys before the rows. They cross 65 536 and 131 072.
func farBelow() []int { return []int{1<<16 - 16, 1<<17 - 16} }

// farSecond reports whether a position has the keys of the second sequence. If any of its bits from
// 10 to 16 were lost, a third of all positions would have the wrong keys.
func farSecond(position int) bool { return bits.OnesCount(uint(position/farPeriod)) > 3 }

// farModel has one query for both heads, which equals the key. So a row attends to itself as much
// as to far keys.
func farModel() (engine.Uniform, *reference.Weights) {
	desc := engine.Uniform{
		Layers: 1, Hidden: 64, Heads: 2, KVHeads: 1, HeadDim: 32, FFN: 64, Vocab: 120, Context: 1<<17 + 64, RopeDims: 32,
		RopeBase: 1e6, RopeScale: 1, NormEps: 1e-5, AttnScale: 0.4,
	}
	weights := Random(desc.Model(), all(engine.F32), 88)
	q, k := &weights.Tensors[weights.Find(engine.RoleQ, 0)], &weights.Tensors[weights.Find(engine.RoleK, 0)]
	copy(q.Bytes[len(q.Bytes)/2:], q.Bytes)
	copy(k.Bytes, q.Bytes)
	return desc, weights
}

var (
	farParts    kept[string, [2]*reference.Sequence]
	farLogprobs kept[int, [][]float64]
)

// farWant returns the reference's logprobs of the rows after n keys.
func farWant(weights *reference.Weights, first, second, rows []int32, n int) ([][]float64, error) {
	return farLogprobs.get(n, func() ([][]float64, error) {
		d, err := reference.NewDecoder(weights)
		if err != nil {
			return nil, err
		}
		parts, err := farParts.get("", func() ([2]*reference.Sequence, error) {
			both := [2]*reference.Sequence{d.NewSequence(), d.NewSequence()}
			both[0].Append(first)
			both[1].Append(second)
			return both, nil
		})
		if err != nil {
			return nil, err
		}
		out := d.Behind(n, func(p int) (*reference.Sequence, int) {
			if farSecond(p) {
				return parts[1], p % farPeriod
			}
			return parts[0], p % farPeriod
		}).Append(rows)
		for i := range out {
			out[i] = reference.LogSoftmax(out[i])
		}
		return out, nil
	})
}

// testFarLogits checks that rows after more than 65 536 keys have the reference's logprobs, by both
// kernel classes.
func testFarLogits(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	desc, weights := farModel()
	within := family{weights, engine.F32, tolerance{2e-5, 1e-4}}.on(opts) // so many weights add up
	first, second, rows := numbers(88, farPeriod, desc.Vocab), numbers(89, farPeriod, desc.Vocab), numbers(90, farRows+1, desc.Vocab)
	const size, period = 16, farPeriod / 16
	cfg := Sizes()
	// Few of the blocks are used, but their number bounds the positions.
	cfg.BlockSize, cfg.KVBlocks, cfg.KVType, cfg.MaxBatchedTokens = size, 1<<17/size+4, engine.F32, farPeriod

	for _, n := range farBelow() {
		want, err := farWant(weights, first, second, rows[:farRows], n)
		require.NoError(t, err)
		for _, class := range []engine.KernelClass{engine.Prefill, engine.Decode} {
			t.Run(fmt.Sprintf("behind %d keys, class %d", n, class), func(t *testing.T) {
				g := &rig{t: t, desc: desc, cfg: cfg}
				g.model = Load(t, open(t, opener), weights)
				g.r = NewRunner(t, g.model, cfg)
				for i, prompt := range [][]int32{first, second} {
					l := &line{slot: int32(i), prompt: farPeriod, params: Plain(1, 0), blocks: blocksFrom(int32(i)*period, period)}
					step := ops(l.set(nil))
					l.feed(step, 0, prompt...)
					g.do(step)
				}
				l := &line{slot: 2, params: Plain(1, 0)}
				if class == engine.Prefill {
					l.prompt = n + farRows
				}
				history := make([]int32, 0, n)
				for len(history) < n {
					base, from := int32(0), first
					if farSecond(len(history)) {
						base, from = period, second
					}
					l.blocks = append(l.blocks, base+int32(len(history)%farPeriod/size))
					history = append(history, from[len(history)%farPeriod:][:size]...)
				}
				l.blocks = append(l.blocks, blocksFrom(2*period, (farRows+size-1)/size)...)

				var got []engine.RowResult
				step := ops(l.set(history))
				for at := 0; at < farRows; {
					count := 1
					if class == engine.Prefill {
						count = farRows
					}
					index := l.feed(step, n+at, rows[at:at+count]...)
					for i := range count {
						step.Scores = append(step.Scores, engine.ScoreRow{TokenIndex: index + int32(i), Target: rows[at+i+1], TopN: 16})
					}
					got = append(got, g.do(step).Scores...)
					step, at = &engine.Step{}, at+count
				}
				require.Len(t, got, farRows)
				var errors drift
				for i, row := range got {
					require.Len(t, row.Candidates, 16)
					errors.add(t, row.Logprob, want[i][rows[i+1]])
					for _, c := range row.Candidates {
						errors.add(t, c.Logprob, want[i][c.Token])
					}
				}
				require.LessOrEqual(t, errors.found().rms, within.rms, "the root of the mean square of all errors")
				require.LessOrEqual(t, errors.found().max, within.max, "the largest error")
			})
		}
	}
}
