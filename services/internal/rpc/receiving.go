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

	"github.com/millrace/millrace/services/internal/intake"
	"github.com/millrace/millrace/services/internal/reason"
)

const (
	// requestPatience is what a call that sends one request gets to send it: one that is not large is there at once.
	requestPatience = 20 * time.Second
	// leastRate, in bytes a second, is what a large one must keep besides.
	leastRate = 64 << 10
	// crowdedPatience is what a large one gets while others wait for its room, looked at so often behind that.
	crowdedPatience = 20 * time.Second
	crowdedLook     = time.Second
)

// receiving is the stream of a call whose messages are bounded while they are received.
type receiving struct {
	grpc.ServerStream
	arrival  *intake.Arrival
	gate     *intake.Gate
	from     netip.Addr
	patience time.Duration // for the next message to come; 0: for ever
	max      int64
	domain   string
	over     atomic.Bool            // the handler has returned
	place    atomic.Pointer[func()] // gives back the room of a Frame that the handler has not yet put where it keeps it
}

// leave gives back the room of the message before.
func (s *receiving) leave() {
	if leave := s.place.Swap(nil); leave != nil {
		(*leave)()
	}
}

// end gives back the room for good: what a goroutine that the handler has left behind receives keeps none.
func (s *receiving) end() {
	s.over.Store(true)
	s.leave()
}

// receiving bounds what a call of a method sends.
func (s *Server) receiving(m Method, stream grpc.ServerStream) grpc.ServerStream {
	a := intake.FromContext(stream.Context())
	if a == nil {
		return stream
	}
	in := &receiving{ServerStream: stream, arrival: a, gate: s.gate, from: intake.From(stream.Context()), max: int64(s.cfg.MaxReceiveBytes), domain: s.cfg.Domain}
	if bytes, bounded := s.cfg.MaxMethodBytes[m.Name]; bounded {
		in.max = min(in.max, int64(bytes))
	}
	if !m.ClientStreams {
		a.Single()
		in.patience = requestPatience
	}
	return in
}

// RecvMsg implements grpc.ServerStream. A message that is too large is refused before it comes, and a large one waits for room.
func (s *receiving) RecvMsg(m any) error {
	s.leave()
	bytes, err := s.arrival.Next(s.Context(), s.patience)
	switch {
	case err != nil:
		return s.wrong(err)
	case bytes == 0:
		return s.ServerStream.RecvMsg(m)
	case bytes > s.max:
		return Fault{
			Code: codes.ResourceExhausted, Domain: s.domain, Reason: reason.MessageTooLarge,
			Message:  fmt.Sprintf("the request has %d bytes and this server takes %d: send less", bytes, s.max),
			Metadata: map[string]string{"bytes": strconv.FormatInt(bytes, 10), "max_bytes": strconv.FormatInt(s.max, 10)},
		}.Err()
	}
	leave, err := s.gate.Enter(s.Context(), s.from, bytes)
	switch {
	case errors.Is(err, intake.ErrCrowded):
		return Fault{
			Code: codes.ResourceExhausted, Domain: s.domain, Reason: reason.TooManyBytesWaiting, RetryAfter: waitingRetry,
			Message: fmt.Sprintf("the request takes %d bytes, and %d of its kind wait to be received, which is as many as may: "+
				"try again later, or send less", bytes, s.gate.Waiting()),
			Metadata: map[string]string{"bytes": strconv.FormatInt(bytes, 10), "waiting_bytes": strconv.FormatInt(s.gate.Used(), 10),
				"max_waiting_bytes": strconv.FormatInt(s.gate.Max(), 10)},
		}.Err()
	case err != nil:
		return status.FromContextError(err).Err()
	}
	return s.large(m, bytes, leave)
}

// received is how receiving ended.
type received struct {
	err      error
	panicked any
}

// large receives a message that has its room. Receiving goes on by itself where it takes too long: it ends with the call.
func (s *receiving) large(m any, bytes int64, leave func()) error {
	done := make(chan received, 1)
	go func() {
		var r received
		defer func() {
			r.panicked = recover()
			if _, ok := m.(*Frame); ok && r.err == nil {
				s.place.Store(&leave)
			} else {
				leave()
			}
			if s.over.Load() {
				s.leave()
			}
			done <- r
		}()
		r.err = s.ServerStream.RecvMsg(m)
	}()
	begun := time.Now()
	longest := requestPatience + time.Duration(bytes)*time.Second/leastRate
	timer := time.NewTimer(crowdedPatience)
	defer timer.Stop()
	for {
		news, wrong := s.arrival.Wrong()
		if wrong != nil {
			return s.wrong(wrong)
		}
		select {
		case r := <-done:
			if r.panicked != nil {
				panic(r.panicked) // on the goroutine of the call, which recovers
			}
			return r.err
		case <-news:
		case <-timer.C:
			took, others := time.Since(begun), s.gate.Waiting()
			if took >= longest || others > 0 {
				return s.slow(took, bytes, others)
			}
			timer.Reset(crowdedLook)
		}
	}
}

// wrong is the status of what is wrong with what comes.
func (s *receiving) wrong(why error) error {
	if errors.Is(why, intake.ErrSilent) {
		return Fault{
			Code: codes.DeadlineExceeded, Domain: s.domain, Reason: reason.SilentSender,
			Message:  fmt.Sprintf("the call's request has not come within %v: send it with the call, and end the sending side behind it", s.patience),
			Metadata: map[string]string{"waited_ms": strconv.FormatInt(s.patience.Milliseconds(), 10)},
		}.Err()
	}
	return Fault{
		Code: codes.InvalidArgument, Domain: s.domain, Reason: reason.MalformedMessage,
		Message: fmt.Sprintf("%s: call with a gRPC library", why),
	}.Err()
}

// slow is the status of a request that takes too long.
func (s *receiving) slow(took time.Duration, bytes int64, others int) error {
	while := ""
	if others > 0 {
		while = fmt.Sprintf(", and %d wait for its room", others)
	}
	return Fault{
		Code: codes.DeadlineExceeded, Domain: s.domain, Reason: reason.SilentSender,
		Message: fmt.Sprintf("the request of %d bytes has not come whole within %v%s: send it faster, or in smaller pieces",
			bytes, took.Round(time.Second), while),
		Metadata: map[string]string{"bytes": strconv.FormatInt(bytes, 10), "waited_ms": strconv.FormatInt(took.Milliseconds(), 10)},
	}.Err()
}
