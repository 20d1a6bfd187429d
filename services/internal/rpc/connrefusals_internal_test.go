package rpc

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/ingress"
)

func TestRefusalsAreCountedByCause(t *testing.T) {
	for why, cause := range map[error]string{
		ingress.ErrAddressLimit: CauseAddress, ingress.ErrPendingLimit: CausePending, ingress.ErrSlowHeaders: CauseHeaders,
	} {
		var s Server
		s.refusals.countLimit(why)
		s.refusals.countLimit(fmt.Errorf("peer: %w", why))
		for _, other := range []string{CauseHandshake, CauseAddress, CausePending, CauseHeaders} {
			want := uint64(0)
			if other == cause {
				want = 2
			}
			require.Equal(t, want, s.RefusedConnections(other), "%v counts as %s", why, other)
		}
	}
}

func TestSilentHandshakesAreNotCounted(t *testing.T) {
	// A handshake that sends nothing, or that the server ended, is not counted.
	var s Server
	for _, err := range []error{nil, io.EOF, fmt.Errorf("read: %w", net.ErrClosed)} {
		s.refusals.countHandshake(err)
	}
	require.Zero(t, s.RefusedConnections(CauseHandshake))
	s.refusals.countHandshake(io.ErrUnexpectedEOF)
	require.EqualValues(t, 1, s.RefusedConnections(CauseHandshake))
}
