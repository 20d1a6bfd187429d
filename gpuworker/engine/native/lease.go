package native

import (
	"fmt"
	"sync"

	"github.com/millrace/millrace/gpuworker/engine"
)

// lease guards a handle. Any number of calls hold it at once; close waits for them, and later calls
// fail. The zero value is an open handle without users. acquire never blocks, so several leases can
// be held in any order.
type lease struct {
	mu     sync.Mutex
	users  int
	closed bool
	idle   chan struct{} // set by a close that waits for users
}

// acquire admits one call. It returns ErrPrecondition after close.
func (l *lease) acquire(what string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("%s is closed: %w", what, engine.ErrPrecondition)
	}
	l.users++
	return nil
}

// release ends a call.
func (l *lease) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.users == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// close refuses new calls and waits for the running ones. Only one caller of close succeeds.
func (l *lease) close(what string) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return fmt.Errorf("%s is already closed: %w", what, engine.ErrPrecondition)
	}
	l.closed = true
	var idle chan struct{}
	if l.users > 0 {
		idle = make(chan struct{})
		l.idle = idle
	}
	l.mu.Unlock()
	if idle != nil {
		<-idle
	}
	return nil
}

// reopen undoes close after the engine refused it.
func (l *lease) reopen() {
	l.mu.Lock()
	l.closed = false
	l.mu.Unlock()
}
