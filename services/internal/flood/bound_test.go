package flood_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/flood"
)

func TestAFloodWritesFewLinesAndTheNextOneTellsOfTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b flood.Bound
		ask := func(kind string, n int) (written, untold int) {
			for range n {
				if before, ok := b.Tell(kind); ok {
					written++
					untold += before
				}
			}
			return written, untold
		}
		for _, tc := range []struct {
			kind            string
			n               int
			written, untold int
			then            time.Duration
		}{
			{"a", 4, 4, 0, 0},
			{"a", 36, flood.LinesPerSecond - 4, 0, 0},
			{"b", 1, 1, 0, time.Second},
			{"a", 2, 2, 30, time.Second},
			{"a", 2, 2, 0, 0},
			{"b", 12, flood.LinesPerSecond, 0, 999 * time.Millisecond},
			{"b", 1, 0, 0, time.Millisecond},
			{"b", 1, 1, 3, 0},
		} {
			written, untold := ask(tc.kind, tc.n)
			require.Equal(t, []int{tc.written, tc.untold}, []int{written, untold}, "%+v", tc)
			time.Sleep(tc.then)
		}
	})
}
