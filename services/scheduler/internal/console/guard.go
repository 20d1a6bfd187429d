package console

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// policy allows the page its own files and calls of its own server. It forbids inline scripts and
// styles.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// guard refuses requests that a browser must not make.
//
//   - Over TLS, a certificate whose names are not allowed.
//   - In plaintext, which stays on this machine, a host that is not this machine: a foreign page's name that was rebound to this address, so that the browser takes the responses for that page's. Over TLS the certificate has the names of the server.
//   - A call from a page of another origin, whether or not its browser would show it the response.
func guard(cfg Config, next http.Handler) http.Handler {
	var origin http.CrossOriginProtection
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusForbidden, codes.PermissionDenied, "the request comes from a page of another origin: open the console itself")
	}))
	next = origin.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", policy)
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Cache-Control", "no-store")
		// a closed connection needs no deadline
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
		if r.TLS == nil && !ownHost(r.Host) {
			refuse(w, http.StatusForbidden, codes.PermissionDenied, "the console does not have this name: use localhost, 127.0.0.1 or [::1]")
			return
		}
		if r.TLS != nil && cfg.Refuse != nil {
			if err := cfg.Refuse(r.TLS); err != nil {
				refuse(w, http.StatusForbidden, codes.PermissionDenied, err.Error())
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// ownHost reports whether a Host header names this machine, whatever names resolve to, and whatever
// the port is, because it may be forwarded.
func ownHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}
