package vectorserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/gpuworker/batch"
)

// mailDepth bounds the messages that wait for a reader while its training continues.
const mailDepth = 16

// mailer sends a call's messages in order. It applies backpressure: a sender waits while mailDepth
// messages are unread, and fails if the reader reads none for patience.
type mailer[M any] struct {
	queue    chan M
	done     chan struct{} // closed when no more is sent
	err      error         // why, set before done is closed; nil if everything was sent
	patience time.Duration
	over     atomic.Bool // messages that wait are dropped
}

func newMailer[M any](patience time.Duration, send func(M) error) *mailer[M] {
	m := &mailer[M]{queue: make(chan M, mailDepth), done: make(chan struct{}), patience: patience}
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

// send queues a message. It fails if the reader reads none for patience.
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

// end sends the messages that wait, unless the reader is slow or gone, and ends the sending. err is
// the outcome of the call; end returns it, or its own error if err is nil. Call it once, after the
// last send.
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
