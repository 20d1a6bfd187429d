package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Dialer makes the credentials of the connections that a process dials; plaintext ones without --tls-ca.
func (f *Flags) Dialer(logger hclog.Logger) (credentials.TransportCredentials, error) {
	if f.CA == "" {
		return insecure.NewCredentials(), nil
	}
	from, err := newSource(f.clientFiles(), logger)
	if err != nil {
		return nil, err
	}
	allowed, err := ParseSANs(f.ServerSANs)
	if err != nil {
		return nil, fmt.Errorf("--tls-server-san: %w", err)
	}
	return &clientCredentials{source: from, name: f.ServerName, allowed: allowed}, nil
}

// clientCredentials make connections of what the files hold when each is made.
type clientCredentials struct {
	source  *source
	name    string // "": the host that is dialled
	allowed []SAN
}

func (c *clientCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if c.name != "" {
		authority = c.name
	}
	return credentials.NewTLS(c.config(c.source.Current())).ClientHandshake(ctx, authority, raw)
}

// config is that of one connection.
func (c *clientCredentials) config(m material) *tls.Config {
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: m.authorities}
	if own := m.certificate; own != nil {
		// Shown whatever authorities the server names: it then says what it has against this one, and not that there is none.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil }
	}
	if len(c.allowed) > 0 {
		cfg.InsecureSkipVerify = true // of the host's name; verify does the rest, and it runs in every handshake
		cfg.VerifyConnection = func(state tls.ConnectionState) error { return c.verify(state, m.authorities) }
	}
	return cfg
}

// verify is what crypto/tls does with a server's certificates, but that names of a list stand in for the host's.
func (c *clientCredentials) verify(state tls.ConnectionState, authorities *x509.CertPool) error {
	chain := state.PeerCertificates
	if len(chain) == 0 {
		return errors.New("the server has shown no certificate")
	}
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: authorities, Intermediates: between, DNSName: c.name}); err != nil {
		return fmt.Errorf("failed to verify certificate: %w", err)
	}
	if !hasOne(chain[0], c.allowed) {
		return fmt.Errorf("the names of the server's certificate are %s, and --tls-server-san allows none of them", namesOf(chain[0]))
	}
	return nil
}

func (*clientCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errSide
}

func (*clientCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone has a server name of its own.
func (c *clientCredentials) Clone() credentials.TransportCredentials {
	other := *c
	return &other
}

func (c *clientCredentials) OverrideServerName(name string) error {
	c.name = name
	return nil
}
