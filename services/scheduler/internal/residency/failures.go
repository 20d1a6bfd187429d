package residency

import (
	"time"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
)

// A load that failed is not tried again at once by each request that comes: first after leastPause, and twice as long after each
// failure that follows, up to mostPause, unless the worker has said itself when it is worth while.
const (
	leastPause = time.Second
	mostPause  = time.Minute
)

// failure is how the last load of a model failed.
type failure struct {
	err   error // a status
	count int   // failures one after another
	until time.Time
}

// Failures are the recent ones, by what was to be loaded: that one digest cannot be had says nothing of others. Not safe for
// concurrent use. They are forgotten when nobody has tried for as long as the longest pause again, so that there are never more than
// requests have asked for meanwhile.
type Failures[K comparable] map[K]failure

// Recent is the status for a request that comes before a load is tried again; nil: it may be tried.
func (fs Failures[K]) Recent(of K, now time.Time) error {
	f, failed := fs[of]
	if !failed || !now.Before(f.until) {
		return nil
	}
	return fault.NotTriedAgain(f.err, f.until.Sub(now))
}

// Add notes a failure and returns the status for those that waited.
func (fs Failures[K]) Add(of K, err error, now time.Time) error {
	for name, f := range fs {
		if now.Sub(f.until) > mostPause {
			delete(fs, name)
		}
	}
	count := fs[of].count + 1
	wait := pause(count, rpc.RetryAfter(err))
	fs[of] = failure{err: err, count: count, until: now.Add(wait)}
	return fault.NotTriedAgain(err, wait)
}

// pause is how long after so many failures nothing is tried; said is the worker's own word, 0 if it has none.
func pause(count int, said time.Duration) time.Duration {
	if said > 0 {
		return min(max(said, leastPause), mostPause)
	}
	wait := leastPause
	for range count - 1 {
		wait = min(2*wait, mostPause)
	}
	return wait
}
