package workertest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// Net is an in-memory network. An address without a listener refuses connections.
type Net struct {
	mu struct {
		sync.Mutex
		processes map[string]*Process
	}
}

// NewNet returns an empty network.
func NewNet() *Net {
	n := &Net{}
	n.mu.processes = map[string]*Process{}
	return n
}

// Dial connects to an address of the network, on first use.
func (n *Net) Dial(address string) (*grpc.ClientConn, error) {
	return rpc.Dial("passthrough:///"+address, "test",
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			n.mu.Lock()
			p := n.mu.processes[address]
			n.mu.Unlock()
			if p == nil {
				return nil, fmt.Errorf("connection to %s refused", address)
			}
			return p.lis.DialContext(ctx)
		}))
}

// Process is one run of a worker at an address.
type Process struct {
	net     *Net
	address string
	lis     *bufconn.Listener
	stop    func()

	mu struct {
		sync.Mutex
		frozen   chan struct{} // closed by Thaw; nil unless frozen
		conns    map[*conn]struct{}
		accepted int  // connections so far
		killed   bool // connections that were on their way are closed when they arrive
	}
}

// Start runs a worker at an address until the test ends, or until Kill or Stop.
func (n *Net) Start(t testing.TB, address string, w *Worker) *Process {
	t.Helper()
	p := &Process{net: n, address: address, lis: bufconn.Listen(1 << 20)}
	p.mu.conns = map[*conn]struct{}{}
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain, DrainTimeout: 5 * time.Second}, rpctest.Logger(t))
	w.register(server)
	n.mu.Lock()
	require.Nil(t, n.mu.processes[address], "%s is in use", address)
	n.mu.processes[address] = p
	n.mu.Unlock()
	p.stop = rpctest.Serve(t, server, &listener{Listener: p.lis, process: p})
	t.Cleanup(p.Kill) // before the server is stopped, so that nothing waits for a frozen connection
	return p
}

// remove makes the address refuse connections.
func (p *Process) remove() {
	p.net.mu.Lock()
	if p.net.mu.processes[p.address] == p {
		delete(p.net.mu.processes, p.address)
	}
	p.net.mu.Unlock()
}

// Kill breaks every connection at once and refuses new ones, as kill -9 does. It may be called
// again.
func (p *Process) Kill() {
	p.remove()
	p.mu.Lock()
	p.mu.killed = true
	all := p.mu.conns
	p.mu.conns = map[*conn]struct{}{}
	p.mu.Unlock()
	for c := range all {
		_ = c.Close()
	}
}

// Freeze stops every read and write and keeps connections open, as SIGSTOP does.
func (p *Process) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.frozen == nil {
		p.mu.frozen = make(chan struct{})
	}
}

// Thaw ends a freeze.
func (p *Process) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.frozen != nil {
		close(p.mu.frozen)
		p.mu.frozen = nil
	}
}

// CutOff stops every read and write of one connection and keeps it open: a half-open connection.
// Connections count from 0 in the order of their arrival.
func (p *Process) CutOff(number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.mu.conns {
		if c.number == number {
			c.cut.Store(true)
		}
	}
}

// Connections returns how many connections are open.
func (p *Process) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.conns)
}

// Stop ends the worker as SIGTERM does: new connections are refused, running calls finish.
func (p *Process) Stop() {
	p.remove()
	p.stop()
}

// listener accepts connections that can be killed and frozen.
type listener struct {
	net.Listener
	process *Process
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	out := &conn{Conn: c, process: l.process, closed: make(chan struct{})}
	l.process.mu.Lock()
	killed := l.process.mu.killed
	out.number = l.process.mu.accepted
	l.process.mu.accepted++
	if !killed {
		l.process.mu.conns[out] = struct{}{}
	}
	l.process.mu.Unlock()
	if killed {
		_ = out.Close() // the server then ends it as it does one that its caller breaks
	}
	return out, nil
}

// conn is a worker's end of a connection.
type conn struct {
	net.Conn
	process *Process
	number  int
	cut     atomic.Bool
	once    sync.Once
	closed  chan struct{}
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.gate()
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	c.gate()
	return c.Conn.Write(b)
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.process.mu.Lock()
	delete(c.process.mu.conns, c)
	c.process.mu.Unlock()
	return c.Conn.Close()
}

// gate waits while the process is frozen or the connection cut off.
func (c *conn) gate() {
	c.process.mu.Lock()
	frozen := c.process.mu.frozen
	c.process.mu.Unlock()
	if c.cut.Load() {
		<-c.closed
		return
	}
	if frozen != nil {
		select {
		case <-frozen:
		case <-c.closed:
		}
	}
}
