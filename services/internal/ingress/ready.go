package ingress

import (
	"errors"
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc/mem"
)

// readiness reads from a descriptor when it is readable and gets a buffer only then, because most
// connections are idle most of the time.
type readiness struct {
	raw      syscall.RawConn
	size     int
	pool     mem.BufferPool
	buf      *[]byte
	n        int
	err      error
	readOnce func(fd uintptr) bool
}

// readinessOf returns nil if reading inner is not reading a descriptor.
func readinessOf(inner net.Conn) *readiness {
	if a, ok := inner.(*accepted); ok {
		inner = a.Conn
	}
	switch inner.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return nil
	}
	raw, err := inner.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil
	}
	r := &readiness{raw: raw}
	r.readOnce = func(fd uintptr) bool {
		r.buf = r.pool.Get(r.size)
		for {
			if r.n, r.err = syscall.Read(int(fd), *r.buf); !errors.Is(r.err, syscall.EINTR) {
				break
			}
		}
		if r.err != nil || r.n == 0 {
			r.pool.Put(r.buf)
			r.buf = nil
		}
		return !errors.Is(r.err, syscall.EAGAIN)
	}
	return r
}

// read is Read into a buffer from pool. The buffer is nil if nothing was read.
func (r *readiness) read(size int, pool mem.BufferPool) (*[]byte, int, error) {
	r.size, r.pool = size, pool
	err := r.raw.Read(r.readOnce)
	buf, n, readErr := r.buf, r.n, r.err
	r.pool, r.buf, r.n, r.err = nil, nil, 0, nil
	switch {
	case err != nil:
		if buf != nil {
			pool.Put(buf)
		}
		return nil, 0, err
	case readErr != nil:
		return nil, 0, readErr
	case n == 0:
		return nil, 0, io.EOF
	}
	return buf, n, nil
}
