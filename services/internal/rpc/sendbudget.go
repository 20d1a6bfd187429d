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

	"github.com/millrace/millrace/services/internal/ingress"
	"github.com/millrace/millrace/services/internal/ratelog"
	"github.com/millrace/millrace/services/internal/reason"
)

const (
	// DefaultSendStall is the time after which a call whose response makes no progress ends.
	DefaultSendStall = 30 * time.Second
	// contendedStall is that time while other messages wait for the same bytes. It is checked every
	// contendedInterval after that. Without it, a caller that reads none of its responses would
	// hold the whole share of its address for the whole stall time. All callers of a scheduler
	// share one address, and two addresses hold the whole budget.
	contendedStall = 5 * time.Second
	// DefaultMaxSendingBytes bounds the messages above smallBytes that are being sent, of all calls
	// together.
	DefaultMaxSendingBytes = 128 << 20
	// streamedBytes is the size up to which a message counts as part of a token stream. A quarter
	// of the budget is reserved for these, so that large responses that are not read delay no
	// stream.
	streamedBytes = 64 << 10
	// sendingRetry is the RetryInfo delay of a refused response.
	sendingRetry = time.Second
	// dropTime bounds the time in which the transport drops the queue of an ended stream. If it
	// takes longer, the transport cannot write.
	dropTime = 5 * time.Second
)

// errUnwritable reports a connection that cannot be written to, so that the queues of its ended
// calls stay in memory.
var errUnwritable = errors.New("nothing can be written to it, so the queues of ended calls stay in memory")

// sendBudget bounds the messages above smallBytes that a server is sending.
//
// grpc-go's own bound is a write quota of 64 KiB a stream, and it lets a message of any size pass
// while the quota is above zero. The first large message of a call is therefore queued whole, and
// SendMsg returns although the caller has read nothing. So a sender reserves the bytes of a large
// message here, and waits until the transport has written all of them. The budget gets them back
// when the transport frees the message's buffers, or when the connection is closed.
//
//	SendMsg -> acquire -> transport's queue -> framer -> connection
//	           |            \__ frees each chunk: progress __/
//	           \__ waits for bytes, or refuses
//
// A message that does not fit waits, at most for the stall time and until the call's deadline: it
// is complete, its handler produces no other one in that time, and a stream that is refused in the
// middle would be lost. Waiting messages are in memory too. So they may have half as many bytes as
// the budget, or be one message; further ones are refused. While messages wait, one that makes no
// progress ends its call after contendedStall.
//
// Bound: 1.5 times the budget, plus one message of each call that has just built it.
type sendBudget struct {
	streamed, large *ingress.Budget
	stall           time.Duration
	domain          string
	stalled         atomic.Uint64 // calls that ended because their response made no progress
	logger          hclog.Logger
	lines           ratelog.Limiter // limits the lines of closed connections
}

// CheckSendStall validates --send-stall. A healthy caller on a slow network may read nothing for a
// second.
func CheckSendStall(stall time.Duration) error {
	if stall < time.Second || stall > time.Hour {
		return fmt.Errorf("--send-stall is %v: must be in [1s, 1h]", stall)
	}
	return nil
}

func newSendBudget(cfg *ServerConfig, logger hclog.Logger) *sendBudget {
	streamed := cfg.MaxSendingBytes / 4
	large := cfg.MaxSendingBytes - streamed
	return &sendBudget{
		streamed: ingress.NewSendBudget(streamed, streamed/2), large: ingress.NewSendBudget(large, large/2), stall: cfg.SendStall,
		domain: cfg.Domain, logger: logger,
	}
}

// budgetFor returns the part of the budget for a message of the given size.
func (s *sendBudget) budgetFor(bytes int) *ingress.Budget {
	if bytes <= streamedBytes {
		return s.streamed
	}
	return s.large
}

