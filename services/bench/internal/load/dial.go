package load

import (
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/internal/rpc"
)

// Dial makes n connections to one server; they connect on first use. hangUp closes them all. Options are those of rpc.Dial.
func Dial(target string, n int, options ...grpc.DialOption) (conns []grpc.ClientConnInterface, hangUp func(), err error) {
	closers := make([]*grpc.ClientConn, 0, n)
	hangUp = func() {
		for _, conn := range closers {
			_ = conn.Close() // nothing is left to be lost
		}
	}
	for range n {
		conn, err := rpc.Dial(target, "millrace-bench", options...)
		if err != nil {
			hangUp()
			return nil, nil, err
		}
		closers = append(closers, conn)
		conns = append(conns, conn)
	}
	return conns, hangUp, nil
}
