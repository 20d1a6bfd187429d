package relaybench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/modelfile"
	"github.com/millrace/millrace/services/bench/internal/process"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Hang guards.
const (
	startTimeout = 30 * time.Second
	stopTimeout  = 45 * time.Second // above the programs' own drain timeout
)

const modelName = "bench"

// small is a model that takes no time to load: the sim engine computes nothing of it.
var small = synth.Shape{Name: modelName, Architecture: "llama", Desc: engine.ModelDesc{
	Layers: 1, Hidden: 32, Heads: 1, FFN: 32, Vocab: 32000, Context: 1 << 20,
}}

// side is one way to the model.
type side struct {
	program *process.Program
	conns   []grpc.ClientConnInterface
}

// fleet is the programs, running.
type fleet struct {
	dir               string
	worker, scheduler side
	target            load.Target
	close             []func() error
}

// start starts worker and scheduler and loads the model; a step of the worker takes so long. The caller stops the fleet, also
// after an error.
func start(ctx context.Context, c *Config, step time.Duration) (f *fleet, err error) {
	f = &fleet{}
	if f.dir, err = os.MkdirTemp("", "millrace-bench-*"); err != nil {
		return f, err
	}
	f.close = append(f.close, func() error { return os.RemoveAll(f.dir) })
	if err := f.placeModel(c); err != nil {
		return f, err
	}
	address, err := f.launch(ctx, c, &f.worker, "worker", c.Worker, "--device", device(step), "--models", f.dir)
	if err != nil {
		return f, err
	}
	if err := f.worker.program.Wait(ctx, startTimeout, func(ctx context.Context) error { return f.load(ctx, c) }); err != nil {
		return f, err
	}
	if _, err := f.launch(ctx, c, &f.scheduler, "scheduler", c.Scheduler, "--workers", address); err != nil {
		return f, err
	}
	return f, f.scheduler.program.Wait(ctx, startTimeout, func(ctx context.Context) (err error) {
		f.target, err = load.FindTarget(ctx, f.scheduler.conns[0], modelName)
		return err
	})
}

func (f *fleet) placeModel(c *Config) error {
	path := filepath.Join(f.dir, modelName+".gguf")
	if c.Model == "" {
		return modelfile.Write(path, small, gguf.Q8_0, c.Seed)
	}
	from, err := os.Open(c.Model)
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
func (f *fleet) launch(ctx context.Context, c *Config, s *side, name, path string, args ...string) (address string, err error) {
	if address, err = process.FreeAddress(ctx); err != nil {
		return "", err
	}
	// Stopped by stop, not with ctx: an interrupt ends the calls first.
	if s.program, err = process.Start(context.WithoutCancel(ctx), name, path, append(args, "--listen", address)...); err != nil {
		return "", fmt.Errorf("%w; build it with `make build`, or name it with --%s", err, name)
	}
	f.close = append(f.close, func() error { return s.program.Stop(stopTimeout) })
	for range c.Connections {
		conn, err := rpc.Dial(address, "millrace-bench")
		if err != nil {
			return "", err
		}
		f.close = append(f.close, conn.Close)
		s.conns = append(s.conns, conn)
	}
	return address, nil
}

// load loads the model on the worker, large enough for every stage.
func (f *fleet) load(ctx context.Context, c *Config) error {
	kv, length, sequences := c.kvTokens(), c.context(), uint32(max(c.Burst, c.Streams+probes))
	stream, err := pb.NewModelServiceClient(f.worker.conns[0]).LoadModel(ctx, &pb.LoadModelRequest{
		Model: modelName, KvTokens: &kv, ContextLength: &length, MaxSequences: &sequences,
	})
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
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
