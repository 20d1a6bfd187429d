package vectors

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
)

const (
	// maxMessage bounds a message of vectors: the contract's number.
	maxMessage = 4 << 20
	// streamBytes is what a stream holds here at most: a message on its way up, and one on its way down.
	streamBytes = 2 * maxMessage
	// DefaultMaxCalls is a bound that a busy fleet of eight workers does not reach.
	DefaultMaxCalls = 1024
	// DefaultMaxBytes is another one.
	DefaultMaxBytes = 512 << 20
	// MinMaxBytes is the least bound with which every call can be taken.
	MinMaxBytes = streamBytes
)

// Fleet is where snapshots come from.
type Fleet interface{ Snapshot() *fleet.Snapshot }

// Config bounds what is under way. Zero fields take the default given.
type Config struct {
	// MaxCalls is how many calls are under way at once, MaxBytes how many bytes of messages these hold; at least one stream's.
	// DefaultMaxCalls, DefaultMaxBytes.
	MaxCalls, MaxBytes int64
	// FailoverWait is how long a call without a deadline looks for another worker. relay.DefaultFailoverWait.
	FailoverWait time.Duration
	// Grace is how long a codebook may be without a worker that is reached before calls for it are refused; 0: they are at once.
	Grace time.Duration
	// OnDemand is how long a call waits for the load of a codebook that no worker serves; 0: it begins none.
	OnDemand time.Duration
}

// Vectors carries calls. Safe for concurrent use. Close it.
type Vectors struct {
	cfg    Config
	fleet  Fleet
	logger hclog.Logger
	codec  grpc.CallOption

	calls, bytes atomic.Int64 // under way

	ctx     context.Context // of loads on demand; ends with Close
	cancel  context.CancelFunc
	wait    sync.WaitGroup
	flights flights
}

// New makes the carrier over a fleet.
func New(f Fleet, cfg Config, logger hclog.Logger) *Vectors {
	if cfg.MaxCalls <= 0 {
		cfg.MaxCalls = DefaultMaxCalls
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	if cfg.FailoverWait <= 0 {
		cfg.FailoverWait = relay.DefaultFailoverWait
	}
	cfg.MaxBytes = max(cfg.MaxBytes, streamBytes)
	v := &Vectors{cfg: cfg, fleet: f, logger: logger.Named("vectors"), codec: grpc.ForceCodecV2(rpc.FrameCodec())}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	return v
}

// Close lets go of loads on demand, which their workers finish.
func (v *Vectors) Close() {
	v.cancel()
	v.wait.Wait()
}

// UnderWay are the calls under way, and the bytes that they are counted with.
func (v *Vectors) UnderWay() (calls, bytes int64) { return v.calls.Load(), v.bytes.Load() }

// admit counts a call that holds so many bytes, until release is called. The error is a status.
func (v *Vectors) admit(bytes int64) (release func(), err error) {
	if !take(&v.calls, 1, v.cfg.MaxCalls) {
		return nil, fault.TooManyVectorCalls(v.cfg.MaxCalls)
	}
	if !take(&v.bytes, bytes, v.cfg.MaxBytes) {
		v.calls.Add(-1)
		return nil, fault.TooManyVectorBytes(bytes, v.bytes.Load(), v.cfg.MaxBytes)
	}
	return func() {
		v.bytes.Add(-bytes)
		v.calls.Add(-1)
	}, nil
}

// take adds n unless the sum would pass most.
func take(sum *atomic.Int64, n, most int64) bool {
	for {
		now := sum.Load()
		if now+n > most {
			return false
		}
		if sum.CompareAndSwap(now, now+n) {
			return true
		}
	}
}

// receive takes a message off a caller's stream; it is the caller's to free. A status if it is too large.
func receive(stream grpc.ServerStream, f *rpc.Frame) error {
	if err := stream.RecvMsg(f); err != nil {
		return err
	}
	rpc.Received(stream.Context())
	if n := f.Data.Len(); n > maxMessage {
		f.Free()
		return fault.TooLarge(n, maxMessage)
	}
	return nil
}

// reach is a context for a call to a worker on behalf of ctx's: it ends when the link is lost, too, with its cause.
func reach(ctx context.Context, link *fleet.Link) (up context.Context, cancel context.CancelCauseFunc) {
	up, end := context.WithCancelCause(relay.Outgoing(ctx))
	lost := link.Lost()
	stop := context.AfterFunc(lost, func() { end(context.Cause(lost)) })
	return up, func(cause error) {
		stop()
		end(cause)
	}
}
