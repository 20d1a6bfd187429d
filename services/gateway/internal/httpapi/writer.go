package httpapi

import (
	"errors"
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
	guard   *time.Timer // runs during a write
	slow    atomic.Bool
	status  int   // of the response; written with its first byte
	begun   bool  // the status is written
	written int64 // bytes
}

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
	if w.guard == nil {
		w.guard = time.AfterFunc(w.stall, w.cut)
	} else {
		w.guard.Reset(w.stall)
	}
	n, err := w.Write(p)
	if err == nil {
		err = w.control.Flush()
	}
	w.guard.Stop()
	w.written += int64(n)
	switch {
	case err == nil:
		return nil
	case w.slow.Load():
		return errSlow
	}
	return errGone
}

// cut ends the running write.
func (w *writer) cut() {
	w.slow.Store(true)
	_ = w.control.SetWriteDeadline(time.Now()) // only an error if the connection is gone
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
