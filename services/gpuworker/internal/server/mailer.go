package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/gpuworker/batch"
)

// mailed is how many messages wait at most for a reader. Its training goes on meanwhile.
const mailed = 16

// mailer sends a call's messages in order, so that who makes them waits for the reader only when many are unread, and not for ever.
type mailer[M any] struct {
	queue    chan M
	done     chan struct{} // closed when nothing more is sent
	err      error         // why, behind done; nil: everything was
	patience time.Duration
	over     atomic.Bool // what waits is sent no more
}

func mail[M any](patience time.Duration, send func(M) error) *mailer[M] {
	m := &mailer[M]{queue: make(chan M, mailed), done: make(chan struct{}), patience: patience}
	go func() {
		defer close(m.done)
		for message := range m.queue {
			if m.over.Load() {
				return
			}
			if m.err = send(message); m.err != nil {
				return
			}
		}
	}()
	return m
}

// send puts a message behind the others. It fails when the reader takes none for as long as there is patience.
func (m *mailer[M]) send(ctx context.Context, message M) error {
	timer := time.NewTimer(m.patience)
	defer timer.Stop()
	select {
	case m.queue <- message:
		return nil
	case <-m.done:
		return m.err
	case <-timer.C:
		return m.slow()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// end sends what waits still, unless nobody reads it, and ends the sending; err is how the call has ended, which it returns unless
// there is worse. Call it once, and send nothing behind it.
func (m *mailer[M]) end(ctx context.Context, err error) error {
	if errors.Is(err, batch.ErrSlowReader) || ctx.Err() != nil {
		m.over.Store(true)
	}
	close(m.queue)
	if m.over.Load() {
		return cmp.Or(err, context.Cause(ctx))
	}
	timer := time.NewTimer(m.patience)
	defer timer.Stop()
	select {
	case <-m.done:
		return cmp.Or(err, m.err)
	case <-timer.C:
		m.over.Store(true)
		return cmp.Or(err, m.slow())
	case <-ctx.Done():
		return cmp.Or(err, context.Cause(ctx))
	}
}

func (m *mailer[M]) slow() error {
	return fmt.Errorf("%w: nothing was read for %v", batch.ErrSlowReader, m.patience)
}
