package auth

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// quota is what a limit has been found to leave.
type quota uint8

const (
	enough quota = iota
	tooManyStreams
	tooManyRequests
	tooManyTokens
)

// account is what a key has used in this process. It outlives readings of the file. Safe for concurrent use.
type account struct {
	spent atomic.Int64 // tokens that are not taken from the bucket yet: streams add to it token by token

	mu       sync.Mutex
	requests *rate.Limiter // guarded by mu; nil: no bound
	tokens   *rate.Limiter // guarded by mu; nil: no bound; below 0 while it owes
	underWay int           // guarded by mu
	used     Used          // guarded by mu; but for Tokens
	total    atomic.Int64  // of tokens, ever
}

// Used is what a key has used since the process began.
type Used struct {
	Calls, Refused, Tokens int64
	UnderWay               int
}

// begin takes a call, or says which limit it is over and when it no longer is; 0: when another call ends. Of a refused call nothing
// is counted but that it was.
func (a *account) begin(l Limits, now time.Time) (over quota, after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settleLocked(l, now)
	if over, after = a.overLocked(l, now); over != enough {
		a.used.Refused++
		return over, after
	}
	a.underWay++
	a.used.Calls++
	return enough, 0
}

// overLocked takes a request from its bucket if no limit is in the way.
func (a *account) overLocked(l Limits, now time.Time) (over quota, after time.Duration) {
	if l.Streams > 0 && a.underWay >= l.Streams {
		return tooManyStreams, 0
	}
	if a.tokens != nil {
		if left := a.tokens.TokensAt(now); left < 1 {
			return tooManyTokens, until(1-left, a.tokens.Limit())
		}
	}
	if a.requests != nil {
		if r := a.requests.ReserveN(now, 1); r.DelayFrom(now) > 0 {
			after = r.DelayFrom(now)
			r.CancelAt(now)
			return tooManyRequests, after
		}
	}
	return enough, 0
}

// until is how long a bucket takes to get so many.
func until(missing float64, each rate.Limit) time.Duration {
	return time.Duration(math.Ceil(missing / float64(each) * float64(time.Second)))
}

// end gives a call back.
func (a *account) end() {
	a.mu.Lock()
	a.underWay--
	a.mu.Unlock()
}

// refuse counts a call that was refused for another reason.
func (a *account) refuse() {
	a.mu.Lock()
	a.used.Refused++
	a.mu.Unlock()
}

// spend counts tokens: the next call pays for them.
func (a *account) spend(tokens int64) {
	a.total.Add(tokens)
	a.spent.Add(tokens)
}

// settleLocked makes the buckets those of limits, and takes from them what was spent.
func (a *account) settleLocked(l Limits, now time.Time) {
	a.requests = bucket(a.requests, l.RequestsPerMinute, now)
	a.tokens = bucket(a.tokens, l.TokensPerMinute, now)
	spent := a.spent.Swap(0)
	if a.tokens == nil {
		return
	}
	for burst := int64(a.tokens.Burst()); spent > 0; spent -= burst {
		a.tokens.ReserveN(now, int(min(spent, burst))) // goes below 0: what is used is used
	}
}

// bucket is a limiter of so many a minute, of which a minute's worth may come at once.
func bucket(is *rate.Limiter, perMinute int, now time.Time) *rate.Limiter {
	each := rate.Limit(float64(perMinute) / time.Minute.Seconds())
	switch {
	case perMinute == 0:
		return nil
	case is == nil:
		return rate.NewLimiter(each, perMinute)
	case is.Burst() != perMinute:
		is.SetLimitAt(now, each)
		is.SetBurstAt(now, perMinute)
	}
	return is
}

// usage is what was used.
func (a *account) usage() Used {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.used
	u.Tokens, u.UnderWay = a.total.Load(), a.underWay
	return u
}
