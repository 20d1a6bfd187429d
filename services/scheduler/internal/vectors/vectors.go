package vectors

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/ondemand"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
)

const (
	// maxMessage bounds a message. It is part of the contract.
	maxMessage = 4 << 20
	// streamBytes is the most that a stream holds here: one message in each direction.
	streamBytes = 2 * maxMessage
	// DefaultMaxCalls is a bound that a busy fleet of eight workers does not reach.
	DefaultMaxCalls = 1024
	// DefaultMaxBytes is a bound that a busy fleet of eight workers does not reach, too.
	DefaultMaxBytes = 512 << 20
	// MinMaxBytes is the smallest bound with which a training can be admitted.
	MinMaxBytes = streamBytes
)

// Fleet returns snapshots.
type Fleet interface{ Snapshot() *fleet.Snapshot }

// Config has the bounds of all calls together. Zero fields get the default given.
type Config struct {
	// MaxCalls bounds the calls under way, MaxBytes the bytes of their messages; at least one
	// stream's. DefaultMaxCalls, DefaultMaxBytes.
	MaxCalls, MaxBytes int64
	// FailoverWait is how long a call without a deadline looks for another worker.
	// relay.DefaultFailoverWait.
	FailoverWait time.Duration
	// Grace is how long calls wait for a codebook whose workers were all lost, before they are
	// refused; 0: they are refused at once.
	Grace time.Duration
	// OnDemand is how long a call waits for the load of a codebook that no worker serves; 0: no
	// load is started.
	OnDemand time.Duration
}

// Vectors relays calls. Safe for concurrent use. Close it.
type Vectors struct {
	cfg    Config
	fleet  Fleet
	logger hclog.Logger
	codec  grpc.CallOption

	calls, bytes atomic.Int64 // under way

	indexes indexes

	ctx    context.Context // of loads on demand and follow; ends with Close
	cancel context.CancelFunc
	wait   sync.WaitGroup
	loads  ondemand.Group[target, *demand]
}

// New makes a relay over a fleet. Close it.
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
	v.loads.Ended = v.ended
	v.wait.Go(v.follow)
	return v
}

// follow indexes every snapshot until Close, because the loads must see every report: a number of
// others' trainings would otherwise be as old as the last call.
func (v *Vectors) follow() {
	for {
		select {
		case <-v.index().snapshot.Next:
		case <-v.ctx.Done():
			return
		}
	}
}

// index returns the index of the newest snapshot.
func (v *Vectors) index() *index { return v.indexes.of(v.fleet) }

// Close stops following loads on demand; their workers finish them.
func (v *Vectors) Close() {
	v.cancel()
	v.wait.Wait()
	v.loads.Close()
}

// UnderWayOn returns how many calls run on a member: those that encode, decode or train.
func (v *Vectors) UnderWayOn(m *fleet.Member) int64 { return v.indexes.underWay(m) }

// UnderWay returns the calls under way and the bytes that they are counted with.
func (v *Vectors) UnderWay() (calls, bytes int64) { return v.calls.Load(), v.bytes.Load() }

// admit counts a call and its bytes until release is called. The error is a status.
func (v *Vectors) admit(bytes int64) (release func(), err error) {
	if !addUpTo(&v.calls, 1, v.cfg.MaxCalls) {
		return nil, tooManyCalls(v.cfg.MaxCalls)
	}
	if !addUpTo(&v.bytes, bytes, v.cfg.MaxBytes) {
		v.calls.Add(-1)
		return nil, tooManyBytes(bytes, v.bytes.Load(), v.cfg.MaxBytes)
	}
	return func() {
		v.bytes.Add(-bytes)
		v.calls.Add(-1)
	}, nil
}

// addUpTo adds n to sum unless it would exceed limit.
func addUpTo(sum *atomic.Int64, n, limit int64) bool {
	for {
		old := sum.Load()
		if old+n > limit {
			return false
		}
		if sum.CompareAndSwap(old, old+n) {
			return true
		}
	}
}

// receive receives a message from a caller's stream; the caller of receive must free it. The error
// is a status if the message is too large.
func receive(stream grpc.ServerStream, f *rpc.Frame) error {
	if err := stream.RecvMsg(f); err != nil {
		return err
	}
	rpc.ReleaseReceived(stream.Context())
	if n := f.Data.Len(); n > maxMessage {
		f.Free()
		return tooLarge(n, maxMessage)
	}
	return nil
}

// reach returns a context for a call to a worker on behalf of ctx. It also ends when the link is
// lost, with the cause of that.
func reach(ctx context.Context, link *fleet.Link) (up context.Context, cancel context.CancelCauseFunc) {
	up, end := context.WithCancelCause(relay.Outgoing(ctx))
	lost := link.Lost()
	stop := context.AfterFunc(lost, func() { end(context.Cause(lost)) })
	return up, func(cause error) {
		stop()
		end(cause)
	}
}
