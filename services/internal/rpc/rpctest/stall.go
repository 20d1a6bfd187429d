package rpctest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// WatchStalls watches how long this process is kept from running: by other processes, or by a host that stops the machine.
// stop ends the watch and returns the longest time that a processor's thread was late by. A test that needs an answer within
// a time repeats what it did where the machine, and not the code, took that time.
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
