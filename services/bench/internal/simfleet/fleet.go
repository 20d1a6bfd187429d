package simfleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	"github.com/millrace/millrace/services/bench/internal/modelfile"
	"github.com/millrace/millrace/services/bench/internal/process"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Hang guards.
const (
	startTimeout = 60 * time.Second
	stopTimeout  = 45 * time.Second // above the programs' own drain timeout
)

// bounded has the shell become a program that gets so many KiB of memory of its own, touched or not.
const bounded = `ulimit -d "$1" && shift && exec "$@"`

// Model is the name of the model that every worker has loaded; Vocabulary is the number of its token ids.
const (
	Model      = "bench"
	Vocabulary = modelfile.TinyVocabulary
)

// Config of a fleet.
type Config struct {
	Scheduler, Worker string // paths of the programs
	Workers           int
	Model             string            // file of the model; empty: a small one of random weights, without text
	Device            string            // of every worker: sim with options
	KVTokens          uint64            // of its cache
	Context           uint32            // longest sequence in tokens
	Sequences         uint32            // at once
	Flags             []string          // of every worker, besides
	SchedulerFlags    []string          // of every scheduler, besides
	Memory            uint64            // bytes that each program may ask the system for; more ends it; 0: as many as there are
	Dial              []grpc.DialOption // of the connection to each scheduler, besides
	WorkerDial        []grpc.DialOption // of that to each worker, besides
}

// Program is one program that serves.
type Program struct {
	*process.Program
	Address string
	Conn    *grpc.ClientConn
}

// Fleet is the programs. Its methods are called by one goroutine.
type Fleet struct {
	Workers    []*Program // by the order of their start
	Schedulers []*Program
	cfg        Config
	dir        string // of the model file
}

// atOnce is how many programs start at a time: more would only wait for each other's processor time.
const atOnce = 8

// Start starts the workers; each has the model loaded. The caller stops the fleet, also after an error.
func Start(ctx context.Context, c Config) (f *Fleet, err error) {
	f = &Fleet{cfg: c, Workers: make([]*Program, c.Workers)}
	if f.dir, err = os.MkdirTemp("", "millrace-bench-*"); err != nil {
		return f, err
	}
	if err := f.placeModel(); err != nil {
		return f, err
	}
	errs := make([]error, c.Workers)
	places := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range f.Workers {
		places <- struct{}{}
		all.Go(func() {
			f.Workers[i], errs[i] = f.worker(ctx, i)
			<-places
		})
	}
	all.Wait()
	return f, errors.Join(errs...)
}

// placeModel puts the model's file where workers look for it.
func (f *Fleet) placeModel() error {
	to := filepath.Join(f.dir, Model+".gguf")
	if f.cfg.Model == "" {
		return modelfile.Write(to, modelfile.Tiny(Model), synth.Only(gguf.Q8_0), 1)
	}
	from, err := os.Open(f.cfg.Model)
	if err != nil {
		return fmt.Errorf("--model: %w", err)
	}
	defer func() { _ = from.Close() }() // opened for reading only
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	return errors.Join(err, file.Close())
}

// worker starts worker i and loads the model.
func (f *Fleet) worker(ctx context.Context, i int) (*Program, error) {
	flags := append([]string{
		"--device", f.cfg.Device, "--models", f.dir, "--worker-id", fmt.Sprintf("sim-%d", i), "--log-level", "warn",
	}, f.cfg.Flags...)
	p, err := f.start(ctx, fmt.Sprintf("worker %d", i), f.cfg.Worker, "", flags, f.cfg.WorkerDial, func(ctx context.Context, conn *grpc.ClientConn) error {
		return load(ctx, conn, &f.cfg)
	})
	if err != nil {
		return nil, fmt.Errorf("%w; build it with `make build`, or name it with --worker", err)
	}
	return p, nil
}

// Schedule starts a scheduler over the first n workers, at an address that is free if none is given. It serves when this returns.
func (f *Fleet) Schedule(ctx context.Context, address string, n int) (*Program, error) {
	return f.scheduler(ctx, address, n, serves)
}

