package processors

import (
	"context"
	"runtime"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// period is how often the load is looked at: a burst waits no longer for its processors.
const period = 25 * time.Millisecond

// Follow lets the runtime use as many processors as the load needs, from one to as many as it uses when Follow is called,
// until ctx ends; then it gives all of them back. Call it once for a process. A change stops the program for some tens of
// microseconds.
func Follow(ctx context.Context, logger hclog.Logger) {
	all := runtime.GOMAXPROCS(0)
	if all == 1 {
		return
	}
	defer runtime.GOMAXPROCS(all)
	count := Count{Max: all}
	runtime.GOMAXPROCS(count.Now())
	ticks := time.NewTicker(period)
	defer ticks.Stop()
	last, spent := time.Now(), processTime()
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
		now, used := time.Now(), processTime()
		before := count.Now()
		if n := count.Next(period, now.Sub(last), used-spent); n != before {
			runtime.GOMAXPROCS(n)
			logger.Debug("processors follow the load", "processors", n, "of", all)
		}
		last, spent = now, used
	}
}

// processTime is the processor time, user and system, that this process has used.
func processTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil { // only for arguments that it does not know
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
