package rpc

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// keepalives are the times by which a server and its callers detect that the other side is gone.
// They allow minutes of silence on a stream, which a long prompt takes. There is no maximum age: a
// connection with calls lasts as long as both sides do.
type keepalives struct {
	// Ping is the silence after which the server pings a caller, and Timeout bounds the answer. A
	// caller that vanished is detected this way, and its streams end.
	Ping, Timeout time.Duration
	// LeastPause is the minimum time between two pings of a caller, also between calls and on
	// silent streams. More than two earlier pings, with no message between them, close the
	// connection.
	LeastPause time.Duration
	// Idle bounds the time of a connection without a call.
	Idle time.Duration
}

// serverKeepalives allow pings every 5 s, although grpc-go and grpc-java ping every 10 s at most.
// With a limit of 10 s every other ping would arrive a moment too early.
var serverKeepalives = keepalives{Ping: 30 * time.Second, Timeout: 10 * time.Second, LeastPause: 5 * time.Second, Idle: 15 * time.Minute}

func (k keepalives) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: k.Ping, Timeout: k.Timeout, MaxConnectionIdle: k.Idle}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: k.LeastPause, PermitWithoutStream: true}),
	}
}
