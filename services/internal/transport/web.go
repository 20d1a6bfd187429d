package transport

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/hashicorp/go-hclog"
)

// errNoCertificate: TLS was asked for, and there is nothing to show.
var errNoCertificate = errors.New("TLS needs --tls-cert and --tls-key")

// Web is how a program serves pages over TLS: with the certificate of its server, to the callers that its server takes. Probes show no
// certificate, and what tells them no more than a word is open to them: a connection without one is made, and Vouches says who has one.
type Web struct {
	source  *source
	mutual  bool
	allowed []SAN
}

// Web makes it of the flags of a server.
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

// Listen makes each connection of a listener over TLS, of what the files hold then.
func (w *Web) Listen(lis net.Listener) net.Listener {
	return tls.NewListener(Linger(lis), &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			m := w.source.Current()
			cfg := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*m.certificate}, SessionTicketsDisabled: true}
			if w.mutual {
				cfg.ClientAuth, cfg.ClientCAs = tls.VerifyClientCertIfGiven, m.authorities
			}
			judge(hello, cfg)
			return cfg, nil
		},
	})
}

// Vouches says whether the server would let the caller at the other end of a connection in.
func (w *Web) Vouches(is *tls.ConnectionState) bool {
	switch {
	case !w.mutual:
		return true
	case is == nil || len(is.VerifiedChains) == 0:
		return false
	}
	return len(w.allowed) == 0 || hasOne(is.PeerCertificates[0], w.allowed)
}
