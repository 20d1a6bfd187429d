package enginetest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// verify feeds the token of position at and the drafts after it, and samples after each of them:
// len(drafts)+1 rows.
func (l *line) verify(at int, token int32, drafts []int32) *engine.Step {
	step := &engine.Step{}
	l.feed(step, at, append([]int32{token}, drafts...)...)
	for i := range len(drafts) + 1 {
		l.sample(step, int32(i), at+1+i)
	}
	return step
}

// speculate is like generate with k drafts a step, of which accept are right (0 <= accept <= k) and
// the others wrong. The next step drops the wrong ones.
func (g *rig) speculate(l *line, prompt []int32, right []int32, n, k, accept int) []engine.RowResult {
	g.t.Helper()
	rows := g.generate(l, nil, prompt, 1)
	for len(rows) < n {
		at := len(prompt) + len(rows) - 1
		var drafts []int32
		for i := range k {
			token := right[(len(rows)+i)%len(right)]
			if i >= accept || len(rows)+i >= len(right) {
				token = (token + 1) % int32(g.desc.Vocab)
			}
			drafts = append(drafts, token)
		}
		got := g.do(l.verify(at, rows[len(rows)-1].Token, drafts)).Samples
		require.Len(g.t, got, k+1)
		for i := 0; ; i++ { // the row behind the last right draft counts too
			rows = append(rows, got[i])
			if len(rows) == n || i == k || drafts[i] != got[i].Token {
				break
			}
		}
	}
	return rows
}

func testSpeculation(t *testing.T, opener func(*testing.T) engine.Device, _ Options) {
	const n, tokens = 27, 24
	spec := func(c *engine.RunnerConfig) { c.MaxSampleRows = 16 }
	for name, window := range map[string]int32{"no penalties": 0, "penalties over everything": -1, "penalties over five tokens": 5} {
		t.Run("gives what one token at a time gives, with "+name, func(t *testing.T) {
			g := newRig(t, opener, spec)
			prompt := numbers(17, n, g.desc.Vocab)
			want := g.generate(&line{prompt: n, params: penalised(window), blocks: blocksFrom(0, 5)}, nil, prompt, tokens)
			for _, k := range []int{1, 2, 3, 7, 15} {
				for accept := range k + 1 {
					if accept > 3 && accept < k-1 {
						continue
					}
					l := &line{slot: 3, prompt: n, params: penalised(window), blocks: blocksFrom(20, 5)}
					got := g.speculate(l, prompt, tokensOf(want), tokens, k, accept)
					require.NoError(t, sameRows(want, got), "%d drafts, %d of them right", k, accept)
				}
			}
		})
	}
	t.Run("rows of several slots in one step", func(t *testing.T) {
		g := newRig(t, opener, spec)
		var lines []*line
		var prompts [][]int32
		var want [][]engine.RowResult
		for i := range int32(4) {
			lines = append(lines, &line{slot: i, prompt: n, params: penalised(-1), blocks: blocksFrom(10*i, 5)})
			lines[i].params.Seed = uint64(i)
			prompts = append(prompts, numbers(uint64(i), n, g.desc.Vocab))
			want = append(want, g.generate(lines[i], nil, prompts[i], 5))
		}
		step := &engine.Step{}
		for i, l := range lines { // rolled back to the end of the prompt, and its four tokens verified
			right := tokensOf(want[i])
			first := l.feed(step, n, right[:4]...)
			for j := range int32(4) {
				l.sample(step, first+j, n+1+int(j))
			}
		}
		got := g.do(step).Samples
		for i := range lines {
			require.NoError(t, sameRows(want[i][1:], got[4*i:4*i+4]), "slot %d", i)
		}
	})
	t.Run("the last row of a slot is its previous sample", func(t *testing.T) {
		g := newRig(t, opener, spec)
		prompt := numbers(18, n, g.desc.Vocab)
		l := &line{slot: 5, prompt: n, params: penalised(-1), blocks: blocksFrom(3, 5)}
		right := tokensOf(g.generate(l, nil, prompt, 12))
		for _, deep := range []bool{false, true} {
			for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {0, 3, 1, 2}, {2}} {
				verify := l.verify(n, right[0], right[1:4])
				all := verify.Samples
				verify.Samples = nil
				for _, i := range order {
					verify.Samples = append(verify.Samples, all[i])
				}
				last := n + 1 + order[len(order)-1] // its position, which the next step computes
				follow := func(token int32) *engine.Step {
					step := &engine.Step{}
					l.sample(step, l.feed(step, last, token), last+1)
					return step
				}
				first := g.do(verify).Samples
				token := first[len(first)-1].Token
				want := []engine.RowResult{g.do(follow(token)).Samples[0]}
				require.NoError(t, g.r.Submit(verify), "rolled back")
				if !deep {
					g.wait()
				}
				require.NoError(t, g.r.Submit(follow(engine.PreviousSample)))
				if deep {
					require.NoError(t, sameRows(first, g.wait().Samples))
				}
				require.NoError(t, sameRows(want, g.wait().Samples), "rows in the order %v, two in flight: %v", order, deep)
			}
		}
	})
	t.Run("a step may be rolled back to any position below its slot's length", func(t *testing.T) {
		g := newRig(t, opener, spec)
		prompt := numbers(19, n, g.desc.Vocab)
		l := &line{prompt: n, params: penalised(-1), blocks: blocksFrom(60, 5)}
		want := g.generate(l, nil, prompt, tokens)
		all := append(slices.Clone(prompt), tokensOf(want)...)
		for _, to := range []int{n + 20, n + 5, n + 6, n, n - 1, 32, 16, 15, 1, 0} {
			step := &engine.Step{}
			end := max(to+1, n)
			l.sample(step, l.feed(step, to, all[to:end]...)+int32(end-to)-1, end)
			require.NoError(t, sameRows(want[end-n:end-n+1], g.do(step).Samples), "back to %d", to)
			beyond := &engine.Step{}
			l.feed(beyond, end+1, 1)
			require.ErrorIs(t, g.r.Submit(beyond), engine.ErrInvalid, "the length is %d then", end)
			forward := &engine.Step{} // and to the end again
			l.feed(forward, end, all[end:n+tokens-1]...)
			if end < n+tokens-1 {
				g.do(forward)
			}
		}
	})
}
