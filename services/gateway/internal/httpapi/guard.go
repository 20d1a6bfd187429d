package httpapi

import (
	"net/http"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/internal/reason"
)

// guard refuses, on every path:
//
//   - Over TLS, a certificate whose names are not allowed.
//   - A request that a web page makes, unless its origin is one of Config.Origins. A browser would
//     make it with the rights of the machine that it runs on, and the reader of the page would not
//     notice. The gateway serves no pages, so no origin is its own: a name that was rebound to this
//     address has the origin of this host.
func (s *Server) guard(next http.Handler) http.Handler {
	var origin http.CrossOriginProtection
	anyOrigin := slices.Contains(s.cfg.Origins, "*")
	allowed := func(origin string) bool { return anyOrigin || slices.Contains(s.cfg.Origins, origin) }
	deny := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, Refuse(codes.PermissionDenied, "", "a web page of this origin may not make requests: start the gateway with --cors-origins"))
	})
	origin.SetDenyHandler(deny)
	protected := origin.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && s.cfg.Refuse != nil {
			if err := s.cfg.Refuse(r.TLS); err != nil {
				s.refuse(w, r, Refuse(codes.PermissionDenied, "", "%s", err).because(reason.CallerNotAllowed))
				return
			}
		}
		from := r.Header.Get("Origin")
		if from == "" {
			protected.ServeHTTP(w, r)
			return
		}
		if !allowed(from) {
			deny.ServeHTTP(w, r)
			return
		}
		head := w.Header()
		head.Add("Vary", "Origin")
		head.Set("Access-Control-Allow-Origin", from)
		head.Set("Access-Control-Expose-Headers", requestIDHeader+", Retry-After, Retry-After-Ms, "+SkippedHeader)
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			next.ServeHTTP(w, r)
			return
		}
		head.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
		if names := r.Header.Get("Access-Control-Request-Headers"); names != "" {
			head.Set("Access-Control-Allow-Headers", names) // none of them has rights of its own
		}
		head.Set("Access-Control-Max-Age", "600")
		w.WriteHeader(http.StatusNoContent)
	})
}

// refuse answers a request that no handler gets.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, f *Failure) {
	s.serve(w, r, s.dialectOf(r.URL.Path), Route{Pattern: "refused", Handle: func(*Exchange) error { return f }})
}
