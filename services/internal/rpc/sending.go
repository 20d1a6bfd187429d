package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"

	"github.com/millrace/millrace/services/internal/flood"
	"github.com/millrace/millrace/services/internal/intake"
	"github.com/millrace/millrace/services/internal/reason"
)

const (
	// DefaultSendStall is how long an answer may not move before its call ends.
	DefaultSendStall = 30 * time.Second
	// crowdedStall is how long one may not move while others wait for its room, which is looked at so often behind that (crowdedLook).
	// Without it, a caller that reads nothing of many answers keeps its room for the whole stall time: the whole share of its address,
	// which all callers of a scheduler have in common, or with two addresses the whole budget.
	crowdedStall = 5 * time.Second
	// DefaultMaxSendingBytes bounds the messages above outboxBytes that are being sent, all calls together.
	DefaultMaxSendingBytes = 128 << 20
	// streamedBytes is the size up to which a message belongs to a stream of tokens. A quarter of the budget is for these alone, so that
	// large unread answers delay no stream.
	streamedBytes = 64 << 10
	// sendingRetry is the RetryInfo delay of an answer that finds no room.
	sendingRetry = time.Second
	// dropTime is how long the transport has to drop the queue of a stream that has ended. One that takes longer cannot write.
	dropTime = 5 * time.Second
)

// errStuck: a connection cannot be written to, so the queues of its ended calls stay.
var errStuck = errors.New("nothing can be written to it, and calls that have ended wait for that")

// sends is the budget of a server's messages above outboxBytes that are being sent.
//
// grpc-go's own bound is a write quota of 64 KiB a stream, and it lets a message of any size pass while the quota is above zero. The
// first large message of a call is therefore queued whole, and SendMsg returns although the caller has read nothing. So a sender takes
// the bytes of a large message from this budget, and waits until the transport has written all of them. The budget gets them back when
// the transport frees the message's buffers, or when the connection is closed.
//
//	SendMsg -> enter -> transport's queue -> framer -> connection
//	           |          \__ frees each chunk: moved ____/
//	           \__ waits for room, or refuses
//
// A message that finds no room waits for it, no longer than the stall time and the call's deadline: it is there already, its handler
// produces no other one meanwhile, and a stream that was refused in the middle would be lost. Waiting messages are in memory too. So
// half of a gate's room bounds them as well, or one message, and beyond that a message is refused. While there are some, a message that
// does not move ends its call sooner.
//
// Bound: 1.5 times the budget, plus one message of each call that has just made it.
type sends struct {
	streamed, large *intake.Gate
	stall           time.Duration
	domain          string
	stalled         atomic.Uint64 // calls that ended because their answer did not move
	logger          hclog.Logger
	lines           flood.Bound // of connections that are closed
}

// CheckSendStall refuses a value of --send-stall: a healthy caller on a slow network may read nothing for a second.
func CheckSendStall(stall time.Duration) error {
	if stall < time.Second || stall > time.Hour {
		return fmt.Errorf("--send-stall is %v: must be in [1s, 1h]", stall)
	}
	return nil
}

func newSends(cfg *ServerConfig, logger hclog.Logger) *sends {
	streamed := cfg.MaxSendingBytes / 4
	large := cfg.MaxSendingBytes - streamed
	return &sends{
		streamed: intake.NewSendGate(streamed, streamed/2), large: intake.NewSendGate(large, large/2), stall: cfg.SendStall,
		domain: cfg.Domain, logger: logger,
	}
}

// gate returns the part of the budget for a message of the given size.
func (s *sends) gate(bytes int) *intake.Gate {
	if bytes <= streamedBytes {
		return s.streamed
	}
	return s.large
}

