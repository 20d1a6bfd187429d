package cli_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

func TestDrainAndUndrainCallTheScheduler(t *testing.T) {
	told := map[string]bool{}
	f := &fake{within: -1}
	f.drain = func(id string, drains bool) error {
		if id == "w9" {
			return refusal(codes.NotFound, "UNKNOWN_WORKER", "no connected worker has the id")
		}
		told[id] = drains
		return nil
	}
	r := serve(t, f)
	require.Equal(t, 0, r.run(t, "drain", "w1"), r.err.String())
	require.Equal(t, "w1 drains: it finishes its running calls and accepts no new ones\n", r.out.String())
	require.Equal(t, map[string]bool{"w1": true}, told)
	require.EqualValues(t, -1, f.within, "as long as it takes")
	for text, want := range map[string]time.Duration{"0s": 0, "10m": 10 * time.Minute} {
		require.Equal(t, 0, r.run(t, "drain", "w1", "--within", text), r.err.String())
		require.Equal(t, want, f.within)
	}
	require.Equal(t, 0, r.run(t, "undrain", "w1", "--json"), r.err.String())
	require.Contains(t, r.out.String(), "{}\n")
	require.Equal(t, map[string]bool{"w1": false}, told)

	require.Equal(t, 5, r.run(t, "drain", "w9"))
	require.Contains(t, r.err.String(), "no connected worker has the id")
	require.Contains(t, r.err.String(), "millrace workers")
	require.Equal(t, 2, r.run(t, "drain"))
	require.Contains(t, r.err.String(), "WORKER, the id of a worker")
	require.Equal(t, 2, r.run(t, "undrain", "w1", "w2"))
}

func TestDrainOfWorkerNeedsScheduler(t *testing.T) {
	r := serve(t, &fake{})
	require.Equal(t, 5, r.run(t, "drain", "w1"))
	require.Contains(t, r.err.String(), "is not a scheduler")
}
