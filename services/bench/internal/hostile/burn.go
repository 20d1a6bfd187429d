package hostile

import (
	"context"
	"io"
	"math"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// burst is how long a burner burns before it looks what it has used.
const burst = time.Millisecond

// Burn uses so many processors, such as 0.7 or 1.5, until ctx ends: what others keep from it for a while it takes later. It writes
// a line when it begins.
func Burn(ctx context.Context, processors float64, out io.Writer) error {
	if err := begun(out); err != nil {
		return err
	}
	since := time.Now()
	var all sync.WaitGroup
	for range int(math.Ceil(processors)) {
		all.Go(func() {
			for ctx.Err() == nil {
				if due := time.Duration(processors * float64(time.Since(since))); usedSelf() >= due {
					sleep(ctx, burst)
					continue
				}
				x := 1.0
				for until := time.Now().Add(burst); time.Now().Before(until); {
					x = math.Sqrt(x + 1)
				}
				runtime.KeepAlive(x)
			}
		})
	}
	all.Wait()
	return nil
}

// usedSelf is the processor time of this process.
func usedSelf() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return math.MaxInt64 // it burns nothing
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
