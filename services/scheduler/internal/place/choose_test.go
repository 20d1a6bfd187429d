package place_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/scheduler/internal/place"
)

// with are n candidates that have the file and fit.
func with(n int) []place.Candidate {
	var all []place.Candidate
	for i := range n {
		all = append(all, place.Candidate{ID: fmt.Sprintf("w%d", i), HasFile: true, Needed: 10, Free: 100})
	}
	return all
}

func TestTwoSchedulersChooseAlike(t *testing.T) {
	a, b := with(12), with(12)
	slices.Reverse(b)
	for i := range 50 {
		model := fmt.Sprintf("m%d", i)
		first, err := place.Choose(model, 3, a)
		require.NoError(t, err)
		second, err := place.Choose(model, 3, b)
		require.NoError(t, err)
		require.Equal(t, first, second)
	}
}

func TestAWorkerThatJoinsMovesNoCopyBetweenTheOthers(t *testing.T) {
	for i := range 200 {
		model := fmt.Sprintf("m%d", i)
		before, err := place.Choose(model, 1, with(8))
		require.NoError(t, err)
		after, err := place.Choose(model, 1, with(9))
		require.NoError(t, err)
		require.Contains(t, []string{before[0], "w8"}, after[0])
	}
}

func TestModelsSpreadOverTheWorkers(t *testing.T) {
	count := map[string]int{}
	for i := range 8000 {
		ids, err := place.Choose(fmt.Sprintf("model-%d", i), 1, with(8))
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
		all[at] = place.Candidate{ID: all[at].ID, Loaded: true}
		ids, err := place.Choose(fmt.Sprintf("m%d", i), 2, all)
		require.NoError(t, err)
		require.Equal(t, all[at].ID, ids[0])
		require.Len(t, ids, 10)
	}
}

func TestChooseLeavesOutThoseThatCannot(t *testing.T) {
	for name, tc := range map[string]struct {
		n    int
		from []place.Candidate
		want []string
		err  error
	}{
		"no file, a broken file and too little memory are left out": {
			n: 1, want: []string{"fits"},
			from: []place.Candidate{{ID: "none"}, {ID: "broken", HasFile: true, Problem: true},
				{ID: "small", HasFile: true, Needed: 11, Free: 10}, {ID: "fits", HasFile: true, Needed: 10, Free: 10}},
		},
		"more copies than can be held are refused": {
			n: 2, err: place.ErrTooFew,
			from: []place.Candidate{{ID: "small", HasFile: true, Needed: 11, Free: 10}, {ID: "fits", HasFile: true}},
		},
		"one copy that fits nowhere goes to one that has the file, which says why": {
			n: 1, want: []string{"small"},
			from: []place.Candidate{{ID: "none"}, {ID: "small", HasFile: true, Needed: 11, Free: 10}},
		},
		"a file that nobody has is nowhere": {n: 1, from: []place.Candidate{{ID: "none"}}, err: place.ErrNowhere},
		"no worker at all is nowhere":       {n: 1, err: place.ErrNowhere},
	} {
		t.Run(name, func(t *testing.T) {
			ids, err := place.Choose("m", tc.n, tc.from)
			require.ErrorIs(t, err, tc.err)
			require.Equal(t, tc.want, ids)
		})
	}
}
