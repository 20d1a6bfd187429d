package transport

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHandshakesComputeByTurnsWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := make(chan struct{}, handshakesAtOnce)
		first, second, third := &turn{of: of}, &turn{of: of}, &turn{of: of}
		first.take()
		begun := time.Now()
		var all sync.WaitGroup
		took := make(chan time.Duration, 2)
		for _, next := range []*turn{second, third} {
			all.Go(func() {
				next.take()
				took <- time.Since(begun)
				time.Sleep(time.Hour) // it computes for long
				next.end()
			})
		}
		time.Sleep(2 * time.Millisecond)
		require.Empty(t, took)
		first.end()
		first.end() // once is enough
		require.Equal(t, 4*time.Millisecond, <-took, "a pause as long as it computed")
		require.Equal(t, 4*time.Millisecond+time.Hour+longestPause, <-took, "and no longer than that")
		all.Wait()
	})
}
