package transport

import (
	"runtime"
	"time"
)

const (
	// handshakesAtOnce is how many handshakes compute: many that come at once would keep every stream's next token for as long as
	// all of them take.
	handshakesAtOnce = 1
	// longestPause bounds the pause behind one, which is as long as it took: in a process that always has something to compute, the
	// runtime looks for what has come in on streams every 10 ms only.
	longestPause = 5 * time.Millisecond
)

// turn is that of one handshake, on one goroutine. It computes between the client's first message and the wait for its next one.
type turn struct {
	*lingering
	of    chan struct{} // has as many in it as compute, or have just computed
	begun time.Time     // zero: it does not compute
}

// take waits for the turn, and lets others go first who can run.
func (t *turn) take() {
	t.of <- struct{}{}
	runtime.Gosched()
	t.begun = time.Now()
}

// end gives it to the next after a pause; it may have ended.
func (t *turn) end() {
	if t.begun.IsZero() {
		return
	}
	time.AfterFunc(min(time.Since(t.begun), longestPause), func() { <-t.of })
	t.begun = time.Time{}
}

// Read ends the turn: who waits for a client computes nothing.
func (t *turn) Read(p []byte) (int, error) {
	t.end()
	return t.lingering.Read(p)
}