// acquire reserves the bytes of a message. The caller must call release once.
func (s *sendBudget) acquire(ctx context.Context, budget *ingress.Budget, from netip.Addr, bytes int) (release func(), err error) {
	if release, ok := budget.TryAcquire(from, int64(bytes)); ok {
		return release, nil
	}
	waitCtx, cancel := context.WithTimeout(ctx, s.stall)
	defer cancel()
	release, err = budget.Acquire(waitCtx, from, int64(bytes))
	switch {
	case err == nil:
		return release, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, Error{
		Code: codes.ResourceExhausted, Domain: s.domain, Reason: reason.TooManyBytesSending, RetryAfter: sendingRetry,
		Message: fmt.Sprintf("the response has %d bytes, and responses of %d bytes are being sent, of at most %d: try again later, request less, "+
			"and read responses as they arrive", bytes, budget.Used(), budget.Max()),
		Metadata: map[string]string{"bytes": strconv.Itoa(bytes), "sending_bytes": strconv.FormatInt(budget.Used(), 10),
			"max_sending_bytes": strconv.FormatInt(budget.Max(), 10)},
	}.Err()
}

// slowReaderError returns the status of a call whose response made no progress for the time waited.
func (s *sendBudget) slowReaderError(waited time.Duration) error {
	s.stalled.Add(1)
	return Error{
		Code: codes.ResourceExhausted, Domain: s.domain, Reason: reason.SlowReader,
		Message:  fmt.Sprintf("so little of the response was read that it made no progress for %v: read it as it arrives", waited.Round(time.Millisecond)),
		Metadata: map[string]string{"waited_ms": strconv.FormatInt(waited.Milliseconds(), 10)},
	}.Err()
}

// dropStream ends the stream of a call whose message is still in the transport, and waits until the
// transport has dropped it. It closes a connection on which the transport cannot even write a
// RST_STREAM, because the queue would stay for ever.
//
// ended reports that the caller, its deadline or the stall time has ended the call. Otherwise this
// program has, and the caller receives the status if it reads within dropTime.
//
// The transport drops, and never frees, a message that arrives when its stream has just ended. So a
// message that is not freed proves nothing. What counts is whether the transport has read the reset
// and is able to write.
func (s *sendBudget) dropStream(m *inflight, receiver *boundedReceiver, ended bool) {
	defer m.release() // the transport frees the rest with its stream or connection
	timer := time.NewTimer(dropTime)
	defer timer.Stop()
	if !ended {
		if m.waitFreed(receiver, timer) {
			return
		}
		timer.Reset(dropTime)
	}
	// also if the caller or the deadline has ended the call: returning from the handler does not
	// drop the queue
	receiver.inbound.Reset()
	for {
		before := receiver.inbound.Writes()
		if m.waitFreed(receiver, timer) {
			return
		}
		switch after := receiver.inbound.Writes(); {
		case receiver.inbound.Resetting(), after%2 == 1 && after == before:
			if suppressed, ok := s.lines.Allow(""); ok {
				s.logger.Warn("connection closed", "peer", receiver.from.String(), "error", errUnwritable, "closed_without_a_line", suppressed)
			}
			receiver.inbound.CloseConnection()
			return
		case after%2 == 0:
			return
		}
		timer.Reset(dropTime)
	}
}

// inflight is a message on its way to the connection, in chunks that the transport frees one by
// one. Only the transport may return the buffers to their pools, because it may still read them.
type inflight struct {
	chunks    []chunk
	unfreed   atomic.Int32 // chunks that the transport has not freed
	start     time.Time
	lastFreed atomic.Int64  // when it last freed one, in nanoseconds after start
	freed     chan struct{} // closed when all are freed
	release   func()        // returns the bytes to the budget, once
}

// chunkBytes is the unit in which progress is measured: the payload of an HTTP/2 frame.
const chunkBytes = 16 << 10

// chunk is a part of a message. It is the pool to which the transport returns it.
type chunk struct {
	message *inflight
	bytes   []byte
	buffer  mem.Buffer // freed with the last chunk of the buffer; nil for the others
}

// newInflight splits a message into chunks and takes over its references.
func newInflight(data mem.BufferSlice, release func()) (*inflight, mem.BufferSlice) {
	m := &inflight{start: time.Now(), freed: make(chan struct{}), release: sync.OnceFunc(release)}
	m.chunks = make([]chunk, 0, len(data)+data.Len()/chunkBytes)
	for _, buffer := range data {
		rest := buffer.ReadOnlyData()
		if len(rest) == 0 {
			buffer.Free()
		}
		for len(rest) > 0 {
			n := min(chunkBytes, len(rest))
			c := chunk{message: m, bytes: rest[:n]}
			if rest = rest[n:]; len(rest) == 0 {
				c.buffer = buffer
			}
			// else the transport would not report that it has written it
			if cap(c.bytes) <= pooledBytes {
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

// Put implements mem.BufferPool. The transport calls it when it has written or dropped the chunk.
func (c *chunk) Put(*[]byte) {
	m := c.message
	if c.buffer != nil {
		c.buffer.Free()
	}
	m.lastFreed.Store(int64(time.Since(m.start)))
	if m.unfreed.Add(-1) == 0 {
		m.release()
		close(m.freed)
	}
}

// Get implements mem.BufferPool. It is never called, because the transport gets no buffer from
// here.
func (c *chunk) Get(length int) *[]byte {
	b := make([]byte, length)
	return &b
}

// await waits until the transport has freed the message. It returns ctx's error, or a stallError if
// there was no progress for the time stall, or for contendedStall while other messages wait for the
// budget. The timer is the caller's.
func (m *inflight) await(ctx context.Context, timer *time.Timer, stall time.Duration, budget *ingress.Budget) error {
	timer.Reset(min(stall, contendedStall))
	defer timer.Stop()
	for {
		select {
		case <-m.freed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		stalled := time.Since(m.start) - time.Duration(m.lastFreed.Load())
		switch {
		case stalled >= stall, stalled >= contendedStall && budget.Waiting() > 0:
			return stallError(stalled)
		case stalled < contendedStall:
			timer.Reset(min(stall, contendedStall) - stalled)
		default:
			timer.Reset(min(stall-stalled, contendedInterval))
		}
	}
}

// waitFreed waits until the transport has freed the message or its connection is closed. It returns
// false if the timer fires first.
func (m *inflight) waitFreed(receiver *boundedReceiver, timer *time.Timer) bool {
	select {
	case <-m.freed:
		return true
	case <-receiver.inbound.Closed():
		return true
	case <-timer.C:
		return false
	}
}

// stallError reports a response that made no progress for that time.
type stallError time.Duration

func (s stallError) Error() string {
	return fmt.Sprintf("the response made no progress for %v", time.Duration(s))
}

var _ mem.BufferPool = (*chunk)(nil)
