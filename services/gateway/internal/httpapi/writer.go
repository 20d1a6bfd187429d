package httpapi

import (
	"errors"
	"math"
	"net/http"
	"sync/atomic"
	"time"
)

// errGone reports that the client has left.
var errGone = errors.New("the client has left")

// errSlow reports that the client read nothing for too long.
var errSlow = errors.New("the client read nothing for too long")

// writer writes a response and bounds how long each write takes. A deadline of the connection alone
// would not do: over HTTP/2 it also ends a stream that has nothing to send when it passes.
type writer struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	guard   guard
	status  int   // of the response; written with its first byte
	begun   bool  // the status is written
	written int64 // bytes
}

// guard ends a write that takes longer than the stall. Its timer runs on from one write to the next:
// to set and stop it for each write took a twentieth of a stream's processor time.
type guard struct {
	timer   *time.Timer
	began   atomic.Int64 // when the running write began, in ns since start; 0: none runs
	running atomic.Bool  // the timer
	slow    atomic.Bool  // a write was ended
}

// start is when times of guards are counted from. They are above 0.
var start = time.Now().Add(-1)

func newWriter(w http.ResponseWriter, stall time.Duration) *writer {
	return &writer{ResponseWriter: w, control: http.NewResponseController(w), stall: stall}
}

// Unwrap implements the convention of http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// write writes and flushes p.
func (w *writer) write(p []byte) error {
	if !w.begun {
		w.begun = true
		w.WriteHeader(w.status)
	}
	w.guard.began.Store(int64(time.Since(start)))
	if w.guard.running.CompareAndSwap(false, true) {
		if w.guard.timer == nil {
			// check reads the field, so it must be set before the timer can run out.
			w.guard.timer = time.AfterFunc(math.MaxInt64, w.check)
		}
		w.guard.timer.Reset(w.stall)
	}
	n, err := w.Write(p)
	if err == nil {
		err = w.control.Flush()
	}
	w.guard.began.Store(0)
	w.written += int64(n)
	switch {
	case err == nil:
		return nil
	case w.guard.slow.Load():
		return errSlow
	}
	return errGone
}

// check ends the running write if it has taken too long, or comes back when it will have. A write
// that begins after the timer was marked as stopped starts it again.
func (w *writer) check() {
	w.guard.running.Store(false)
	began := w.guard.began.Load()
	if began == 0 {
		return
	}
	if left := w.stall - (time.Since(start) - time.Duration(began)); left > 0 {
		if w.guard.running.CompareAndSwap(false, true) {
			w.guard.timer.Reset(left)
		}
		return
	}
	w.guard.slow.Store(true)
	_ = w.control.SetWriteDeadline(time.Now()) // only an error if the connection is gone
}

// end releases the timer, which holds the response until it runs out.
func (w *writer) end() {
	if w.guard.timer != nil {
		w.guard.timer.Stop()
	}
}

// writePiece is how much of a long response must be read within one stall.
const writePiece = 64 << 10

// writeAll writes a whole response.
func (w *writer) writeAll(p []byte) error {
	for len(p) > writePiece {
		if err := w.write(p[:writePiece]); err != nil {
			return err
		}
		p = p[writePiece:]
	}
	return w.write(p)
}
