package auth

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// quota is the result of checking a key's limits.
type quota uint8

const (
	enough quota = iota
	tooManyStreams
	tooManyRequests
	tooManyTokens
)

// account is the usage of a key in this process. It survives a new reading of the file. It is safe
// for concurrent use.
type account struct {
	// tokens that are not subtracted from the bucket yet: streams add to it token by token
	spent atomic.Int64

	mu       sync.Mutex
	requests *rate.Limiter // guarded by mu; nil: no bound
	tokens   *rate.Limiter // guarded by mu; nil: no bound; negative while the key is in debt
	running  int           // guarded by mu
	used     Used          // guarded by mu; except Tokens
	total    atomic.Int64  // of tokens, ever
}

// Used is the usage of a key since the process began.
type Used struct {
	Calls, Refused, Tokens int64
	UnderWay               int
}

// acquire starts a call, or returns the limit that the key has reached and when it has quota again;
// 0: when another call ends. A refused call is only counted as refused.
func (a *account) acquire(l Limits, now time.Time) (over quota, after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.updateLocked(l, now)
	if over, after = a.checkLocked(l, now); over != enough {
		a.used.Refused++
		return over, after
	}
	a.running++
	a.used.Calls++
	return enough, 0
}

// checkLocked subtracts a request from its bucket unless a limit is reached.
func (a *account) checkLocked(l Limits, now time.Time) (over quota, after time.Duration) {
	if l.Streams > 0 && a.running >= l.Streams {
		return tooManyStreams, 0
	}
	if a.tokens != nil {
		if left := a.tokens.TokensAt(now); left < 1 {
			return tooManyTokens, refillTime(1-left, a.tokens.Limit())
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

// refillTime returns how long a bucket takes to gain the missing amount.
func refillTime(missing float64, each rate.Limit) time.Duration {
	return time.Duration(math.Ceil(missing / float64(each) * float64(time.Second)))
}

// release ends a call.
func (a *account) release() {
	a.mu.Lock()
	a.running--
	a.mu.Unlock()
}

// countRefusal counts a call that was refused for another reason.
func (a *account) countRefusal() {
	a.mu.Lock()
	a.used.Refused++
	a.mu.Unlock()
}

// addTokens counts tokens. They are subtracted when the next call starts.
func (a *account) addTokens(tokens int64) {
	a.total.Add(tokens)
	a.spent.Add(tokens)
}

// updateLocked applies limits to the buckets, and subtracts the tokens counted since the last time.
func (a *account) updateLocked(l Limits, now time.Time) {
	a.requests = bucket(a.requests, l.RequestsPerMinute, now)
	a.tokens = bucket(a.tokens, l.TokensPerMinute, now)
	spent := a.spent.Swap(0)
	if a.tokens == nil {
		return
	}
	for burst := int64(a.tokens.Burst()); spent > 0; spent -= burst {
		a.tokens.ReserveN(now, int(min(spent, burst))) // may go below 0: the tokens are used
	}
}

// bucket returns a token bucket that gains perMinute a minute and holds as many.
func bucket(limiter *rate.Limiter, perMinute int, now time.Time) *rate.Limiter {
	each := rate.Limit(float64(perMinute) / time.Minute.Seconds())
	switch {
	case perMinute == 0:
		return nil
	case limiter == nil:
		return rate.NewLimiter(each, perMinute)
	case limiter.Burst() != perMinute:
		limiter.SetLimitAt(now, each)
		limiter.SetBurstAt(now, perMinute)
	}
	return limiter
}

// usage returns the usage so far.
func (a *account) usage() Used {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.used
	u.Tokens, u.UnderWay = a.total.Load(), a.running
	return u
}
