package enginetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// testHistory checks that a slot that starts after a history has the bits of a slot that computed
// the history itself.
func testHistory(t *testing.T, opener func(*testing.T) engine.Device, _ Options) {
	const n, tokens = 100, 6 // of the prompt, and behind it
	for _, size := range []int{16, 32} {
		for name, window := range map[string]int32{
			"no penalties": 0, "penalties over everything": -1, "over one token": 1, "over a block": int32(size),
			"over one more": int32(size) + 1, "over more than there is": 1000,
		} {
			t.Run(fmt.Sprintf("in shared blocks of %d with %s", size, name), func(t *testing.T) {
				g := newRig(t, opener, func(c *engine.RunnerConfig) { c.BlockSize = size })
				prompt := numbers(31, n, g.desc.Vocab)
				owner := &line{slot: 0, prompt: n, params: penalised(window), blocks: blocksFrom(0, 8)}
				want := g.generate(owner, nil, prompt, tokens)
				all := append(append([]int32(nil), prompt...), tokensOf(want)...)
				for i, at := range []int{1, 2, size - 1, size, size + 1, 2*size - 1, 2 * size, 2*size + 1, n - 1, n, n + 1, n + tokens - 2} {
					// Whole blocks are shared. The block of the next position is a copy of the
					// line's own.
					l := &line{slot: 1 + int32(i%7), prompt: n, params: penalised(window), blocks: blocksFrom(100, 8)}
					whole := at / size
					copy(l.blocks, owner.blocks[:whole])
					g.do(&engine.Step{PreOps: []engine.PreOp{
						{Kind: engine.BlockCopy, Src: owner.blocks[whole], Dst: l.blocks[whole]},
					}})
					behind := max(n, at+1) // the prompt ends here, and sampling begins
					got := g.generate(l, all[:at], all[at:behind], tokens-(behind-n))
					require.NoError(t, sameRows(want[behind-n:], got), "computed and begun at position %d", at)
				}
			})
		}
	}
	t.Run("of a prompt that is cached whole, whose last token is computed again", func(t *testing.T) {
		g := newRig(t, opener, nil)
		for _, n := range []int{1, 2, 16, 17, 33} {
			prompt := numbers(uint64(n), n, g.desc.Vocab)
			owner := &line{slot: 0, prompt: n, params: penalised(-1), blocks: blocksFrom(0, 4)}
			want := g.generate(owner, nil, prompt, tokens)
			l := &line{slot: 1, prompt: n, params: penalised(-1), blocks: blocksFrom(10, 4)}
			step := &engine.Step{PreOps: []engine.PreOp{l.set(prompt)}}
			for i := range owner.blocks {
				step.PreOps = append(step.PreOps, engine.PreOp{Kind: engine.BlockCopy, Src: owner.blocks[i], Dst: l.blocks[i]})
			}
			l.sample(step, l.feed(step, n-1, prompt[n-1]), n)
			got := []engine.RowResult{g.do(step).Samples[0]}
			if n > 1 { // and behind it a rollback, to the same position
				step.PreOps = nil
				require.NoError(t, sameRows(got, g.do(step).Samples))
			}
			require.NoError(t, sameRows(want[:1], got), "a prompt of %d", n)
		}
	})
	t.Run("of several at once, beside strangers", func(t *testing.T) {
		g := newRig(t, opener, func(c *engine.RunnerConfig) { c.MaxBatchedTokens = 512 })
		prompt := numbers(8, n, g.desc.Vocab)
		owner := &line{slot: 0, prompt: n, params: penalised(-1), blocks: blocksFrom(0, 8)}
		want := g.generate(owner, nil, prompt, 1)
		step := &engine.Step{}
		for i, at := range []int{16, 32, 48, 64, 80, 96} {
			l := &line{slot: int32(i), prompt: n, params: penalised(-1), blocks: blocksFrom(20+8*int32(i), 8)}
			copy(l.blocks, owner.blocks[:at/16])
			step.PreOps = append(step.PreOps, l.set(prompt[:at]))
			l.sample(step, l.feed(step, at, prompt[at:]...)+int32(n-at)-1, n)
		}
		stranger := &line{slot: 7, prompt: 40, params: penalised(9), blocks: blocksFrom(90, 3)}
		step.PreOps = append(step.PreOps, stranger.set(nil))
		stranger.feed(step, 0, numbers(9, 16, g.desc.Vocab)...)
		for _, row := range g.do(step).Samples {
			require.NoError(t, sameRows(want, []engine.RowResult{row}))
		}
	})
	t.Run("of a slot that computes nothing itself and samples from another's token", func(t *testing.T) {
		g := newRig(t, opener, nil)
		prompt := numbers(5, 40, g.desc.Vocab)
		for _, window := range []int32{0, -1, 7} {
			owner := &line{slot: 0, prompt: 40, params: penalised(window), blocks: blocksFrom(0, 3)}
			want := g.generate(owner, nil, prompt, 1)
			step := &engine.Step{PreOps: []engine.PreOp{owner.set(nil)}}
			last := owner.feed(step, 0, prompt...) + 39
			owner.sample(step, last, 40)
			for slot := int32(1); slot < 4; slot++ {
				fork := &line{slot: slot, params: penalised(window)}
				step.PreOps = append(step.PreOps, fork.set(prompt))
				fork.sample(step, last, 40)
			}
			for _, row := range g.do(step).Samples {
				require.NoError(t, sameRows(want, []engine.RowResult{row}))
			}
		}
	})
	t.Run("is what the slot forgets when it is set again", func(t *testing.T) {
		g := newRig(t, opener, nil)
		prompt := numbers(6, 20, g.desc.Vocab)
		l := &line{slot: 2, prompt: 20, params: penalised(-1), blocks: blocksFrom(0, 2)}
		want := g.generate(l, nil, prompt, 3)
		g.do(&engine.Step{PreOps: []engine.PreOp{l.set(numbers(7, 500, g.desc.Vocab))}})
		require.NoError(t, sameRows(want, g.generate(l, nil, prompt, 3)))
	})
	t.Run("whose tokens an engine mixes up is found out by its penalties", func(t *testing.T) {
		prompt := numbers(3, 64, Small().Vocab)
		run := func(t *testing.T, opener func(*testing.T) engine.Device) []engine.RowResult {
			t.Helper()
			g := newRig(t, opener, nil)
			p := penalised(-1)
			p.Temperature, p.RepetitionPenalty, p.FrequencyPenalty = 0, 1, 30 // every token of the history is out of reach
			l := &line{prompt: len(prompt), params: p, blocks: blocksFrom(0, 6)}
			g.generate(l, nil, prompt, 1)
			return g.generate(l, prompt[:48], prompt[48:], 20)
		}
		mutant := func(t *testing.T) engine.Device {
			t.Helper()
			return Intercept(opener(t), Hooks{Submit: func(s *engine.Step) error {
				for i := range s.PreOps {
					if h := s.PreOps[i].History; h != nil {
						s.PreOps[i].History = make([]int32, len(h))
					}
				}
				return nil
			}})
		}
		require.NoError(t, sameRows(run(t, opener), run(t, opener)))
		require.Error(t, sameRows(run(t, opener), run(t, mutant)))
	})
	t.Run("that cannot be is refused", func(t *testing.T) {
		g := newRig(t, opener, func(c *engine.RunnerConfig) { c.KVBlocks = 20 })
		l := &line{params: Plain(1, 1), blocks: blocksFrom(0, 20)}
		for name, history := range map[string][]int32{
			"a token outside": {3, 301}, "a negative token": {3, -1}, "the previous sample": {-1}, "more tokens than blocks hold": make([]int32, 321),
		} {
			require.ErrorIs(t, g.r.Submit(&engine.Step{PreOps: []engine.PreOp{l.set(history)}}), engine.ErrInvalid, name)
		}
		begin := func(history, at int, token int32) error {
			step := &engine.Step{PreOps: []engine.PreOp{l.set(make([]int32, history))}}
			l.feed(step, at, token)
			return g.r.Submit(step)
		}
		require.ErrorIs(t, begin(5, 6, 1), engine.ErrInvalid, "a gap behind the history")
		require.ErrorIs(t, begin(320, 320, 1), engine.ErrInvalid, "a token behind the last block")
		require.ErrorIs(t, begin(5, 5, engine.PreviousSample), engine.ErrInvalid, "a slot just set sampled nothing")
		require.NoError(t, begin(319, 319, 1))
		g.wait()
	})
}