// enter takes the bytes of a message from the budget. leave gives them back, once.
func (s *sends) enter(ctx context.Context, gate *intake.Gate, from netip.Addr, bytes int) (leave func(), err error) {
	if leave, ok := gate.TryEnter(from, int64(bytes)); ok {
		return leave, nil
	}
	waiting, cancel := context.WithTimeout(ctx, s.stall)
	defer cancel()
	leave, err = gate.Enter(waiting, from, int64(bytes))
	switch {
	case err == nil:
		return leave, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, Fault{
		Code: codes.ResourceExhausted, Domain: s.domain, Reason: reason.TooManyBytesSending, RetryAfter: sendingRetry,
		Message: fmt.Sprintf("the answer takes %d bytes, and answers of %d bytes are being sent of %d that may be: try again later, ask for less, "+
			"and read answers as they come", bytes, gate.Used(), gate.Max()),
		Metadata: map[string]string{"bytes": strconv.Itoa(bytes), "sending_bytes": strconv.FormatInt(gate.Used(), 10),
			"max_sending_bytes": strconv.FormatInt(gate.Max(), 10)},
	}.Err()
}

// slow returns the status of a call whose answer did not move for the time waited.
func (s *sends) slow(waited time.Duration) error {
	s.stalled.Add(1)
	return Fault{
		Code: codes.ResourceExhausted, Domain: s.domain, Reason: reason.SlowReader,
		Message:  fmt.Sprintf("so little of the answer was read that it did not move for %v: read it as it comes", waited.Round(time.Millisecond)),
		Metadata: map[string]string{"waited_ms": strconv.FormatInt(waited.Milliseconds(), 10)},
	}.Err()
}

// drop ends the stream of a call whose message the transport still has, and waits until the transport has dropped it. It closes a
// connection on which the transport cannot even write the end of a stream: the stream's queue would stay, whatever is read. ended is
// whether the caller, its deadline or the stall time has ended the call; else this program has, and the caller gets the status if it
// reads in dropTime.
//
// A message that comes to the transport when its stream has just ended is dropped and never freed. So a message that stays proves
// nothing: what counts is whether the transport has read the reset and writes.
func (s *sends) drop(m *inflight, in *receiving, ended bool) {
	defer m.release() // the transport frees the rest with its stream or its connection
	timer := time.NewTimer(dropTime)
	defer timer.Stop()
	if !ended {
		if m.left(in, timer) {
			return
		}
		timer.Reset(dropTime)
	}
	in.arrival.Reset() // also where the caller or the deadline has: the handler's return alone leaves the queue as it is
	for {
		before := in.arrival.Writes()
		if m.left(in, timer) {
			return
		}
		switch now := in.arrival.Writes(); {
		case in.arrival.Resetting(), now%2 == 1 && now == before:
			if untold, ok := s.lines.Tell(""); ok {
				s.logger.Warn("connection closed", "peer", in.from.String(), "error", errStuck, "closed_without_a_line", untold)
			}
			in.arrival.CloseConnection()
			return
		case now%2 == 0:
			return
		}
		timer.Reset(dropTime)
	}
}

// inflight is a message on its way to the connection, in chunks that the transport frees one by one. Buffers come back to their own pool
// only by way of the transport, which may still read them.
type inflight struct {
	chunks  []chunk
	unfreed atomic.Int32 // chunks that the transport has not freed
	begun   time.Time
	moved   atomic.Int64  // when it last freed one, in nanoseconds after begun
	gone    chan struct{} // closed when none is left
	release func()        // gives the bytes back to the budget, once
}

// chunkBytes is the unit in which progress is seen: a frame of HTTP/2.
const chunkBytes = 16 << 10

// chunk is a part of a message, and the pool to which the transport gives it back.
type chunk struct {
	of    *inflight
	bytes []byte
	under mem.Buffer // is freed with the chunk, the last one of its buffer; else nil
}

// newInflight makes chunks of a message, whose references it takes over.
func newInflight(data mem.BufferSlice, release func()) (*inflight, mem.BufferSlice) {
	m := &inflight{begun: time.Now(), gone: make(chan struct{}), release: sync.OnceFunc(release)}
	m.chunks = make([]chunk, 0, len(data)+data.Len()/chunkBytes)
	for _, buffer := range data {
		rest := buffer.ReadOnlyData()
		if len(rest) == 0 {
			buffer.Free()
		}
		for len(rest) > 0 {
			n := min(chunkBytes, len(rest))
			c := chunk{of: m, bytes: rest[:n]}
			if rest = rest[n:]; len(rest) == 0 {
				c.under = buffer
			}
			if cap(c.bytes) <= pooledBytes { // else the transport would not say when it has written it
				c.bytes = append(make([]byte, 0, pooledBytes+1), c.bytes...)
			}
			m.chunks = append(m.chunks, c)
		}
	}
	m.unfreed.Store(int32(len(m.chunks)))
	out := make(mem.BufferSlice, len(m.chunks))
	for i := range m.chunks {
		out[i] = mem.NewBuffer(&m.chunks[i].bytes, &m.chunks[i])
	}
	return m, out
}

// Put is called by the transport when it has written or dropped the chunk.
func (c *chunk) Put(*[]byte) {
	m := c.of
	if c.under != nil {
		c.under.Free()
	}
	m.moved.Store(int64(time.Since(m.begun)))
	if m.unfreed.Add(-1) == 0 {
		m.release()
		close(m.gone)
	}
}

// Get is never called: the transport gets no buffer of a chunk.
func (c *chunk) Get(length int) *[]byte {
	b := make([]byte, length)
	return &b
}

// await waits until the transport has freed the message. It returns ctx's error, or a stalledFor when nothing has moved for the stall
// time, or for crowdedStall while others wait for room in the gate. The timer is the caller's.
func (m *inflight) await(ctx context.Context, timer *time.Timer, stall time.Duration, gate *intake.Gate) error {
	timer.Reset(min(stall, crowdedStall))
	defer timer.Stop()
	for {
		select {
		case <-m.gone:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		still := time.Since(m.begun) - time.Duration(m.moved.Load())
		switch {
		case still >= stall, still >= crowdedStall && gate.Waiting() > 0:
			return stalledFor(still)
		case still < crowdedStall:
			timer.Reset(min(stall, crowdedStall) - still)
		default:
			timer.Reset(min(stall-still, crowdedLook))
		}
	}
}

// left waits until the transport has freed the message or its connection is closed; false: the timer ended the wait.
func (m *inflight) left(in *receiving, timer *time.Timer) bool {
	select {
	case <-m.gone:
		return true
	case <-in.arrival.Gone():
		return true
	case <-timer.C:
		return false
	}
}

// stalledFor is the error of an answer that did not move; its value is for how long.
type stalledFor time.Duration

func (s stalledFor) Error() string {
	return fmt.Sprintf("the answer did not move for %v", time.Duration(s))
}

var _ mem.BufferPool = (*chunk)(nil)
