package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/modelfile"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Time limits. A program that exceeds one hangs.
const (
	startTimeout = 60 * time.Second
	stopTimeout  = 45 * time.Second // above the programs' own drain timeout
)

// Every worker of a fleet has the model FleetModel loaded, whose vocabulary has FleetVocabulary
// token ids.
const (
	FleetModel      = "bench"
	FleetVocabulary = modelfile.TinyVocabulary
)

// FleetConfig says which programs a fleet runs, and with which options.
type FleetConfig struct {
	Scheduler, Worker string // paths of the programs
	Workers           int
	Device            string   // of every worker: sim, with options
	KVTokens          uint64   // of a worker's cache
	Context           uint32   // longest sequence in tokens
	Sequences         uint32   // running at once
	WorkerFlags       []string // further flags of every worker
	SchedulerFlags    []string // further flags of every scheduler
}

// Server is a running program with a connection to it.
type Server struct {
	*Program
	Address string
	Conn    *grpc.ClientConn
}

// Fleet is workers on the sim engine and schedulers over them, all on loopback. Its methods must be
// called by one goroutine.
type Fleet struct {
	Workers    []*Server // in the order of their start
	Schedulers []*Server
	cfg        FleetConfig
	dir        string // of the model file
}

// maxStarting bounds how many programs start at once, because more would compete for the
// processors.
const maxStarting = 8

// StartFleet starts the workers and loads the model on each. The caller must stop the fleet, also
// after an error.
func StartFleet(ctx context.Context, c FleetConfig) (f *Fleet, err error) {
	f = &Fleet{cfg: c, Workers: make([]*Server, c.Workers)}
	if f.dir, err = os.MkdirTemp("", "millrace-bench-*"); err != nil {
		return f, err
	}
	path := filepath.Join(f.dir, FleetModel+".gguf")
	if err := modelfile.Write(path, modelfile.Tiny(FleetModel), synth.Only(gguf.Q8_0), 1); err != nil {
		return f, err
	}
	errs := make([]error, c.Workers)
	starting := make(chan struct{}, maxStarting)
	var all sync.WaitGroup
	for i := range f.Workers {
		starting <- struct{}{}
		all.Go(func() {
			f.Workers[i], errs[i] = f.worker(ctx, i)
			<-starting
		})
	}
	all.Wait()
	return f, errors.Join(errs...)
}

// worker starts worker i and loads the model.
func (f *Fleet) worker(ctx context.Context, i int) (*Server, error) {
	flags := append([]string{
		"--device", f.cfg.Device, "--models", f.dir, "--worker-id", fmt.Sprintf("sim-%d", i),
	}, f.cfg.WorkerFlags...)
	s, err := startServer(ctx, fmt.Sprintf("worker %d", i), f.cfg.Worker, flags, func(ctx context.Context, conn *grpc.ClientConn) error {
		return load.LoadModel(ctx, conn, &pb.LoadModelRequest{
			Model: FleetModel, KvTokens: &f.cfg.KVTokens, ContextLength: &f.cfg.Context, MaxSequences: &f.cfg.Sequences,
		})
	})
	if err != nil {
		return nil, fmt.Errorf("%w; build it with `make build`, or name it with --worker", err)
	}
	return s, nil
}

// Schedule starts a scheduler over all workers and returns when it serves the model.
func (f *Fleet) Schedule(ctx context.Context) (*Server, error) {
	addresses := make([]string, len(f.Workers))
	for i, w := range f.Workers {
		addresses[i] = w.Address
	}
	flags := append([]string{"--workers", strings.Join(addresses, ",")}, f.cfg.SchedulerFlags...)
	s, err := startServer(ctx, "scheduler", f.cfg.Scheduler, flags, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := load.FindTarget(ctx, conn, FleetModel)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w; build it with `make build`, or name it with --scheduler", err)
	}
	f.Schedulers = append(f.Schedulers, s)
	return s, nil
}

// startAttempts bounds how often startServer starts a program, each time at another free address:
// another process may bind the port before the program does.
const startAttempts = 3

// startServer starts a program at a free address and waits until ready returns nil.
func startServer(ctx context.Context, name, path string, flags []string, ready func(context.Context, *grpc.ClientConn) error) (*Server, error) {
	for attempt := 1; ; attempt++ {
		s, err := launch(ctx, name, path, flags)
		if err != nil {
			return nil, err
		}
		if err = s.Wait(ctx, startTimeout, func(ctx context.Context) error { return ready(ctx, s.Conn) }); err == nil {
			return s, nil
		}
		stopErr := s.stop()
		switch {
		case !errors.Is(err, ErrEnded):
			return nil, errors.Join(err, stopErr)
		case attempt == startAttempts:
			return nil, err
		}
	}
}

// launch starts a program at a free address and connects to it.
func launch(ctx context.Context, name, path string, flags []string) (*Server, error) {
	address, err := FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	// The program must outlive ctx: an interrupt ends the calls first, then Stop ends the program.
	p, err := Start(context.WithoutCancel(ctx), name, path, append(flags, "--listen", address)...)
	if err != nil {
		return nil, err
	}
	conn, err := rpc.Dial(address, "millrace-bench")
	if err != nil {
		return nil, errors.Join(err, p.Stop(stopTimeout))
	}
	return &Server{Program: p, Address: address, Conn: conn}, nil
}

// Stop ends the schedulers and then the workers.
func (f *Fleet) Stop() error {
	err := errors.Join(stopAll(f.Schedulers), stopAll(f.Workers), os.RemoveAll(f.dir))
	f.Schedulers, f.Workers = nil, nil
	return err
}

func stopAll(servers []*Server) error {
	errs := make([]error, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		if s != nil {
			all.Go(func() { errs[i] = s.stop() })
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

func (s *Server) stop() error { return errors.Join(s.Conn.Close(), s.Program.Stop(stopTimeout)) }

// CPUOf returns the sum of the processor time that the servers have used so far.
func CPUOf(servers ...*Server) (sum time.Duration, err error) {
	for _, s := range servers {
		used, err := s.CPU()
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// FleetRequest returns a greedy request for output tokens after ids, whose answer has no text.
func FleetRequest(ids []uint32, output int) *pb.GenerateRequest {
	yes, limit := true, int32(output)
	return &pb.GenerateRequest{
		Model: FleetModel, Input: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}},
		Stopping: &pb.Stopping{MaxTokens: &limit, IgnoreEos: &yes}, Response: &pb.ResponseOptions{TokenIdsOnly: &yes},
		Sampling: &pb.Sampling{Temperature: new(float32)},
	}
}
