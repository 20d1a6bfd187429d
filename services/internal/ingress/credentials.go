package ingress

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// errSide reports that server credentials were used to dial.
var errSide = errors.New("credentials are for the other side of a connection")

// Credentials wraps a server's credentials, nil for plaintext, so that its connections are watched.
func Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return watching{inner}
}

type watching struct {
	inner credentials.TransportCredentials // nil: plaintext
}

// ServerHandshake implements credentials.TransportCredentials.
func (w watching) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	onFirstFrame, onRefused := func() {}, func(error) {}
	if a, ok := raw.(*accepted); ok {
		onFirstFrame, onRefused = a.markHTTP2, a.notifyRefused
	}
	if w.inner == nil {
		return watch(raw, true, onFirstFrame, onRefused), nil, nil
	}
	conn, info, err := w.inner.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return watch(conn, false, onFirstFrame, onRefused), info, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (watching) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errSide
}

// Info implements credentials.TransportCredentials.
func (w watching) Info() credentials.ProtocolInfo {
	if w.inner == nil {
		return insecure.NewCredentials().Info()
	}
	return w.inner.Info()
}

// Clone implements credentials.TransportCredentials.
func (w watching) Clone() credentials.TransportCredentials {
	if w.inner == nil {
		return w
	}
	return watching{w.inner.Clone()}
}

// OverrideServerName implements credentials.TransportCredentials.
func (watching) OverrideServerName(string) error { return errSide }
