package ratelog_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/ratelog"
)

func TestAllowLimitsEachKindAndCountsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b ratelog.Limiter
		ask := func(kind string, n int) (written, suppressed int) {
			for range n {
				if before, ok := b.Allow(kind); ok {
					written++
					suppressed += before
				}
			}
			return written, suppressed
		}
		for _, tc := range []struct {
			kind                string
			n                   int
			written, suppressed int
			then                time.Duration
		}{
			{"a", 4, 4, 0, 0},
			{"a", 36, ratelog.LinesPerSecond - 4, 0, 0},
			{"b", 1, 1, 0, time.Second},
			{"a", 2, 2, 30, time.Second},
			{"a", 2, 2, 0, 0},
			{"b", 12, ratelog.LinesPerSecond, 0, 999 * time.Millisecond},
			{"b", 1, 0, 0, time.Millisecond},
			{"b", 1, 1, 3, 0},
		} {
			written, suppressed := ask(tc.kind, tc.n)
			require.Equal(t, []int{tc.written, tc.suppressed}, []int{written, suppressed}, "%+v", tc)
			time.Sleep(tc.then)
		}
	})
}
