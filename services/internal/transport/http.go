package transport

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/hashicorp/go-hclog"
)

// HTTP is for a server that browsers speak to what Serve is for one of gRPC: cfg makes its connections, and refuse says of one that
// stands why nothing is answered on it. Both are nil where the flags name no certificate. Its listener goes through Linger.
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
			now := from.Current().server(f.ClientCA != "")
			now.NextProtos = []string{"h2", "http/1.1"}
			judge(hello, now)
			return now, nil
		},
	}
	return cfg, func(s *tls.ConnectionState) error {
		if len(allowed) == 0 || len(s.PeerCertificates) > 0 && hasOne(s.PeerCertificates[0], allowed) {
			return nil
		}
		return notAllowed(namesAmong(s.PeerCertificates))
	}, nil
}

// namesAmong are the names of who shows a chain of certificates, for people.
func namesAmong(chain []*x509.Certificate) string {
	if len(chain) == 0 {
		return "none"
	}
	return namesOf(chain[0])
}

// notAllowed says which names a caller's certificate has, none of which may call.
func notAllowed(names string) error {
	return fmt.Errorf("the names of your certificate are %s, and this server allows none of them: add one to its --tls-client-san, or show another certificate", names)
}