// Launch starts a scheduler as Schedule does, and waits for nothing.
func (f *Fleet) Launch(ctx context.Context, address string, n int) (*Program, error) {
	return f.scheduler(ctx, address, n, func(context.Context, *grpc.ClientConn) error { return nil })
}

func (f *Fleet) scheduler(ctx context.Context, address string, n int, ready readiness) (*Program, error) {
	flags := append([]string{"--workers", addresses(f.Workers[:n]), "--log-level", "warn"}, f.cfg.SchedulerFlags...)
	p, err := f.start(ctx, "scheduler", f.cfg.Scheduler, address, flags, f.cfg.Dial, ready)
	if err != nil {
		return nil, fmt.Errorf("%w; build it with `make build`, or name it with --scheduler", err)
	}
	f.Schedulers = append(f.Schedulers, p)
	return p, nil
}

// readiness reports nil once a program is as it is wanted.
type readiness func(ctx context.Context, conn *grpc.ClientConn) error

// tries is how often a program is started at an address that was free a moment ago, before it is taken not to start at all.
const tries = 3

// start starts a program and waits until it is ready; at an address that is free if none is given.
func (f *Fleet) start(ctx context.Context, name, path, address string, flags []string, dial []grpc.DialOption, ready readiness) (p *Program, err error) {
	for try := 1; ; try++ {
		at := address
		if at == "" {
			if at, err = process.FreeAddress(ctx); err != nil {
				return nil, err
			}
		}
		if p, err = f.launch(ctx, name, path, at, flags, dial); err != nil {
			return nil, err
		}
		if err = p.Wait(ctx, startTimeout, func(ctx context.Context) error { return ready(ctx, p.Conn) }); err == nil {
			return p, nil
		}
		ended := errors.Is(err, process.ErrEnded)
		stopErr := p.stop()
		switch {
		case !ended:
			return nil, errors.Join(err, stopErr)
		case address != "" || try == tries:
			return nil, err
		}
	}
}

// launch starts a program and connects to it.
func (f *Fleet) launch(ctx context.Context, name, path, address string, flags []string, dial []grpc.DialOption) (*Program, error) {
	argv := append(append([]string{path}, flags...), "--listen", address)
	if f.cfg.Memory > 0 {
		argv = append([]string{"/bin/sh", "-c", bounded, "sh", strconv.FormatUint(f.cfg.Memory>>10, 10)}, argv...)
	}
	// Stopped by Stop, not with ctx: an interrupt ends the calls first.
	p, err := process.Start(context.WithoutCancel(ctx), name, argv[0], argv[1:]...)
	if err != nil {
		return nil, err
	}
	conn, err := rpc.Dial(address, "millrace-bench", dial...)
	if err != nil {
		return nil, errors.Join(err, p.Stop(stopTimeout))
	}
	return &Program{Program: p, Address: address, Conn: conn}, nil
}

// Retire stops the last scheduler that was started.
func (f *Fleet) Retire() error {
	last := f.Schedulers[len(f.Schedulers)-1]
	f.Schedulers = f.Schedulers[:len(f.Schedulers)-1]
	return last.stop()
}

// Kill kills the last scheduler that was started, and waits until it is gone.
func (f *Fleet) Kill() error {
	last := f.Schedulers[len(f.Schedulers)-1]
	f.Schedulers = f.Schedulers[:len(f.Schedulers)-1]
	return errors.Join(last.Conn.Close(), last.Program.Kill())
}

// Stop ends the schedulers and then the workers.
func (f *Fleet) Stop() error {
	err := errors.Join(stopAll(f.Schedulers), stopAll(f.Workers), os.RemoveAll(f.dir))
	f.Schedulers, f.Workers = nil, nil
	return err
}

func stopAll(programs []*Program) error {
	errs := make([]error, len(programs))
	var all sync.WaitGroup
	for i, p := range programs {
		if p != nil {
			all.Go(func() { errs[i] = p.stop() })
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

func (p *Program) stop() error { return errors.Join(p.Conn.Close(), p.Program.Stop(stopTimeout)) }
