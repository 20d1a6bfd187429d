package rpc

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// keepalives are the timings by which a server and its callers know that the other is still there. A prompt may take minutes
// during which its stream is silent, and connections with calls stay as long as both sides live: no age ends one.
type keepalives struct {
	// Ping is how long a connection may be silent before the server asks whether its caller is there; Timeout is what the
	// answer may take. A caller that vanished without a word is found out so, and its streams stop.
	Ping, Timeout time.Duration
	// LeastPause is what callers must leave between two pings of theirs, also between calls and on silent streams. Beyond two
	// that come sooner, with no message sent between, the connection is closed.
	LeastPause time.Duration
	// Idle is how long a connection may be without a call. Callers who come back later make another one.
	Idle time.Duration
}

// serverKeepalives allow callers twice as many pings as the 10 s to which grpc-go and grpc-java limit them: at exactly as many,
// every other one would come a moment too soon.
var serverKeepalives = keepalives{Ping: 30 * time.Second, Timeout: 10 * time.Second, LeastPause: 5 * time.Second, Idle: 15 * time.Minute}

func (k keepalives) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: k.Ping, Timeout: k.Timeout, MaxConnectionIdle: k.Idle}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: k.LeastPause, PermitWithoutStream: true}),
	}
}
