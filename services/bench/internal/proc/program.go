package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// ErrEnded is returned if the program ended by itself.
var ErrEnded = errors.New("program ended too early")

// Program is a running program. The caller must stop it.
type Program struct {
	name string
	cmd  *exec.Cmd
	log  *tail
	done chan struct{} // closed when the program has ended
	err  error         // of Wait; valid after done is closed
}

// Start starts a program. When ctx ends, the program gets SIGTERM, and SIGKILL 10 s later.
func Start(ctx context.Context, name, path string, args ...string) (*Program, error) {
	return StartLogged(ctx, io.Discard, name, path, args...)
}

// StartLogged does the same and copies the program's output to log. One goroutine calls log.
func StartLogged(ctx context.Context, log io.Writer, name, path string, args ...string) (*Program, error) {
	p := &Program{name: name, log: &tail{}, done: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, path, args...)
	all := io.MultiWriter(p.log, log)
	p.cmd.Stdout, p.cmd.Stderr = all, all // with one writer for both, os/exec writes from one goroutine
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = 10 * time.Second
	// In a process group of its own, the program does not get an interrupt of the terminal, which
	// this process handles. Pdeathsig ends it if this process is killed.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// PID returns the process id.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal. It returns an error if the program has ended.
func (p *Program) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Ended returns a channel that is closed when the program has ended.
func (p *Program) Ended() <-chan struct{} { return p.done }

// Check returns ErrEnded, with the end of the log, if the program has ended.
func (p *Program) Check() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s: %w: %w\n%s", p.name, ErrEnded, errors.Join(p.err), p.log)
	default:
		return nil
	}
}

// Wait calls ready every 20 ms until it returns nil, the program has ended, or the timeout has
// passed.
func (p *Program) Wait(ctx context.Context, timeout time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.Check()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %v: %w\n%s", p.name, timeout, err, p.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop sends SIGTERM and waits; after the timeout it sends SIGKILL. It returns an error unless the
// program exits with 0.
func (p *Program) Stop(timeout time.Duration) error {
	if err := p.Check(); err != nil {
		return err
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.done:
	case <-time.After(timeout):
		killErr := p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not stop in %v and was killed: %w\n%s", p.name, timeout, errors.Join(killErr, p.err), p.log)
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w\n%s", p.name, p.err, p.log)
	}
	return nil
}

// Kill ends the program with SIGKILL and waits until it has ended. It returns ErrEnded if the
// program had ended before.
func (p *Program) Kill() error {
	if err := p.Check(); err != nil {
		return err
	}
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.done
	return nil
}

// tailBytes is the size of the end of a log that is kept.
const tailBytes = 8 << 10

// tail keeps the end of what is written.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if n := len(t.buf) - tailBytes; n > 0 {
		t.buf = append(t.buf[:0], t.buf[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
