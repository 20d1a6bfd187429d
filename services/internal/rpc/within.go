package rpc

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/test/bufconn"
)

// withinBytes are on their way in each direction of a connection from within.
const withinBytes = 256 << 10

// Within makes a connection to the server from within its process, over memory. Calls on it go through the whole chain, as all others
// do; the server's credentials alone are not asked for, so that who makes it answers for who uses it. Call it before Serve, and close
// what it returns when Serve has ended.
func (s *Server) Within(program string) (*grpc.ClientConn, error) {
	if s.within == nil {
		s.within = bufconn.Listen(withinBytes)
	}
	to := s.within
	return Dial("passthrough:///within", program,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return to.DialContext(ctx) }))
}

// FromWithin is whether the call that ctx belongs to came over a connection that Within made.
func FromWithin(ctx context.Context) bool {
	from, known := peer.FromContext(ctx)
	if !known {
		return false
	}
	_, is := from.Addr.(withinAddr)
	return is
}

// serveWithin serves connections that Within made, until the server stops; wait waits for that.
func (s *Server) serveWithin() (wait func()) {
	if s.within == nil {
		return func() {}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.grpc.Serve(withinListener{s.within}) // it fails in no other way than by the server's stop
	}()
	return func() { <-ended }
}

// withinListener marks its connections.
type withinListener struct{ *bufconn.Listener }

func (l withinListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return withinConn{conn}, nil
}

// withinConn is a connection from within.
type withinConn struct{ net.Conn }

func (withinConn) RemoteAddr() net.Addr { return withinAddr{} }

// withinAddr is where such connections come from.
type withinAddr struct{}

func (withinAddr) Network() string { return "memory" }
func (withinAddr) String() string  { return "within" }

// withinCredentials are a server's own, which connections from within are not asked for. Those of others who do not have them are counted.
type withinCredentials struct {
	credentials.TransportCredentials
	refused *refused
}

func (c withinCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if _, is := raw.(withinConn); is {
		return raw, withinInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
	}
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	c.refused.failed(err)
	return conn, info, err
}

func (c withinCredentials) Clone() credentials.TransportCredentials {
	return withinCredentials{c.TransportCredentials.Clone(), c.refused}
}

// withinInfo is what is known of who is at the other end: this process.
type withinInfo struct{ credentials.CommonAuthInfo }

func (withinInfo) AuthType() string { return "within" }
