package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Names of the targets.
const (
	workerName    = "worker"
	nginxName     = "nginx"
	schedulerName = "scheduler"
)

// endpoint is a program that streams are sent to: the worker, or a proxy before it.
type endpoint struct {
	name    string
	program *proc.Program
	conns   []grpc.ClientConnInterface
}

// stage is the running programs of one rate.
type stage struct {
	connections int
	maker       load.Maker
	fleet       *proc.Fleet
	endpoints   []*endpoint // the worker first, the scheduler last
	closers     []func() error
}

// startWorker starts the worker. The caller must stop the stage, also after an error.
func (c *Config) startWorker(ctx context.Context, rate float64, step time.Duration) (*stage, error) {
	s := &stage{connections: c.Connections, maker: load.Maker{
		Model: proc.FleetModel, Vocabulary: proc.FleetVocabulary, IDsOnly: true, Seed: c.Seed,
	}}
	var err error
	s.fleet, err = proc.StartFleet(ctx, c.fleet(rate, step))
	s.closers = append(s.closers, s.fleet.Stop)
	if err != nil {
		return s, err
	}
	err = s.connect(workerName, s.fleet.Workers[0].Program, s.fleet.Workers[0].Address)
	return s, err
}

// start starts the worker, nginx if it is configured, and the scheduler. The caller must stop the
// stage, also after an error.
func (c *Config) start(ctx context.Context, rate float64, step time.Duration) (*stage, error) {
	s, err := c.startWorker(ctx, rate, step)
	if err != nil {
		return s, err
	}
	if c.Nginx != "" {
		program, address, err := startNginx(ctx, c.Nginx, s.fleet.Workers[0].Address)
		if err != nil {
			return s, err
		}
		s.closers = append(s.closers, program.stop)
		if err := s.connect(nginxName, program.Program, address); err != nil {
			return s, err
		}
		conn := s.endpoints[1].conns[0]
		if err := program.Wait(ctx, startTimeout, func(ctx context.Context) error {
			_, err := load.FindTarget(ctx, conn, proc.FleetModel)
			return err
		}); err != nil {
			return s, err
		}
	}
	scheduler, err := s.fleet.Schedule(ctx)
	if err != nil {
		return s, err
	}
	err = s.connect(schedulerName, scheduler.Program, scheduler.Address)
	return s, err
}

func (s *stage) connect(name string, program *proc.Program, address string) error {
	conns, hangUp, err := load.Dial(address, s.connections)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() error { hangUp(); return nil })
	s.endpoints = append(s.endpoints, &endpoint{name: name, program: program, conns: conns})
	return nil
}

// stop closes the connections and ends the programs, in reverse order.
func (s *stage) stop() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// warmUp is how many samples of each endpoint are dropped before TTFT counts.
const warmUp = 20

// idle measures the TTFT of single calls, one at a time, alternating among the endpoints.
func (s *stage) idle(ctx context.Context, pairs, prompt int) ([]stats.Histogram, error) {
	times := make([]stats.Histogram, len(s.endpoints))
	for i := range warmUp + pairs {
		for k := range s.endpoints {
			e := (i + k) % len(s.endpoints) // so that no endpoint is always the first
			took, err := s.firstToken(ctx, s.endpoints[e], uint64(i), prompt)
			if err != nil {
				return nil, err
			}
			if i >= warmUp {
				times[e].Add(took)
			}
		}
	}
	return times, nil
}

// firstToken measures the TTFT of call i.
func (s *stage) firstToken(ctx context.Context, e *endpoint, i uint64, prompt int) (time.Duration, error) {
	request := s.maker.Request(i, load.Size{Prompt: prompt, Output: 1})
	out := load.Call(ctx, e.conns[i%uint64(len(e.conns))], request, time.Now(), 0, load.Observer{}, nil)
	if out.Tokens != 1 {
		return 0, fmt.Errorf("%w: first token %d through %s: %d tokens, %v %s", ErrFailed, i, e.name, out.Tokens, out.Code, out.Message)
	}
	return out.FirstToken, nil
}

// streams runs n streams at once.
func (s *stage) streams(ctx context.Context, e *endpoint, n int, size load.Size) (load.Report, error) {
	recorder := load.NewRecorder(nil)
	g := load.Generator{Conns: e.conns, Maker: s.maker, To: recorder}
	g.Closed(ctx, n, size, 0, uint64(n))
	return recorder.Report()
}

// sample is one endpoint in one round.
type sample struct {
	streams     load.Report
	ttft        stats.Histogram // of the probes that ran at the same time
	cpu, worker time.Duration   // processor time of the endpoint, and of the worker
}

// measure takes the processor time while n streams run, and the TTFT of probes at the same time.
func (s *stage) measure(ctx context.Context, e *endpoint, n int, size load.Size) (sample, error) {
	begin, err := s.processorTime(e)
	if err != nil {
		return sample{}, err
	}
	done := make(chan struct{})
	var work sync.WaitGroup
	var next atomic.Uint64
	times, errs := make([]stats.Histogram, probes), make([]error, probes)
	for p := range probes {
		work.Go(func() { errs[p] = s.probe(ctx, e, size.Prompt, &next, &times[p], done) })
	}
	report, err := s.streams(ctx, e, n, size)
	close(done)
	work.Wait()
	end, cpuErr := s.processorTime(e)
	if err := errors.Join(err, cpuErr, errors.Join(errs...)); err != nil {
		return sample{}, err
	}
	result := sample{streams: report, cpu: end.endpoint - begin.endpoint, worker: end.worker - begin.worker}
	for p := range times {
		result.ttft.Merge(&times[p])
	}
	return result, nil
}

// probe measures TTFT until done is closed.
func (s *stage) probe(ctx context.Context, e *endpoint, prompt int, next *atomic.Uint64, times *stats.Histogram, done <-chan struct{}) error {
	for {
		select {
		case <-done:
			return nil
		default:
		}
		took, err := s.firstToken(ctx, e, next.Add(1), prompt)
		if err != nil {
			return err
		}
		times.Add(took)
	}
}

type processorTime struct{ endpoint, worker time.Duration }

func (s *stage) processorTime(e *endpoint) (t processorTime, err error) {
	if t.endpoint, err = e.program.CPU(); err != nil {
		return t, err
	}
	t.worker, err = s.endpoints[0].program.CPU()
	return t, err
}
