package restart

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/simfleet"
)

// ErrFailed says that a call failed otherwise than by a scheduler that has just started, or that a worker had not cached what it
// was given.
var ErrFailed = errors.New("the fleet did not hold what was to be asked for")

// bar is when a restarted scheduler must route rightly.
const bar = 500 * time.Millisecond

// device computes fast enough that calls do not pile up.
const device = "sim:step=200us,prefill=1us,decode=0s"

// listenTimeout is a hang guard.
const listenTimeout = 2 * time.Minute

// Run measures.
func Run(ctx context.Context, c Config, tell func(format string, args ...any)) (*Report, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	report := &Report{Machine: machine.Look(), Workers: c.Workers, Prefix: c.Prefix, Every: ms(c.Every)}
	busy := machine.WatchBusy()
	for i := range c.Repeat {
		tell("restart %d of %d", i+1, c.Repeat)
		round, err := c.round(ctx, c.Seed+uint64(i)<<32)
		if err != nil {
			return nil, err
		}
		report.Rounds = append(report.Rounds, *round)
	}
	report.Busy = busy.Share()
	report.sum()
	return report, nil
}

// round is one restart, over fresh workers.
func (c *Config) round(ctx context.Context, seed uint64) (_ *Round, err error) {
	fleet, err := simfleet.Start(ctx, simfleet.Config{
		Scheduler: c.Scheduler, Worker: c.Worker, Workers: c.Workers, Device: device, KVTokens: c.cacheTokens(),
		Context: uint32(c.Prefix + 2*own), Sequences: 16,
	})
	defer func() { err = errors.Join(err, fleet.Stop()) }()
	if err != nil {
		return nil, err
	}
	prompts := c.prompts(seed)
	if err := c.fill(ctx, fleet, prompts); err != nil {
		return nil, err
	}
	before, err := fleet.Schedule(ctx, "", c.Workers)
	if err != nil {
		return nil, err
	}
	address := before.Address
	if err := fleet.Kill(); err != nil {
		return nil, err
	}
	began := time.Now()
	after, err := fleet.Launch(ctx, address, c.Workers)
	if err != nil {
		return nil, err
	}
	if err := listening(ctx, after); err != nil {
		return nil, err
	}
	attempts, err := c.ask(ctx, after, prompts)
	if err != nil {
		return nil, err
	}
	listened := attempts.began.Sub(began)
	round := sum(listened, attempts.all)
	return &round, nil
}

// prompts are one for each call, which no other call begins like; prompt i is the one of worker i % Workers.
func (c *Config) prompts(seed uint64) [][]uint32 {
	random := rand.New(rand.NewPCG(seed, 0))
	all := make([][]uint32, c.calls())
	for i := range all {
		all[i] = make([]uint32, c.Prefix+own)
		for j := range all[i] {
			all[i][j] = random.Uint32N(simfleet.Vocabulary)
		}
	}
	return all
}

// fill has each worker compute its prefixes, asked directly.
func (c *Config) fill(ctx context.Context, fleet *simfleet.Fleet, prompts [][]uint32) error {
	errs := make([]error, len(fleet.Workers))
	var all sync.WaitGroup
	for w, worker := range fleet.Workers {
		all.Go(func() {
			for i := w; i < len(prompts) && errs[w] == nil; i += len(fleet.Workers) {
				out := load.Call(ctx, worker.Conn, simfleet.Request(prompts[i], 1), time.Now(), 0, load.Observer{}, nil)
				if out.Code != codes.OK || out.Cached != 0 {
					errs[w] = fmt.Errorf("%w: prefix %d: %v %s, %d tokens cached", ErrFailed, i, out.Code, out.Message, out.Cached)
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// listening waits until the scheduler takes connections.
func listening(ctx context.Context, p *simfleet.Program) error {
	deadline := time.Now().Add(listenTimeout)
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "tcp", p.Address)
		if err == nil {
			return conn.Close()
		}
		if err := errors.Join(p.Check(), ctx.Err()); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the scheduler does not listen after %v: %w", listenTimeout, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// asked is what calls gave from a moment on.
type asked struct {
	began time.Time
	all   []attempt
}

// ask makes the calls, one each interval, whether earlier ones have ended or not, in an order that visits the workers at random.
func (c *Config) ask(ctx context.Context, p *simfleet.Program, prompts [][]uint32) (*asked, error) {
	a := &asked{began: time.Now(), all: make([]attempt, len(prompts))}
	order := rand.New(rand.NewPCG(c.Seed, 1)).Perm(len(prompts))
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	errs := make([]error, len(prompts))
	var running sync.WaitGroup
	defer running.Wait()
	for i, at := range order {
		sent := time.Now()
		running.Go(func() {
			out := load.Call(ctx, p.Conn, simfleet.Request(prompts[at], 1), sent, 0, load.Observer{}, nil)
			a.all[i].sent = sent.Sub(a.began)
			a.all[i].ending, errs[i] = c.judge(&out)
		})
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	running.Wait()
	return a, errors.Join(errs...)
}

// judge says how a call ended; an error is one that has nothing to do with the restart.
func (c *Config) judge(out *load.Outcome) (ending, error) {
	switch {
	case out.Code == codes.OK && out.Cached >= c.Prefix:
		return right, nil
	case out.Code == codes.OK:
		return wrong, nil
	case out.Code == codes.Unavailable:
		return refused, nil
	}
	return refused, fmt.Errorf("%w: %v %s", ErrFailed, out.Code, out.Message)
}
