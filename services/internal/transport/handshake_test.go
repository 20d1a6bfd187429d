package transport

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHandshakesComputeOneAtATime(t *testing.T) {
	// After each there is a pause.
	synctest.Test(t, func(t *testing.T) {
		slots := make(chan struct{}, maxHandshakes)
		first, second, third := &handshakeConn{slots: slots}, &handshakeConn{slots: slots}, &handshakeConn{slots: slots}
		first.acquire()
		begun := time.Now()
		var all sync.WaitGroup
		took := make(chan time.Duration, 2)
		for _, next := range []*handshakeConn{second, third} {
			all.Go(func() {
				next.acquire()
				took <- time.Since(begun)
				time.Sleep(time.Hour) // it computes for a long time
				next.release()
			})
		}
		time.Sleep(2 * time.Millisecond)
		require.Empty(t, took)
		first.release()
		first.release() // calling it once suffices
		require.Equal(t, 4*time.Millisecond, <-took, "a pause as long as it computed")
		require.Equal(t, 4*time.Millisecond+time.Hour+maxPause, <-took, "and no longer than that")
		all.Wait()
	})
}
