package processors

import (
	"context"
	"runtime"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// period is the interval of measurements. A burst waits at most this long for its processors.
const period = 25 * time.Millisecond

// Follow sets the number of processors that the runtime uses, from one to the number at the time of
// the call, until ctx ends. Then it restores that number. Call it once in a process. A change stops
// the program for some tens of microseconds.
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

// processTime returns the processor time, user and system, of this process.
func processTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil { // only for invalid arguments
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
