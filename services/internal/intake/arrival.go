package intake

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"
)

const (
	// Window is the flow-control window of a stream that a server must have: what may arrive of messages that nobody has asked for.
	Window = 64 << 10
	// smallBytes is the length up to which a message arrives whole without being asked for: a quarter of the window may be taken by
	// what was read and not yet given back.
	smallBytes = Window / 2
	// prefixBytes come before each message: whether it is compressed, and its length.
	prefixBytes = 5
	// Frames of a message that has many must have leastMean bytes in the mean: each takes about a hundred beside its own.
	manyFrames = 1024
	leastMean  = 64
)

// What is wrong with how a call sends its messages.
var (
	// ErrSilent: the next message has not come in its time.
	ErrSilent = errors.New("no message has come")
	// ErrCrumbs: a message comes in frames so small that keeping them takes far more memory than it has bytes.
	ErrCrumbs = errors.New("a message comes in frames of a few bytes each")
	// ErrSecond: a call that sends one message sends another.
	ErrSecond = errors.New("a call of one message sends a second one")
)

// Arrival is what has come of the messages of one call. The goroutine that reads the connection tells it, and the one that receives
// the messages asks it.
type Arrival struct {
	done   <-chan struct{} // the call has ended
	conn   *conn
	stream uint32

	taken int // messages that were asked for; of who receives

	mu     sync.Mutex
	single bool              // guarded by mu; the call sends one message
	prefix [prefixBytes]byte // guarded by mu; of the message that comes
	have   int               // guarded by mu; bytes of prefix that have come
	left   int64             // guarded by mu; bytes of the message that are to come
	frames int64             // guarded by mu; that it has come in
	whole  int               // guarded by mu; messages that have come whole
	ended  bool              // guarded by mu; no more comes
	wrong  error             // guarded by mu; ErrCrumbs or ErrSecond
	news   chan struct{}     // guarded by mu; closed when one of these has changed; nil while nobody waits
}

// Single says that the call sends one message, before that is asked for.
func (a *Arrival) Single() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.single = true
	a.secondLocked()
}

// Next waits until the next message can be received, and must be followed by receiving it unless it returns an error. It returns 0
// when receiving it takes no room and no time: it has come, and of a single one also the end behind it, or there is none. Otherwise
// it returns the length of a message that is larger than what arrives without being asked for. ErrSilent says that within patience,
// 0 being for ever, neither was known.
func (a *Arrival) Next(ctx context.Context, patience time.Duration) (int64, error) {
	length, known, news, err := a.look()
	if !known && err == nil {
		var late <-chan time.Time
		if patience > 0 {
			timer := time.NewTimer(patience)
			defer timer.Stop()
			late = timer.C
		}
		for !known && err == nil {
			select {
			case <-news:
			case <-ctx.Done():
				return 0, nil // receiving says how the call ended
			case <-late:
				return 0, ErrSilent
			}
			length, known, news, err = a.look()
		}
	}
	if err != nil {
		return 0, err
	}
	a.taken++
	return length, nil
}

// Wrong is what is wrong with what has come, nil being nothing; news is closed when that may have changed.
func (a *Arrival) Wrong() (news <-chan struct{}, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.newsLocked(), a.wrong
}

// look is what Next returns, if it is known, and else what to wait for.
func (a *Arrival) look() (length int64, known bool, news <-chan struct{}, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.wrong != nil:
		return 0, false, nil, a.wrong
	case a.ended, a.whole > a.taken && !a.single:
		return 0, true, nil, nil
	case a.have == prefixBytes && a.whole == a.taken && a.lengthLocked() > smallBytes:
		return a.lengthLocked(), true, nil, nil
	}
	return 0, false, a.newsLocked(), nil
}

func (a *Arrival) newsLocked() <-chan struct{} {
	if a.news == nil {
		a.news = make(chan struct{})
	}
	return a.news
}

// lengthLocked is that of the message that comes.
func (a *Arrival) lengthLocked() int64 { return int64(binary.BigEndian.Uint32(a.prefix[1:])) }

// data: part of the stream has come.
func (a *Arrival) data(part []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(part) > 0 {
		if a.have < prefixBytes {
			k := copy(a.prefix[a.have:], part)
			a.have += k
			part = part[k:]
			a.secondLocked()
			if a.have < prefixBytes {
				return
			}
			a.left = a.lengthLocked()
			a.frames = 0
			if a.left > smallBytes {
				a.tellLocked()
			}
		}
		k := min(int64(len(part)), a.left)
		a.left -= k
		part = part[k:]
		if a.left == 0 {
			a.have = 0
			a.whole++
			a.tellLocked()
		}
	}
}

// secondLocked sees a message behind a single one.
func (a *Arrival) secondLocked() {
	if a.single && (a.whole > 1 || a.whole > 0 && a.have > 0) {
		a.wrong = ErrSecond
		a.tellLocked()
	}
}

// frame: a frame of the stream has ended.
func (a *Arrival) frame() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.frames++
	if a.have == prefixBytes && a.frames > manyFrames && a.lengthLocked()-a.left < leastMean*a.frames {
		a.wrong = ErrCrumbs
		a.tellLocked()
	}
}

// end: no more comes.
func (a *Arrival) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.tellLocked()
}

// tellLocked wakes who waits.
func (a *Arrival) tellLocked() {
	if a.news != nil {
		close(a.news)
		a.news = nil
	}
}

// over is whether the call has ended.
func (a *Arrival) over() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// arrivalKey is the context key of *Arrival.
type arrivalKey struct{}

// FromContext is the Arrival of a call's context, or nil where its connection is not watched.
func FromContext(ctx context.Context) *Arrival {
	a, _ := ctx.Value(arrivalKey{}).(*Arrival)
	return a
}
