package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// schedulers is how many there are.
const schedulers = 2

// fleet is the programs, running.
type fleet struct {
	model      string
	workers    []*node
	proxies    []*proxy // of the workers
	schedulers []*node
	conns      []*grpc.ClientConn // to the schedulers
	said       tally              // of the schedulers
	close      []func() error
}

// startFleet starts everything and waits until both schedulers see every worker serve the model. The caller stops the fleet,
// also after an error.
func startFleet(ctx context.Context, c *Config) (*fleet, error) {
	f := &fleet{model: c.Model}
	dir, err := os.MkdirTemp("", "millrace-chaos-*")
	if err != nil {
		return f, err
	}
	f.close = append(f.close, func() error { return os.RemoveAll(dir) })
	var addresses []string
	for i := range c.Workers {
		name := fmt.Sprintf("worker-%d", i)
		device := c.Devices[i%len(c.Devices)]
		n := &node{name: name, path: c.Worker, socket: filepath.Join(dir, name), args: []string{
			"--worker-id", name, "--device", device, "--models", c.Models, "--load", c.Model,
			"--max-sequences", fmt.Sprint(c.MaxSequences), "--log-level", "warn",
		}}
		if device == "cpu" {
			// Workers of one machine share its processors: threads that wait for each other's turn would only wait longer.
			n.args = append(n.args, "--threads", fmt.Sprint(max(runtime.NumCPU()/c.Workers, 1)))
		}
		p, err := newProxy(ctx, n.socket)
		if err != nil {
			return f, err
		}
		f.close = append(f.close, p.close)
		f.workers, f.proxies, addresses = append(f.workers, n), append(f.proxies, p), append(addresses, p.address())
		if err := f.start(ctx, n); err != nil {
			return f, err
		}
	}
	for i := range schedulers {
		name := fmt.Sprintf("scheduler-%d", i)
		n := &node{name: name, path: c.Scheduler, socket: filepath.Join(dir, name), said: &f.said, args: []string{
			"--workers", strings.Join(addresses, ","), "--log-json",
		}}
		f.schedulers = append(f.schedulers, n)
		if err := f.start(ctx, n); err != nil {
			return f, err
		}
		conn, err := rpc.Dial(n.address(), "millrace-bench")
		if err != nil {
			return f, err
		}
		f.close = append(f.close, conn.Close)
		f.conns = append(f.conns, conn)
	}
	err = f.ready(ctx)
	return f, err
}

func (f *fleet) start(ctx context.Context, n *node) error {
	if err := n.start(ctx); err != nil {
		return err
	}
	f.close = append(f.close, n.stop)
	return nil
}

// ready waits until both schedulers see every worker serve the model.
func (f *fleet) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for i := range f.schedulers {
		if err := f.schedulerReady(ctx, i); err != nil {
			return errors.Join(fmt.Errorf("%s does not see every worker serve %s: %w", f.schedulers[i].name, f.model, err), f.check())
		}
	}
	return nil
}

func (f *fleet) schedulerReady(ctx context.Context, i int) error {
	for {
		missing, err := f.missing(ctx, i)
		if err == nil && missing == "" {
			return nil
		}
		if ended := f.check(); ended != nil {
			return ended
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), cmp.Or(err, errors.New(missing)))
		}
	}
}

// missing is what a scheduler says of the workers that do not serve; empty when all do.
func (f *fleet) missing(ctx context.Context, i int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	stream, err := pb.NewFleetServiceClient(f.conns[i]).WatchFleet(ctx, &pb.WatchFleetRequest{})
	if err != nil {
		return "", err
	}
	in, err := stream.Recv()
	if err != nil {
		return "", err
	}
	missing := ""
	for _, w := range in.GetWorkers() {
		if !w.GetConnected() || !serves(w.GetReport(), f.model) {
			missing += fmt.Sprintf("%s (%s) is %v %s; ", w.GetReport().GetWorkerId(), w.GetAddress(), w.GetReport().GetState(), w.GetProblem())
		}
	}
	return missing, nil
}

// serves says whether a worker asks for requests and has the model.
func serves(r *pb.WorkerReport, model string) bool {
	if s := r.GetState(); s != pb.WorkerState_WORKER_STATE_READY && s != pb.WorkerState_WORKER_STATE_DEGRADED {
		return false
	}
	for _, m := range r.GetModels() {
		if m.GetName() == model {
			return m.GetState() == pb.ModelState_MODEL_STATE_READY
		}
	}
	return false
}

// check says which programs have ended on their own.
func (f *fleet) check() error {
	var errs []error
	for _, n := range f.workers {
		errs = append(errs, n.check())
	}
	for _, n := range f.schedulers {
		errs = append(errs, n.check())
	}
	return errors.Join(errs...)
}

// stop ends what was started, in reverse.
func (f *fleet) stop() error {
	var errs []error
	for _, p := range f.proxies {
		p.Heal()
	}
	for i := len(f.close) - 1; i >= 0; i-- {
		errs = append(errs, f.close[i]())
	}
	f.close = nil
	return errors.Join(errs...)
}
