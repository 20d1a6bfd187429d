package template

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

// hosted reports that MaybeChild has run, so that executing this binary again starts a template
// child and not another server.
var hosted atomic.Bool

// child is the parent's side of one process that holds one parsed template.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	out    *json.Decoder
	in     *json.Encoder
	stderr *headBuffer
	dead   bool // killed and waited for; unusable
	used   time.Time
}

// startChild starts a process and makes it parse the template.
func startChild(ctx context.Context, source string, opts Options) (*child, error) {
	if !hosted.Load() {
		return nil, fmt.Errorf("template.MaybeChild was not called at the start of main: %w", ErrChild)
	}
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", childArgument) // outlives ctx
	cmd.Env = []string{"GOMAXPROCS=2", "GOTRACEBACK=none", "GOGC=50"}
	cmd.Dir = "/"
	// A process group of its own: a Ctrl-C for the server must not reach the child, which ends with
	// its standard input.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c := &child{cmd: cmd, stderr: &headBuffer{}}
	cmd.Stderr = c.stderr
	var err error
	if c.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start: %w: %w", ErrChild, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start: %w: %w", ErrChild, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start: %w: %w", ErrChild, err)
	}
	c.in, c.out = json.NewEncoder(c.stdin), json.NewDecoder(stdout)
	// Starting the process is not part of the template's time.
	_, err = c.ask(ctx, request{Parse: &parseArgs{source, opts}}, opts.Timeout+startTimeout)
	if err != nil {
		c.kill()
		return nil, err
	}
	return c, nil
}

// startTimeout allows for starting the process on a busy machine.
const startTimeout = 10 * time.Second

// graceTime is how much longer than the child the parent waits, so that the child reports the
// timeout itself.
const graceTime = 500 * time.Millisecond

// stoppedTime is how often the parent checks whether a child that it waits for was stopped by a
// signal.
const stoppedTime = 50 * time.Millisecond

// ask sends a request and waits for the reply. If none comes, for any reason, the child is dead
// afterwards.
func (c *child) ask(ctx context.Context, req request, timeout time.Duration) (reply, error) {
	type answer struct {
		reply reply
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		if a.err = c.in.Encode(req); a.err == nil {
			a.err = c.out.Decode(&a.reply)
		} else if errors.Is(a.err, syscall.EPIPE) {
			a.err = io.EOF
		}
		done <- a
	}()
	timer := time.NewTimer(timeout + graceTime)
	defer timer.Stop()
	look := time.NewTicker(stoppedTime)
	defer look.Stop()
	var a answer
	for waiting := true; waiting; {
		select {
		case a = <-done:
			waiting = false
		case <-ctx.Done():
			c.kill()
			<-done
			return reply{}, ctx.Err()
		case <-look.C:
			if c.stopped() {
				c.kill()
				<-done
				return reply{}, fmt.Errorf("%w: it was stopped by a signal", ErrChild)
			}
		case <-timer.C:
			c.kill()
			<-done
			return reply{}, fmt.Errorf("no result after %v: %w", timeout, ErrLimit)
		}
	}
	if a.err != nil {
		return reply{}, c.postMortem(timeout, a.err)
	}
	switch a.reply.Fault {
	case faultTemplate:
		return reply{}, fmt.Errorf("%w: %s", ErrTemplate, a.reply.Text)
	case faultLimit:
		return reply{}, fmt.Errorf("%w: %s", ErrLimit, a.reply.Text)
	case faultNone:
	}
	return a.reply, nil
}

// stopped reports whether a signal has stopped the process. It would neither answer nor end at its
// timeout.
func (c *child) stopped() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	if err != nil {
		return false // the timeout still applies
	}
	// The state follows the program's name, which is in brackets and may contain brackets.
	name := bytes.LastIndexByte(stat, ')')
	return bytes.HasPrefix(stat[name+1:], []byte(" T"))
}

// postMortem ends a child that failed and explains why it failed.
func (c *child) postMortem(timeout time.Duration, cause error) error {
	c.kill()
	text := c.stderr.Bytes()
	state := c.cmd.ProcessState
	switch {
	case state.ExitCode() == exitMemory, saysAny(text, "out of memory", "cannot allocate memory", "failed to allocate", "pthread_create failed"):
		return fmt.Errorf("%w: the template needs too much memory", ErrLimit)
	case state.ExitCode() == exitTime:
		return fmt.Errorf("no result after %v: %w", timeout, ErrLimit)
	case saysAny(text, "stack overflow", "stack exceeds"):
		return fmt.Errorf("%w: the template recurses too deeply", ErrLimit)
	}
	first, _, _ := bytes.Cut(text, []byte("\n"))
	return fmt.Errorf("%w: %w (%v, %q)", ErrChild, cause, state, first)
}

// saysAny reports whether the runtime's last output contains one of the phrases.
func saysAny(text []byte, phrases ...string) bool {
	return slices.ContainsFunc(phrases, func(p string) bool { return bytes.Contains(text, []byte(p)) })
}

// kill ends the process and releases its resources.
func (c *child) kill() {
	if c.dead {
		return
	}
	c.dead = true
	_ = c.cmd.Process.Kill() // it may have ended already
	_ = c.stdin.Close()
	_ = c.cmd.Wait() // its exit status is in ProcessState
}

// headBuffer keeps the first bytes written to it.
type headBuffer struct{ bytes.Buffer }

func (b *headBuffer) Write(p []byte) (int, error) {
	if room := 4096 - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// MaybeChild turns this process into a template child if it was started as one, and then does not
// return. Main must call it before anything else, and tests in TestMain. A binary that does not
// cannot use templates.
func MaybeChild() {
	if len(os.Args) == 2 && os.Args[1] == childArgument {
		os.Exit(serve(os.Stdin, os.Stdout))
	}
	hosted.Store(true)
}
