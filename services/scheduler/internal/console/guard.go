package console

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// policy is what the page may do: have its own files and call its own server, and make no text a part of itself.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// guard refuses what a browser must not have asked for.
//
//   - Over TLS, a certificate whose names are not allowed.
//   - In plaintext, which stays on this machine, a host that is not this machine's own: the name of a stranger's page that was made to
//     point here, for which a browser takes the answers for that page's. Over TLS the certificate says which names are ours.
//   - A call that a page of another origin makes, whatever its browser would show it of the answer.
func guard(cfg Config, next http.Handler) http.Handler {
	var origin http.CrossOriginProtection
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusForbidden, codes.PermissionDenied, "the page of another origin asks: open the console itself")
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
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // a connection that is gone needs none
		if r.TLS == nil && !ownHost(r.Host) {
			refuse(w, http.StatusForbidden, codes.PermissionDenied, "the console does not go by this name: ask for localhost, 127.0.0.1 or [::1]")
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

// ownHost is whether a Host header names this machine, whatever names mean here and whatever the port is: it may be forwarded.
func ownHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}
