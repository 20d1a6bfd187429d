package ondemand

import (
	"time"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// A load that failed is not tried again at once by each request that comes, but after minPause, which
// doubles with each further failure up to maxPause. A worker that says itself when to come back
// overrides that, within the same bounds.
const (
	minPause = time.Second
	maxPause = time.Minute
)

// failure is how the last load of a key failed.
type failure struct {
	err   error // a status
	count int   // failures in a row
	until time.Time
}

// failures has the recent failures by key: that one digest cannot be loaded says nothing of others.
// A failure is dropped when no request has tried again for maxPause after its pause, so that there
// are never more than requests have asked for in that time.
type failures[K comparable] map[K]failure

// recent returns the status for a request that comes before the next attempt is due; nil if it is.
func (fs failures[K]) recent(key K, now time.Time) error {
	f, failed := fs[key]
	if !failed || !now.Before(f.until) {
		return nil
	}
	return rpcstatus.NotTriedAgain(f.err, f.until.Sub(now))
}

// add stores a failure and returns the status for the requests that waited.
func (fs failures[K]) add(key K, err error, now time.Time) error {
	for other, f := range fs {
		if now.Sub(f.until) > maxPause {
			delete(fs, other)
		}
	}
	count := fs[key].count + 1
	wait := pause(count, rpc.RetryAfter(err))
	fs[key] = failure{err: err, count: count, until: now.Add(wait)}
	return rpcstatus.NotTriedAgain(err, wait)
}

// pause returns how long no load is tried after count failures; asked is the worker's own delay, or
// 0.
func pause(count int, asked time.Duration) time.Duration {
	if asked > 0 {
		return min(max(asked, minPause), maxPause)
	}
	wait := minPause
	for range count - 1 {
		wait = min(2*wait, maxPause)
	}
	return wait
}
