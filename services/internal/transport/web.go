package transport

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/hashicorp/go-hclog"
)

// errNoCertificate reports that TLS is requested without a certificate.
var errNoCertificate = errors.New("TLS needs --tls-cert and --tls-key")

// Web serves pages over TLS with the certificate of the server, to the callers that the server
// allows. Probes have no certificate, so a connection without one is made too, and Allows reports
// which connections may read more than a probe.
type Web struct {
	source  *source
	mutual  bool
	allowed []SAN
}

// Web returns a Web for the flags of a server.
func (f *Flags) Web(logger hclog.Logger) (*Web, error) {
	if f.Cert == "" {
		return nil, errNoCertificate
	}
	from, err := newSource(f.serverFiles(), logger)
	if err != nil {
		return nil, err
	}
	allowed, err := ParseSANs(f.ClientSANs)
	if err != nil {
		return nil, fmt.Errorf("--tls-client-san: %w", err)
	}
	return &Web{source: from, mutual: f.ClientCA != "", allowed: allowed}, nil
}

// Listen returns a TLS listener that reads the files for each connection.
func (w *Web) Listen(lis net.Listener) net.Listener {
	return tls.NewListener(Linger(lis), &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			m := w.source.Current()
			cfg := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*m.certificate}, SessionTicketsDisabled: true}
			if w.mutual {
				cfg.ClientAuth, cfg.ClientCAs = tls.VerifyClientCertIfGiven, m.authorities
			}
			trackHandshake(hello, cfg)
			return cfg, nil
		},
	})
}

// Allows reports whether the server would allow the caller of a connection.
func (w *Web) Allows(state *tls.ConnectionState) bool {
	switch {
	case !w.mutual:
		return true
	case state == nil || len(state.VerifiedChains) == 0:
		return false
	}
	return len(w.allowed) == 0 || hasOne(state.PeerCertificates[0], w.allowed)
}
