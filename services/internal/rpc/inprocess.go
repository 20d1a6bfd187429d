package rpc

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// InProcessConn returns a connection to the server from within its process, over memory. Its calls
// pass through the whole chain like all others. Only the server's credentials are not applied, so
// the caller of InProcessConn is responsible for its users. Call it before Serve, and close the
// connection after Serve has returned.
func (s *Server) InProcessConn(program string) (*grpc.ClientConn, error) {
	if s.inProcess == nil {
		s.inProcess = newMemoryListener()
	}
	lis := s.inProcess
	return Dial("passthrough:///in-process", program,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.dial(ctx) }))
}

// IsInProcess reports whether the call of ctx came over a connection that InProcessConn returned.
func IsInProcess(ctx context.Context) bool {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	_, ok = from.Addr.(memoryAddr)
	return ok
}

// serveInProcess serves the connections of InProcessConn until the server stops. wait returns then.
func (s *Server) serveInProcess() (wait func()) {
	if s.inProcess == nil {
		return func() {}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.grpc.Serve(s.inProcess) // fails only when the server stops
	}()
	return func() { <-ended }
}

// memoryListener accepts connections that its own dial makes, each a net.Pipe. A pipe has no
// buffer: a write waits for the reader. That suits HTTP/2, whose two ends read and write in
// goroutines of their own, and it supports the deadlines that package ingress needs.
type memoryListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newMemoryListener() *memoryListener {
	return &memoryListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// dial returns the client's end of a new connection when Accept has returned the server's.
func (l *memoryListener) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- memoryConn{server}:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It may be called twice.
func (l *memoryListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (*memoryListener) Addr() net.Addr { return memoryAddr{} }

// memoryConn is the server's end of a connection of a memoryListener.
type memoryConn struct{ net.Conn }

func (memoryConn) RemoteAddr() net.Addr { return memoryAddr{} }

// memoryAddr is the address of both ends.
type memoryAddr struct{}

func (memoryAddr) Network() string { return "memory" }
func (memoryAddr) String() string  { return "in-process" }

// inProcessCredentials apply a server's credentials to all connections but those of InProcessConn.
// They count the handshakes that fail.
type inProcessCredentials struct {
	credentials.TransportCredentials
	refusals *connRefusals
}

func (c inProcessCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if _, ok := raw.(memoryConn); ok {
		return raw, inProcessInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
	}
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	c.refusals.countHandshake(err)
	return conn, info, err
}

func (c inProcessCredentials) Clone() credentials.TransportCredentials {
	return inProcessCredentials{c.TransportCredentials.Clone(), c.refusals}
}

// inProcessInfo is the AuthInfo of a connection whose client is this process.
type inProcessInfo struct{ credentials.CommonAuthInfo }

func (inProcessInfo) AuthType() string { return "in-process" }

var _ net.Listener = (*memoryListener)(nil)
