package transport

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/hashicorp/go-hclog"
)

// HTTP is to an HTTP server for browsers what Serve is to a gRPC server. cfg makes its connections,
// and refuse returns why requests on a connection are refused, or nil. Both are nil if the flags
// name no certificate. The server's listener must go through Linger.
func (f *Flags) HTTP(logger hclog.Logger) (cfg *tls.Config, refuse func(*tls.ConnectionState) error, err error) {
	if f.Cert == "" {
		return nil, nil, nil
	}
	from, err := newSource(f.serverFiles(), logger)
	if err != nil {
		return nil, nil, err
	}
	allowed, err := ParseSANs(f.ClientSANs)
	if err != nil {
		return nil, nil, fmt.Errorf("--tls-client-san: %w", err)
	}
	cfg = &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			cfg := from.Current().server(f.ClientCA != "")
			cfg.NextProtos = []string{"h2", "http/1.1"}
			trackHandshake(hello, cfg)
			return cfg, nil
		},
	}
	return cfg, func(s *tls.ConnectionState) error {
		if len(allowed) == 0 || len(s.PeerCertificates) > 0 && hasOne(s.PeerCertificates[0], allowed) {
			return nil
		}
		return notAllowed(namesAmong(s.PeerCertificates))
	}, nil
}

// namesAmong returns the names in a certificate chain, for people.
func namesAmong(chain []*x509.Certificate) string {
	if len(chain) == 0 {
		return "none"
	}
	return namesOf(chain[0])
}

// notAllowed returns the error of a caller whose certificate has none of the allowed names.
func notAllowed(names string) error {
	return fmt.Errorf("the names of your certificate are %s, and this server allows none of them: add one to its --tls-client-san, or show another certificate", names)
}
