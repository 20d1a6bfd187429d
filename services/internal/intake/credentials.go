package intake

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// errSide: the credentials were used to dial.
var errSide = errors.New("credentials are for the other side of a connection")

// Credentials make a server's connections as inner does, nil being plaintext, and watch them.
func Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return watching{inner}
}

type watching struct {
	inner credentials.TransportCredentials // nil: plaintext
}

// ServerHandshake implements credentials.TransportCredentials.
func (w watching) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	settled, refused := func() {}, func(error) {}
	if a, ok := raw.(*accepted); ok {
		settled, refused = a.settle, a.refused
	}
	if w.inner == nil {
		return watch(raw, true, settled, refused), nil, nil
	}
	made, info, err := w.inner.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return watch(made, false, settled, refused), info, nil
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
