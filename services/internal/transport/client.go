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

// Dialer returns the credentials for the connections that a process dials. They are plaintext
// without --tls-ca.
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

// clientCredentials read their files when a connection is made.
type clientCredentials struct {
	source  *source
	name    string // "": the dialled host
	allowed []SAN
}

func (c *clientCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if c.name != "" {
		authority = c.name
	}
	return credentials.NewTLS(c.config(c.source.Current())).ClientHandshake(ctx, authority, raw)
}

// config returns the configuration of one connection.
func (c *clientCredentials) config(m material) *tls.Config {
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: m.authorities}
	if cert := m.certificate; cert != nil {
		// Shown whatever authorities the server names, so that its error is about this certificate
		// and not about a missing one.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	if len(c.allowed) > 0 {
		// skips the check of the host name only: verify does the rest, and it runs in every
		// handshake
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = func(state tls.ConnectionState) error { return c.verify(state, m.authorities) }
	}
	return cfg
}

// verify does what crypto/tls does with a server's certificates, except that it compares names with
// the list and not with the host.
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

// Clone returns a copy with its own server name.
func (c *clientCredentials) Clone() credentials.TransportCredentials {
	other := *c
	return &other
}

func (c *clientCredentials) OverrideServerName(name string) error {
	c.name = name
	return nil
}
