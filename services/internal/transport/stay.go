package transport

import (
	"crypto/tls"
	"net"
	"sync/atomic"
)

// Linger is for a server of net/http over TLS what credentials do by themselves: of a listener's connections those stay a moment whose
// handshake is refused by a configuration of this package, so that their clients learn why. It stands directly below TLS.
func Linger(lis net.Listener) net.Listener { return lingers{lis} }

type lingers struct{ net.Listener }

// Accept implements net.Listener.
func (l lingers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &staying{Conn: conn}, nil
}

// staying is a connection whose Close waits for the client, once, between the beginning of a handshake and the client's certificate
// having been taken.
type staying struct {
	net.Conn
	judged atomic.Bool // a handshake has begun, and the client may be refused
}

// judge says that the handshake of a client has begun, and has cfg say when the client was taken.
func judge(hello *tls.ClientHelloInfo, cfg *tls.Config) {
	if s, ok := hello.Conn.(*staying); ok {
		s.judged.Store(true)
		cfg.VerifyConnection = func(tls.ConnectionState) error {
			s.judged.Store(false)
			return nil
		}
	}
}

func (s *staying) Close() error {
	if s.judged.Swap(false) {
		discard(s.Conn)
	}
	return s.Conn.Close()
}
