package rpc

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/intake"
)

func TestEveryEndOfAConnectionHasItsCause(t *testing.T) {
	for why, cause := range map[error]string{
		intake.ErrTooMany: CauseAddress, intake.ErrUnsettled: CauseUnsettled, intake.ErrSlowHeaders: CauseHeaders,
	} {
		var s Server
		s.refused.limit(why)
		s.refused.limit(fmt.Errorf("of a peer: %w", why))
		for _, of := range []string{CauseHandshake, CauseAddress, CauseUnsettled, CauseHeaders} {
			want := uint64(0)
			if of == cause {
				want = 2
			}
			require.Equal(t, want, s.RefusedConnections(of), "%v counts as %s", why, of)
		}
	}
}

func TestAHandshakeThatSaysNothingOrThatTheServerEndedIsNotCountedAsRefused(t *testing.T) {
	var s Server
	for _, err := range []error{nil, io.EOF, fmt.Errorf("read: %w", net.ErrClosed)} {
		s.refused.failed(err)
	}
	require.Zero(t, s.RefusedConnections(CauseHandshake))
	s.refused.failed(io.ErrUnexpectedEOF)
	require.EqualValues(t, 1, s.RefusedConnections(CauseHandshake))
}
