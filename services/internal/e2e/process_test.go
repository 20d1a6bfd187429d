package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hang is a guard for waits that end much sooner, also on a busy machine.
const hang = 90 * time.Second

// output is the output of a process; it is safe for concurrent use.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// process is a process of a test; it ends with the test.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   *output
	ended chan struct{} // closed when it has been waited for
}

// launch starts a program.
func launch(t *testing.T, binary string, args ...string) *process {
	t.Helper()
	return launchWith(t, nil, binary, args...)
}

// launchWith starts a program with additional environment variables.
func launchWith(t *testing.T, env []string, binary string, args ...string) *process {
	t.Helper()
	p := &process{name: filepath.Base(binary), cmd: exec.Command(binary, args...), log: &output{}, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.Env = append(append(os.Environ(), "GOTRACEBACK=all"), env...)
	// The process also ends when the test is killed.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, p.cmd.Start())
	p.name += " " + strconv.Itoa(p.cmd.Process.Pid)
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the exit code is read from its state
	}()
	t.Cleanup(func() {
		p.kill()
		if strings.Contains(p.log.String(), "WARNING: DATA RACE") {
			t.Errorf("%s has a data race:\n%s", p.name, p.log)
		}
		if t.Failed() {
			t.Logf("log of %s %v:\n%s", p.name, args, tail(p.log.String(), 80))
		}
	})
	return p
}

// tail returns the last lines of a text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(all) > lines {
		all = append([]string{fmt.Sprintf("(%d lines before)", len(all)-lines)}, all[len(all)-lines:]...)
	}
	return strings.Join(all, "\n")
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // it may have ended

func (p *process) terminate() { p.signal(syscall.SIGTERM) }
func (p *process) freeze()    { p.signal(syscall.SIGSTOP) }
func (p *process) thaw()      { p.signal(syscall.SIGCONT) }

// kill ends the process; on return it has ended and its log is complete.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// alive reports whether the process runs.
func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// exit waits for its end and returns the exit code, -1 if a signal ended it.
func (p *process) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(hang):
		require.FailNow(t, "it does not end", p.name)
	}
	return p.cmd.ProcessState.ExitCode()
}

// resident returns its resident memory in bytes: the least of several samples, because the heap of
// a garbage collector grows and shrinks.
func (p *process) resident(t *testing.T) int64 {
	t.Helper()
	least := int64(0)
	for range 8 {
		if now := p.memory(t, "VmRSS"); least == 0 || now < least {
			least = now
		}
		time.Sleep(100 * time.Millisecond)
	}
	return least
}

// memory returns the bytes of a field of its status: VmRSS is resident, VmHWM the most that was.
func (p *process) memory(t *testing.T, field string) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(t, err)
	found := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, found)
	kib, err := strconv.ParseInt(string(found[1]), 10, 64)
	require.NoError(t, err)
	return kib << 10
}

// descriptors returns the number of its open files and sockets.
func (p *process) descriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	require.NoError(t, err)
	return len(open)
}

// goroutines ends the process with a dump of its stacks and counts them.
func (p *process) goroutines(t *testing.T) int {
	t.Helper()
	p.signal(syscall.SIGQUIT)
	p.exit(t)
	return len(regexp.MustCompile(`(?m)^goroutine \d+ .*\[`).FindAllString(p.log.String(), -1))
}

// mib formats bytes in MiB.
func mib(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }
