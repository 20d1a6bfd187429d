package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// Sentinels, which say why a worker is not used.
var (
	// ErrStale: a worker's messages stopped while its connection stayed open.
	ErrStale = errors.New("worker sends nothing")
	// ErrGap: a message of a worker is missing.
	ErrGap = errors.New("gap in the worker's messages")
	// ErrName: a worker's name has no address.
	ErrName = errors.New("worker name not resolved")
	// ErrStalled: a step of a worker runs beyond the bound that the worker itself declares.
	ErrStalled = errors.New("a step of the worker hangs")
	// ErrDigest: a worker contradicts itself about which model it computes with.
	ErrDigest = errors.New("worker not believed")
	// errEnded: a worker has ended its health stream with OK.
	errEnded = errors.New("worker ended its health stream")
	// ErrTarget: a worker's address cannot be understood.
	ErrTarget = errors.New("not a worker address")
)

// Config configures a Fleet. A zero duration means the default that its comment ends with.
type Config struct {
	// Workers are "host:port", "unix:PATH", or "dns:///name:port" for every address that a name has.
	Workers []string
	// Dial makes a connection that connects on first use. Required.
	Dial func(address string) (*grpc.ClientConn, error)
	// Lookup resolves a host name; nil is the system's resolver.
	Lookup func(ctx context.Context, host string) ([]string, error)
	// Urgent reports whether a delta changes something that other packages decide by, so that a
	// snapshot must follow at once; nil: nothing but the models, files, checks and state that this
	// package compares.
	Urgent func(before *pb.WorkerReport, d *pb.WorkerDelta) bool
	// Interval is the time between heartbeats, which the fleet requests of workers. 250 ms.
	Interval time.Duration
	// Stale is how long a worker may be silent, in its health stream and on its Link, before it
	// counts as lost; it may take a seventh longer to detect. A worker that declares a longer bound
	// for its steps may be silent for that bound, but at most ten sevenths of Stale. 1600 ms.
	Stale time.Duration
	// StreamsPerConn is how many calls a connection to a worker carries before another one is
	// opened. It is far below the limit that workers set, and low enough that the one reader and
	// the one writer of a connection do not delay all calls. 1000.
	StreamsPerConn int64
	// Grace is how long after the start the fleet counts as unknown while workers have not
	// answered. 3 s.
	Grace time.Duration
	// Resolve is the time between look-ups of a DNS name. For a minute after the name has lost an
	// address, it is a fifth of that. 5 s.
	Resolve time.Duration
	// Backoff is the first pause before a worker is dialled again. It doubles up to BackoffMax. 20
	// ms, 500 ms.
	Backoff, BackoffMax time.Duration
}

// withDefaults replaces zero values by defaults.
func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Interval, 250 * time.Millisecond}, {&c.Stale, 1600 * time.Millisecond}, {&c.Grace, 3 * time.Second},
		{&c.Resolve, 5 * time.Second}, {&c.Backoff, 20 * time.Millisecond}, {&c.BackoffMax, 500 * time.Millisecond},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.StreamsPerConn == 0 {
		c.StreamsPerConn = 1000
	}
	if c.Lookup == nil {
		c.Lookup = net.DefaultResolver.LookupHost
	}
	return c
}

// backoff returns the pause before attempt n, from 0: exponential, with a jitter of a fifth so that
// schedulers do not dial in step.
func (c Config) backoff(n int) time.Duration {
	d := min(c.Backoff<<min(n, 16), c.BackoffMax)
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// CheckTarget returns ErrTarget if target is not a worker address.
func CheckTarget(target string) error {
	_, _, err := parseTarget(target)
	return err
}

// parseTarget splits "dns:///host:port" into host and port. Other targets are dialled unchanged,
// and have no host here.
func parseTarget(target string) (host, port string, err error) {
	name, dynamic := strings.CutPrefix(target, "dns:///")
	if !dynamic {
		if path, ok := strings.CutPrefix(target, "unix:"); ok && path != "" {
			return "", "", nil
		}
	}
	host, port, err = net.SplitHostPort(name)
	if err != nil || port == "" || host == "" || strings.Contains(host, "/") {
		return "", "", fmt.Errorf("%w: %q: want host:port, dns:///name:port or unix:PATH", ErrTarget, target)
	}
	if !dynamic {
		return "", "", nil
	}
	return host, port, nil
}
