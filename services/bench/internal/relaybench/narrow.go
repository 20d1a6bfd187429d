package relaybench

import (
	"context"
	"net"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
)

const (
	// narrowWindow is what a server may send on a stream to a reader that does not read. grpc-go gives a window back once a quarter of the
	// one that it believes in has been read, 16 KiB, so that streams that are read go on.
	narrowWindow = 20 << 10
	// defaultWindow is that of HTTP/2. A client with this one says nothing of its window to the server.
	defaultWindow = 64<<10 - 1
)

// narrow makes a connection on which a stream has a window of narrowWindow bytes. What a window of 64 KiB takes up is memory of the
// client; the server holds the same behind any window once it is full, and a narrow one is full sooner.
func narrow() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithStaticStreamWindowSize(defaultWindow),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			return &narrowConn{Conn: conn}, err
		}),
	}
}

// narrowConn is a client's connection that tells the server of narrowWindow behind the preface, which is the first that a client
// writes. One goroutine writes at a time.
type narrowConn struct {
	net.Conn
	preface int // bytes of it that were written
}

func (c *narrowConn) Write(p []byte) (n int, err error) {
	if rest := len(http2.ClientPreface) - c.preface; rest > 0 {
		n, err = c.Conn.Write(p[:min(rest, len(p))])
		if c.preface += n; err != nil || c.preface < len(http2.ClientPreface) {
			return n, err
		}
		setting := http2.Setting{ID: http2.SettingInitialWindowSize, Val: narrowWindow}
		if err := http2.NewFramer(c.Conn, nil).WriteSettings(setting); err != nil {
			return n, err
		}
	}
	more, err := c.Conn.Write(p[n:])
	return n + more, err
}
