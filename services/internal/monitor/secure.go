package monitor

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
)

// Secure wraps a listener in TLS, with connections of crypto/tls, and decides which callers may
// read metrics.
type Secure interface {
	Listen(lis net.Listener) net.Listener
	Allows(*tls.ConnectionState) bool
}

// CheckSecure refuses --metrics-tls without a port for metrics or without a certificate.
func CheckSecure(wanted bool, metrics, cert string) error {
	if wanted && (metrics == "" || cert == "") {
		return errors.New("--metrics-tls: needs --metrics-listen, and --tls-cert and --tls-key, with which metrics are served")
	}
	return nil
}

// guarded refuses callers that Secure does not allow.
func (p Page) guarded(next http.Handler) http.Handler {
	if p.Secure == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.Secure.Allows(r.TLS) {
			http.Error(w, "metrics need a client certificate of an authority in --tls-client-ca, with a name of --tls-client-san",
				http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
