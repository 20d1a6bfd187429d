package chaos

import (
	"context"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/process"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Hang guards.
const (
	startTimeout  = 5 * time.Minute // a large model is read and verified meanwhile
	stopTimeout   = 45 * time.Second
	reportTimeout = 2 * time.Second
)

// node is a worker or a scheduler: a program that is started again on the same socket after each end.
type node struct {
	name   string
	path   string // of the program
	socket string
	args   []string
	said   *tally // reads its log; nil: nobody does

	mu      sync.Mutex
	program *process.Program // guarded by mu; nil while it was ended on purpose
}

func (n *node) address() string { return "unix:" + n.socket }

// start starts the program; it need not be ready when start returns.
func (n *node) start(ctx context.Context) error {
	// Stopped by stop, not with ctx: an interrupt ends the calls first.
	var log io.Writer = io.Discard
	if n.said != nil {
		log = n.said.log()
	}
	p, err := process.StartLogged(context.WithoutCancel(ctx), log, n.name, n.path, append([]string{"--listen", n.address()}, n.args...)...)
	if err != nil {
		return fmt.Errorf("%w; build it with `make build`", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.program = p
	return nil
}

// signal sends a signal.
func (n *node) signal(s syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.program == nil {
		return fmt.Errorf("%s does not run", n.name)
	}
	return n.program.Signal(s)
}

// kill ends the program with SIGKILL and returns when it is gone.
func (n *node) kill() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.program.Check(); err != nil {
		return err
	}
	err := n.program.Signal(syscall.SIGKILL)
	<-n.program.Ended()
	n.program = nil
	return err
}

// check says whether the program has ended on its own.
func (n *node) check() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.program == nil {
		return nil
	}
	return n.program.Check()
}

// stop ends the program well.
func (n *node) stop() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.program == nil {
		return nil
	}
	_ = n.program.Signal(syscall.SIGCONT) // it may be frozen; one that has ended is told by Stop
	return n.program.Stop(stopTimeout)
}

// report asks a worker what it is doing, directly. A worker that does not answer soon is an error.
func (n *node) report(ctx context.Context) (*pb.WorkerReport, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	conn, err := rpc.Dial(n.address(), "millrace-bench")
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // nothing is left to be lost
	stream, err := pb.NewWorkerServiceClient(conn).Health(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&pb.HealthRequest{Interval: durationpb.New(time.Hour)}); err != nil {
		return nil, err
	}
	in, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	return in.GetFull(), nil
}
