package rpctest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// WatchStalls measures how long other processes, or the host of a virtual machine, keep this
// process from running. stop returns the longest such delay of any processor. A test with a time
// limit repeats its measurement if the machine, and not the code, caused the delay.
func WatchStalls() (stop func() time.Duration) {
	const look = 5 * time.Millisecond
	var longest atomic.Int64
	done := make(chan struct{})
	var watchers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		watchers.Go(func() {
			runtime.LockOSThread()
			for last := time.Now(); ; {
				select {
				case <-done:
					return
				case <-time.After(look):
				}
				now := time.Now()
				late := int64(now.Sub(last) - look)
				for was := longest.Load(); late > was && !longest.CompareAndSwap(was, late); was = longest.Load() {
				}
				last = now
			}
		})
	}
	return func() time.Duration {
		close(done)
		watchers.Wait()
		return time.Duration(longest.Load())
	}
}
