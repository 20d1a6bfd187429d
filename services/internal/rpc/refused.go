package rpc

import (
	"errors"
	"io"
	"net"
	"sync/atomic"

	"github.com/millrace/millrace/services/internal/intake"
)

// Causes of connections that a server ends before or between calls.
const (
	// CauseHandshake is what a client shows, or how it speaks: no TLS, no certificate, or one that is not taken.
	CauseHandshake = "handshake"
	// CauseAddress is that its address has as many connections as it may.
	CauseAddress = "address"
	// CauseUnsettled is that it was the oldest of many that do not become HTTP/2.
	CauseUnsettled = "unsettled"
	// CauseHeaders is that headers did not come in their time.
	CauseHeaders = "headers"
)

// refused counts the connections that were refused, by cause. Its zero value has counted none.
type refused struct{ handshake, address, unsettled, headers atomic.Uint64 }

// of is the count of a cause; nil: there is no such cause.
func (r *refused) of(cause string) *atomic.Uint64 {
	switch cause {
	case CauseHandshake:
		return &r.handshake
	case CauseAddress:
		return &r.address
	case CauseUnsettled:
		return &r.unsettled
	case CauseHeaders:
		return &r.headers
	}
	return nil
}

// limit counts a connection that intake has ended.
func (r *refused) limit(why error) {
	switch {
	case errors.Is(why, intake.ErrTooMany):
		r.address.Add(1)
	case errors.Is(why, intake.ErrUnsettled):
		r.unsettled.Add(1)
	case errors.Is(why, intake.ErrSlowHeaders):
		r.headers.Add(1)
	}
}

// failed counts a handshake by how it ended. One that says nothing is a probe of the port, and one that this server has closed is
// counted by that.
func (r *refused) failed(err error) {
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		r.handshake.Add(1)
	}
}

// RefusedConnections counts those that the server ended for a cause, one of the Cause constants.
func (s *Server) RefusedConnections(cause string) uint64 {
	n := s.refused.of(cause)
	if n == nil {
		return 0
	}
	return n.Load()
}
