package relaybench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/modelfile"
	"github.com/millrace/millrace/services/bench/internal/process"
)

// Hang guards.
const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 45 * time.Second // above the programs' own drain timeout
)

const modelName = "bench"

// Names of ways: to the worker itself, and through what stands before it.
const (
	direct        = "worker"
	nginxName     = "nginx"
	schedulerName = "scheduler"
)

// rig is what is to be started.
type rig struct {
	Programs
	workers            int
	models             int               // that each of them loads, alike but for their names; 0: one
	callers            int               // connections of this client to the scheduler, if not as many as to every program
	callerOptions      []grpc.DialOption // of these
	device             string
	flags              []string // of every worker, besides
	schedulerFlags     []string // besides
	nginx              bool     // whether beside the scheduler
	metrics            bool     // whether workers serve their measures
	kvTokens           uint64
	context, sequences uint32
}

// way is one way to the model.
type way struct {
	name    string
	program *process.Program
	conns   []grpc.ClientConnInterface
	metrics string // URL of a worker's measures, if it serves any
}

// fleet is the programs, running.
type fleet struct {
	rig
	dir       string
	direct    []way // to each worker
	scheduler way
	nginxWay  *way // nil: without
	target    load.Target
	close     []func() error
}

// start starts workers and what stands before them, and loads the model. The caller stops the fleet, also after an error.
func (r rig) start(ctx context.Context) (f *fleet, err error) {
	f = &fleet{rig: r}
	if f.dir, err = os.MkdirTemp("", "millrace-bench-*"); err != nil {
		return f, err
	}
	f.close = append(f.close, func() error { return os.RemoveAll(f.dir) })
	if err := f.placeModels(); err != nil {
		return f, err
	}
	addresses := make([]string, r.workers)
	f.direct = make([]way, r.workers)
	for i := range f.direct {
		args := append([]string{"--device", r.device, "--models", f.dir}, r.flags...)
		if r.metrics {
			address, err := process.FreeAddress(ctx)
			if err != nil {
				return f, err
			}
			args = append(args, "--metrics-listen", address)
			f.direct[i].metrics = "http://" + address + "/metrics"
		}
		addresses[i], err = f.launch(ctx, &f.direct[i], direct, r.Worker, args...)
		if err != nil {
			return f, err
		}
	}
	for i := range f.direct {
		if err := f.direct[i].program.Wait(ctx, startTimeout, func(ctx context.Context) error { return f.load(ctx, i) }); err != nil {
			return f, err
		}
	}
	args := append([]string{"--workers", strings.Join(addresses, ",")}, r.schedulerFlags...)
	if _, err := f.launch(ctx, &f.scheduler, schedulerName, r.Scheduler, args...); err != nil {
		return f, err
	}
	if r.nginx {
		f.nginxWay = &way{}
		if err := f.launchNginx(ctx, addresses); err != nil {
			return f, err
		}
	}
	return f, f.scheduler.program.Wait(ctx, startTimeout, func(ctx context.Context) (err error) {
		f.target, err = load.FindTarget(ctx, f.scheduler.conns[0], modelName)
		return err
	})
}

// ways are the ways of the fleet, those that are to be compared.
func (f *fleet) ways() []*way {
	all := []*way{&f.direct[0]}
	if f.nginxWay != nil {
		all = append(all, f.nginxWay)
	}
	return append(all, &f.scheduler)
}

// names are those of the models that every worker loads.
func (r *rig) names() []string {
	names := []string{modelName}
	for i := 1; i < r.models; i++ {
		names = append(names, fmt.Sprintf("%s-%d", modelName, i+1))
	}
	return names
}

func (f *fleet) placeModels() error {
	for _, name := range f.names() {
		if err := f.placeModel(name); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) placeModel(name string) error {
	path := filepath.Join(f.dir, name+".gguf")
	if f.Model == "" {
		return modelfile.Write(path, modelfile.Tiny(name), synth.Only(gguf.Q8_0), f.Seed)
	}
	from, err := os.Open(f.Model)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // opened for reading only
	to, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// launch starts a program on a free address and connects to it.
func (f *fleet) launch(ctx context.Context, w *way, name, path string, args ...string) (address string, err error) {
	if address, err = process.FreeAddress(ctx); err != nil {
		return "", err
	}
	// Stopped by stop, not with ctx: an interrupt ends the calls first.
	w.program, err = process.Start(context.WithoutCancel(ctx), name, path, append(args, "--listen", address)...)
	if err != nil {
		return "", fmt.Errorf("%w; build it with `make build`, or name it with --%s", err, name)
	}
	return address, f.connect(w, name, address)
}

func (f *fleet) launchNginx(ctx context.Context, workers []string) error {
	path, err := f.findNginx()
	if err != nil {
		return err
	}
	address, err := process.FreeAddress(ctx)
	if err != nil {
		return err
	}
	if f.nginxWay.program, err = startNginx(context.WithoutCancel(ctx), path, f.dir, address, workers); err != nil {
		return err
	}
	if err := f.connect(f.nginxWay, nginxName, address); err != nil {
		return err
	}
	return f.nginxWay.program.Wait(ctx, startTimeout, func(ctx context.Context) error {
		_, err := load.FindTarget(ctx, f.nginxWay.conns[0], modelName)
		return err
	})
}

// connect makes the connections of a way whose program was started.
func (f *fleet) connect(w *way, name, address string) error {
	w.name = name
	f.close = append(f.close, func() error { return w.program.Stop(stopTimeout) })
	n, options := f.Connections, []grpc.DialOption(nil)
	if name == schedulerName {
		options = f.callerOptions
		if f.callers > 0 {
			n = f.callers
		}
	}
	conns, hangUp, err := load.Dial(address, n, options...)
	if err != nil {
		return err
	}
	f.close = append(f.close, func() error { hangUp(); return nil })
	w.conns = conns
	return nil
}

// load loads the models on a worker, large enough for every stage.
func (f *fleet) load(ctx context.Context, worker int) error {
	for _, name := range f.names() {
		if err := load.LoadModel(ctx, f.direct[worker].conns[0], &pb.LoadModelRequest{
			Model: name, KvTokens: &f.kvTokens, ContextLength: &f.context, MaxSequences: &f.sequences,
		}); err != nil {
			return err
		}
	}
	return nil
}

// stop ends what was started, in reverse.
func (f *fleet) stop() error {
	var errs []error
	for i := len(f.close) - 1; i >= 0; i-- {
		errs = append(errs, f.close[i]())
	}
	f.close = nil
	return errors.Join(errs...)
}
