package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/services/bench/internal/proc"
)

const (
	schedulerCount = 2
	stopTimeout    = 45 * time.Second
)

// processes is the driver for programs of this host.
type processes struct {
	fleet
	nodes   map[string]*node  // workers and schedulers, by name
	proxies map[string]*proxy // before the workers
	resumes resumeLog
	close   []func() error
}

// startProcesses starts a fleet and waits until it is whole. The caller stops it, also after an
// error.
func startProcesses(ctx context.Context, c *ProcessConfig) (*processes, error) {
	p := &processes{nodes: map[string]*node{}, proxies: map[string]*proxy{}}
	p.fleet = fleet{driver: p, model: c.Model}
	dir, err := os.MkdirTemp("", "millrace-chaos-*")
	if err != nil {
		return p, err
	}
	p.close = append(p.close, func() error { return os.RemoveAll(dir) })
	var addresses []string
	for i := range c.Workers {
		name, device := fmt.Sprintf("worker-%d", i), c.Devices[i%len(c.Devices)]
		n := &node{name: name, path: c.Worker, socket: filepath.Join(dir, name), log: io.Discard, args: []string{
			"--worker-id", name, "--device", device, "--models", c.Models, "--load", c.Model,
			"--max-sequences", fmt.Sprint(c.MaxSequences), "--log-level", "warn",
		}}
		if device == "cpu" {
			// Workers of one host share its processors; more threads would only wait for each
			// other.
			n.args = append(n.args, "--threads", fmt.Sprint(max(runtime.NumCPU()/c.Workers, 1)))
		}
		x, err := newProxy(ctx, n.socket)
		if err != nil {
			return p, err
		}
		p.close = append(p.close, x.close)
		p.workers, p.proxies[name], addresses = append(p.workers, name), x, append(addresses, x.address())
		if err := p.start(ctx, n); err != nil {
			return p, err
		}
	}
	for i := range schedulerCount {
		name := fmt.Sprintf("scheduler-%d", i)
		n := &node{name: name, path: c.Scheduler, socket: filepath.Join(dir, name), log: p.resumes.writer(), args: []string{
			"--workers", strings.Join(addresses, ","), "--log-json",
		}}
		if err := p.start(ctx, n); err != nil {
			return p, err
		}
		s, err := dial(name, n.address(), c.Model)
		if err != nil {
			return p, err
		}
		p.close = append(p.close, s.conn.Close)
		p.schedulers = append(p.schedulers, s)
	}
	stopWatch := p.watch(ctx)
	p.close = append(p.close, func() error { stopWatch(); return nil })
	err = p.whole(ctx)
	return p, err
}

func (p *processes) start(ctx context.Context, n *node) error {
	if err := n.start(ctx); err != nil {
		return err
	}
	p.nodes[n.name] = n
	p.close = append(p.close, n.stop)
	return nil
}

func (p *processes) inject(_ context.Context, kind Kind, member string) (time.Time, error) {
	since := time.Now()
	switch kind {
	case Kill:
		return since, p.nodes[member].kill()
	case Freeze:
		return since, p.nodes[member].signal(syscall.SIGSTOP)
	case Partition:
		p.proxies[member].Cut()
		return since, nil
	default:
		return since, fmt.Errorf("no fault %q of a process", kind)
	}
}

func (p *processes) restore(ctx context.Context, kind Kind, member string) error {
	switch kind {
	case Kill:
		return p.nodes[member].start(ctx)
	case Freeze:
		return p.nodes[member].signal(syscall.SIGCONT)
	case Partition:
		p.proxies[member].Heal()
		return nil
	default:
		return fmt.Errorf("no fault %q of a process", kind)
	}
}

func (p *processes) check() error {
	var errs []error
	for _, n := range p.nodes {
		errs = append(errs, n.check())
	}
	return errors.Join(errs...)
}

// stop ends everything that was started, in reverse.
func (p *processes) stop() error {
	for _, x := range p.proxies {
		x.Heal()
	}
	var errs []error
	for i := len(p.close) - 1; i >= 0; i-- {
		errs = append(errs, p.close[i]())
	}
	return errors.Join(errs...)
}

// node is a worker or a scheduler: a program that is started again on the same socket after a kill.
type node struct {
	name, path, socket string
	args               []string
	log                io.Writer // receives its log

	mu      sync.Mutex
	program *proc.Program // guarded by mu; nil after a kill
}

func (n *node) address() string { return "unix:" + n.socket }

// start starts the program, which need not be ready on return. It ends by stop and not with ctx,
// because the calls end first when a run is interrupted.
func (n *node) start(ctx context.Context) error {
	p, err := proc.StartLogged(context.WithoutCancel(ctx), n.log, n.name, n.path, append([]string{"--listen", n.address()}, n.args...)...)
	if err != nil {
		return fmt.Errorf("%w; build it with `make build`", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.program = p
	return nil
}

func (n *node) signal(s syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.program == nil {
		return fmt.Errorf("%s does not run", n.name)
	}
	return n.program.Signal(s)
}

// kill ends the program with SIGKILL and returns when it has ended.
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

// check returns an error if the program has ended on its own.
func (n *node) check() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.program == nil {
		return nil
	}
	return n.program.Check()
}

func (n *node) stop() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.program == nil {
		return nil
	}
	_ = n.program.Signal(syscall.SIGCONT) // it may be frozen; if it has ended, Stop returns an error
	return n.program.Stop(stopTimeout)
}
