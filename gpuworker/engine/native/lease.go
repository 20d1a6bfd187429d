package native

import (
	"fmt"
	"sync"

	"github.com/millrace/millrace/gpuworker/engine"
)

// lease guards a handle: calls use it together, a close waits for them and makes later ones fail. The zero value is an
// open handle without users. acquire never blocks, so several leases can be held in any order.
type lease struct {
	mu     sync.Mutex
	users  int
	closed bool
	idle   chan struct{} // made by a close that waits for users
}

// acquire admits one call, or fails with ErrPrecondition.
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

// close refuses new calls and waits for those under way. Only one caller of close succeeds.
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

// reopen undoes close when the engine refused it.
func (l *lease) reopen() {
	l.mu.Lock()
	l.closed = false
	l.mu.Unlock()
}
