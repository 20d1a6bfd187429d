package rpc

import (
	"errors"
	"io"
	"net"
	"sync/atomic"

	"github.com/millrace/millrace/services/internal/ingress"
)

// Causes for which a server ends a connection before or between calls.
const (
	// CauseHandshake: the TLS handshake failed, for example for want of an accepted certificate.
	CauseHandshake = "handshake"
	// CauseAddress: the address had as many connections as it may.
	CauseAddress = "address"
	// CausePending: too many connections had not sent an HTTP/2 frame, and this was the oldest of
	// its address.
	CausePending = "unsettled"
	// CauseHeaders: a call's headers did not arrive in time.
	CauseHeaders = "headers"
)

// connRefusals counts refused connections by cause.
type connRefusals struct{ handshake, address, pending, headers atomic.Uint64 }

// counter returns the counter of a cause, or nil if there is no such cause.
func (r *connRefusals) counter(cause string) *atomic.Uint64 {
	switch cause {
	case CauseHandshake:
		return &r.handshake
	case CauseAddress:
		return &r.address
	case CausePending:
		return &r.pending
	case CauseHeaders:
		return &r.headers
	}
	return nil
}

// countLimit counts a connection that package ingress has ended.
func (r *connRefusals) countLimit(why error) {
	switch {
	case errors.Is(why, ingress.ErrAddressLimit):
		r.address.Add(1)
	case errors.Is(why, ingress.ErrPendingLimit):
		r.pending.Add(1)
	case errors.Is(why, ingress.ErrSlowHeaders):
		r.headers.Add(1)
	}
}

// countHandshake counts a handshake that failed with err. A client that sends nothing is a port
// probe, and a connection that this server closed is counted by countLimit.
func (r *connRefusals) countHandshake(err error) {
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		r.handshake.Add(1)
	}
}

// RefusedConnections returns the number of connections that the server ended for a cause.
func (s *Server) RefusedConnections(cause string) uint64 {
	n := s.refusals.counter(cause)
	if n == nil {
		return 0
	}
	return n.Load()
}
