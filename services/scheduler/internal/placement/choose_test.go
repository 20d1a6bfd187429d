package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/scheduler/internal/placement"
)

// with are n candidates that have the file and fit.
func with(n int) []placement.Candidate {
	var all []placement.Candidate
	for i := range n {
		all = append(all, placement.Candidate{ID: fmt.Sprintf("w%d", i), HasFile: true, Needed: 10, Free: 100})
	}
	return all
}

func TestTwoSchedulersChooseAlike(t *testing.T) {
	a, b := with(12), with(12)
	slices.Reverse(b)
	for i := range 50 {
		model := fmt.Sprintf("m%d", i)
		first, err := placement.Choose(model, 3, a)
		require.NoError(t, err)
		second, err := placement.Choose(model, 3, b)
		require.NoError(t, err)
		require.Equal(t, first, second)
	}
}

func TestJoiningWorkerMovesNoOtherCopy(t *testing.T) {
	// A worker that joins moves no copy between the others.
	for i := range 200 {
		model := fmt.Sprintf("m%d", i)
		before, err := placement.Choose(model, 1, with(8))
		require.NoError(t, err)
		after, err := placement.Choose(model, 1, with(9))
		require.NoError(t, err)
		require.Contains(t, []string{before[0], "w8"}, after[0])
	}
}

func TestModelsSpreadOverTheWorkers(t *testing.T) {
	count := map[string]int{}
	for i := range 8000 {
		ids, err := placement.Choose(fmt.Sprintf("model-%d", i), 1, with(8))
		require.NoError(t, err)
		count[ids[0]]++
	}
	require.Len(t, count, 8)
	for id, n := range count {
		require.InDelta(t, 1000, n, 150, "%s", id) // five standard deviations
	}
}

func TestCopiesThatExistComeFirst(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 100 {
		all := with(10)
		at := rng.IntN(10)
		all[at] = placement.Candidate{ID: all[at].ID, Loaded: true}
		ids, err := placement.Choose(fmt.Sprintf("m%d", i), 2, all)
		require.NoError(t, err)
		require.Equal(t, all[at].ID, ids[0])
		require.Len(t, ids, 10)
	}
}

func TestChooseLeavesOutThoseThatCannot(t *testing.T) {
	for name, tc := range map[string]struct {
		n    int
		from []placement.Candidate
		want []string
		err  error
	}{
		"no file, a broken file and too little memory are left out": {
			n: 1, want: []string{"fits"},
			from: []placement.Candidate{{ID: "none"}, {ID: "broken", HasFile: true, Problem: true},
				{ID: "small", HasFile: true, Needed: 11, Free: 10}, {ID: "fits", HasFile: true, Needed: 10, Free: 10}},
		},
		"more copies than can be held are refused": {
			n: 2, err: placement.ErrTooFew,
			from: []placement.Candidate{{ID: "small", HasFile: true, Needed: 11, Free: 10}, {ID: "fits", HasFile: true}},
		},
		"one copy that fits nowhere goes to one that has the file, which says why": {
			n: 1, want: []string{"small"},
			from: []placement.Candidate{{ID: "none"}, {ID: "small", HasFile: true, Needed: 11, Free: 10}},
		},
		"a file that nobody has is nowhere": {n: 1, from: []placement.Candidate{{ID: "none"}}, err: placement.ErrNowhere},
		"no worker at all is nowhere":       {n: 1, err: placement.ErrNowhere},
	} {
		t.Run(name, func(t *testing.T) {
			ids, err := placement.Choose("m", tc.n, tc.from)
			require.ErrorIs(t, err, tc.err)
			require.Equal(t, tc.want, ids)
		})
	}
}
