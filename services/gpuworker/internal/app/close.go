package app

import (
	"errors"
	"fmt"
	"time"
)

// ErrHangs says that the device does not answer; only the end of the process frees its memory.
var ErrHangs = errors.New("the device hangs and has not given its memory back")

// closeTimeout bounds the wait for a device that is closed: an engine that hangs inside a step never ends it.
const closeTimeout = 20 * time.Second

// within returns what end returns, or ErrHangs when that takes longer than limit; end then goes on by itself.
func within(limit time.Duration, end func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- end() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(limit):
		return fmt.Errorf("%w after %v", ErrHangs, limit)
	}
}
