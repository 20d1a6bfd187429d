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
)

// Sentinels.
var (
	// ErrStale: a worker's messages stopped while its connection stayed open.
	ErrStale = errors.New("worker sends nothing")
	// ErrGap: a worker's messages are not the ones that its last ones announced.
	ErrGap = errors.New("gap in the worker's messages")
	// ErrName: a worker's name has no address.
	ErrName = errors.New("worker name not resolved")
	// ErrStalled: a step of a worker runs beyond the bound that the worker itself declares.
	ErrStalled = errors.New("a step of the worker hangs")
	// ErrDigest: a worker contradicts itself about which model it computes with.
	ErrDigest = errors.New("worker not believed")
	// errEnded: a worker has ended its health stream and says no more.
	errEnded = errors.New("worker ended its health stream")
	// ErrTarget: a worker's address cannot be understood.
	ErrTarget = errors.New("not a worker address")
)

// Config is what a Fleet needs. Zero durations take the default given.
type Config struct {
	// Workers are "host:port", "unix:PATH", or "dns:///name:port" for every address that a name has.
	Workers []string
	// Dial makes a connection that connects on first use. Required.
	Dial func(address string) (*grpc.ClientConn, error)
	// Lookup resolves a host name; nil is the system's resolver.
	Lookup func(ctx context.Context, host string) ([]string, error)
	// Interval between heartbeats that workers are asked for. 250 ms.
	Interval time.Duration
	// Stale is how long a worker may be silent, in its health and on its Link, before it counts as lost, and at most a
	// seventh more. One that declares a longer bound for its own steps may be silent so long, and at most ten sevenths of
	// Stale. 1600 ms.
	Stale time.Duration
	// StreamsPerConn is how many calls a connection to a worker carries before another one is opened beside it: far below the
	// streams that workers take on one, and few enough that no connection's one reader and writer hold up all calls. 1000.
	StreamsPerConn int64
	// Grace bounds the time after the start in which workers that have not answered leave the fleet unknown. 3 s.
	Grace time.Duration
	// Resolve is the time between look-ups of a dns name, a fifth of it for a while after it has lost an address. 5 s.
	Resolve time.Duration
	// Backoff is the first pause before a worker is dialled again; it doubles up to BackoffMax. 20 ms, 500 ms.
	Backoff, BackoffMax time.Duration
}

// withDefaults fills what is zero.
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

// backoff is the pause before attempt n, from 0: doubling, and spread by a fifth so that schedulers do not march in
// step.
func (c Config) backoff(n int) time.Duration {
	d := min(c.Backoff<<min(n, 16), c.BackoffMax)
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// CheckTarget refuses what is no worker address, with ErrTarget.
func CheckTarget(target string) error {
	_, _, err := parseTarget(target)
	return err
}

// parseTarget splits "dns:///host:port" into host and port; other targets have no host: they are dialled as they are.
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
