package rpc

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/ingress"
	"github.com/millrace/millrace/services/internal/reason"
)

const (
	// requestTimeout bounds the time until the request of a call that takes one message arrives.
	// Large messages get more time, see minReceiveRate.
	requestTimeout = 20 * time.Second
	// minReceiveRate, in bytes a second, extends the time of a large message.
	minReceiveRate = 64 << 10
	// contendedTimeout bounds the time of a large message while others wait for its bytes of the
	// budget. It is checked every contendedInterval after that.
	contendedTimeout  = 20 * time.Second
	contendedInterval = time.Second
)

// boundedReceiver is a stream whose large messages take their bytes from the receive budget while
// they are received.
type boundedReceiver struct {
	grpc.ServerStream
	inbound *ingress.Stream
	budget  *ingress.Budget
	from    netip.Addr
	timeout time.Duration // bounds the wait for the next message; 0: no bound
	max     int64
	domain  string
	closed  atomic.Bool // the handler has returned
	// returns the bytes of a Frame that the handler has not copied yet
	releaseFrame atomic.Pointer[func()]
}

// releaseLast returns the bytes of the previous message to the budget.
func (s *boundedReceiver) releaseLast() {
	if release := s.releaseFrame.Swap(nil); release != nil {
		(*release)()
	}
}

// close returns the bytes for good. A goroutine that outlives its handler and still receives holds
// none.
func (s *boundedReceiver) close() {
	s.closed.Store(true)
	s.releaseLast()
}

// newReceiver bounds the messages of a call of method m.
func (s *Server) newReceiver(m Method, stream grpc.ServerStream) grpc.ServerStream {
	in := ingress.FromContext(stream.Context())
	if in == nil {
		return stream
	}
	r := &boundedReceiver{ServerStream: stream, inbound: in, budget: s.receiveBudget, from: ingress.From(stream.Context()), max: int64(s.cfg.MaxReceiveBytes), domain: s.cfg.Domain}
	if bytes, bounded := s.cfg.MaxMethodBytes[m.Name]; bounded {
		r.max = min(r.max, int64(bytes))
	}
	if !m.ClientStreams {
		in.ExpectSingle()
		r.timeout = requestTimeout
	}
	return r
}

// RecvMsg implements grpc.ServerStream. It refuses a message that is too large before it arrives. A
// large message waits for the budget.
func (s *boundedReceiver) RecvMsg(m any) error {
	s.releaseLast()
	bytes, err := s.inbound.Next(s.Context(), s.timeout)
	switch {
	case err != nil:
		return s.senderError(err)
	case bytes == 0:
		return s.ServerStream.RecvMsg(m)
	case bytes > s.max:
		return Error{
			Code: codes.ResourceExhausted, Domain: s.domain, Reason: reason.MessageTooLarge,
			Message:  fmt.Sprintf("the request has %d bytes and this server accepts %d: send less", bytes, s.max),
			Metadata: map[string]string{"bytes": strconv.FormatInt(bytes, 10), "max_bytes": strconv.FormatInt(s.max, 10)},
		}.Err()
	}
	release, err := s.budget.Acquire(s.Context(), s.from, bytes)
	switch {
	case errors.Is(err, ingress.ErrQueueFull):
		return Error{
			Code: codes.ResourceExhausted, Domain: s.domain, Reason: reason.TooManyBytesWaiting, RetryAfter: waitingRetry,
			Message: fmt.Sprintf("the request has %d bytes, and %d large requests wait to be received, the maximum: "+
				"try again later, or send less", bytes, s.budget.Waiting()),
			Metadata: map[string]string{"bytes": strconv.FormatInt(bytes, 10), "waiting_bytes": strconv.FormatInt(s.budget.Used(), 10),
				"max_waiting_bytes": strconv.FormatInt(s.budget.Max(), 10)},
		}.Err()
	case err != nil:
		return status.FromContextError(err).Err()
	}
	return s.receiveLarge(m, bytes, release)
}

// receiveResult is how receiving a message ended.
type receiveResult struct {
	err      error
	panicked any
}

// receiveLarge receives a message whose bytes are reserved. It returns an error if that takes too
// long. The goroutine that receives then ends with the call.
func (s *boundedReceiver) receiveLarge(m any, bytes int64, release func()) error {
	done := make(chan receiveResult, 1)
	go func() {
		var r receiveResult
		defer func() {
			r.panicked = recover()
			if _, ok := m.(*Frame); ok && r.err == nil {
				s.releaseFrame.Store(&release)
			} else {
				release()
			}
			if s.closed.Load() {
				s.releaseLast()
			}
			done <- r
		}()
		r.err = s.ServerStream.RecvMsg(m)
	}()
	start := time.Now()
	longest := requestTimeout + time.Duration(bytes)*time.Second/minReceiveRate
	timer := time.NewTimer(contendedTimeout)
	defer timer.Stop()
	for {
		changed, err := s.inbound.Err()
		if err != nil {
			return s.senderError(err)
		}
		select {
		case r := <-done:
			if r.panicked != nil {
				panic(r.panicked) // on the goroutine of the call, whose interceptor recovers
			}
			return r.err
		case <-changed:
		case <-timer.C:
			took, others := time.Since(start), s.budget.Waiting()
			if took >= longest || others > 0 {
				return s.slowSenderError(took, bytes, others)
			}
			timer.Reset(contendedInterval)
		}
	}
}

// senderError returns the status of an error in how the client sends.
func (s *boundedReceiver) senderError(why error) error {
	if errors.Is(why, ingress.ErrNoMessage) {
		return Error{
			Code: codes.DeadlineExceeded, Domain: s.domain, Reason: reason.SilentSender,
			Message:  fmt.Sprintf("the request did not arrive within %v: send it with the call, and close the sending side after it", s.timeout),
			Metadata: map[string]string{"waited_ms": strconv.FormatInt(s.timeout.Milliseconds(), 10)},
		}.Err()
	}
	return Error{
		Code: codes.InvalidArgument, Domain: s.domain, Reason: reason.MalformedMessage,
		Message: fmt.Sprintf("%s: call with a gRPC library", why),
	}.Err()
}

// slowSenderError returns the status of a request that took too long.
func (s *boundedReceiver) slowSenderError(took time.Duration, bytes int64, others int) error {
	contention := ""
	if others > 0 {
		contention = fmt.Sprintf(", and %d others wait for its bytes", others)
	}
	return Error{
		Code: codes.DeadlineExceeded, Domain: s.domain, Reason: reason.SilentSender,
		Message: fmt.Sprintf("the request of %d bytes did not arrive completely within %v%s: send it faster, or in smaller pieces",
			bytes, took.Round(time.Second), contention),
		Metadata: map[string]string{"bytes": strconv.FormatInt(bytes, 10), "waited_ms": strconv.FormatInt(took.Milliseconds(), 10)},
	}.Err()
}
