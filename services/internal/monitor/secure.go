package monitor

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
)

// Secure makes a listener's connections over TLS, of crypto/tls's type, and says who may read measures over them.
type Secure interface {
	Listen(lis net.Listener) net.Listener
	Vouches(*tls.ConnectionState) bool
}

// CheckSecure refuses --metrics-tls where it has nothing to serve, or nothing to serve it with.
func CheckSecure(wanted bool, metrics, cert string) error {
	if wanted && (metrics == "" || cert == "") {
		return errors.New("--metrics-tls: needs --metrics-listen, and --tls-cert and --tls-key, with which measures are served")
	}
	return nil
}

// guarded refuses those whom nobody vouches for.
func (p Page) guarded(next http.Handler) http.Handler {
	if p.Secure == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.Secure.Vouches(r.TLS) {
			http.Error(w, "measures are for those who show a certificate of an authority in --tls-client-ca, with a name of --tls-client-san",
				http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
