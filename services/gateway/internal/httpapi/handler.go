package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Headers of requests and responses that HTTP does not define.
const (
	requestIDHeader = "X-Request-Id"
	timeoutHeader   = "X-Request-Timeout"
	routingHeader   = rpc.RoutingKey
	apiKeyHeader    = "X-Api-Key" // Anthropic's clients send their token in it
)

// Handler returns the handler that Serve uses.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, d := range s.cfg.Dialects {
		for _, r := range d.Routes() {
			mux.HandleFunc(r.Pattern, func(w http.ResponseWriter, in *http.Request) { s.serve(w, in, d, r) })
		}
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { probe(w, true, "alive\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ok, text := s.Able(r.Context())
		probe(w, ok, text)
	})
	return s.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern == "" {
			s.unknown(w, r, mux)
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

// probe answers a probe.
func probe(w http.ResponseWriter, ok bool, text string) {
	head := w.Header()
	head.Set("Content-Type", "text/plain; charset=utf-8")
	head.Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = io.WriteString(w, text) // the client may be gone
}

// unknown answers a path or a method that no dialect has.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request, mux *http.ServeMux) {
	// The mux writes which methods a path has.
	said := &discard{header: http.Header{}}
	mux.ServeHTTP(said, r)
	f := Refuse(codes.NotFound, "", "there is no %.64s: docs/http.md lists the paths", strings.ToValidUTF8(r.URL.Path, "?"))
	if allow := said.header.Get("Allow"); said.status == http.StatusMethodNotAllowed {
		f = Refuse(codes.Unimplemented, "", "this path has no method %.16q: use %s", r.Method, allow)
		f.Status = http.StatusMethodNotAllowed
		w.Header().Set("Allow", allow)
	}
	d := s.dialectOf(r.URL.Path)
	s.serve(w, r, d, Route{Pattern: "unknown", Handle: func(*Exchange) error { return f }})
}

// dialectOf returns the dialect of a path that does not exist: the one that has most of its
// beginning.
func (s *Server) dialectOf(path string) Dialect {
	best, length := s.cfg.Dialects[0], 0
	for _, d := range s.cfg.Dialects {
		for _, r := range d.Routes() {
			own := pathOf(r.Pattern)
			n := 0
			for n < len(own) && n < len(path) && own[n] == path[n] {
				n++
			}
			if n > length {
				best, length = d, n
			}
		}
	}
	return best
}

// discard is a response of which only status and headers matter.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

// pathOf returns the path of a pattern.
func pathOf(pattern string) string {
	if _, path, ok := strings.Cut(pattern, " "); ok {
		return path
	}
	return pattern
}

// serve answers a request of a dialect.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, d Dialect, route Route) {
	begin := time.Now()
	s.enter()
	defer s.leave()
	x := &Exchange{Request: r, ID: r.Header.Get(requestIDHeader), server: s, dialect: d, out: newWriter(w, s.cfg.SendStall)}
	if !rpc.ValidRequestID(x.ID) {
		x.ID = rpc.NewRequestID()
	}
	w.Header().Set(requestIDHeader, x.ID)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	ctx, span := s.startSpan(r, route)
	call := target.Call{RequestID: x.ID, RoutingKey: r.Header.Get(routingHeader)}
	if !s.cfg.HidesTokens {
		call.Authorization = authorization(r)
	}
	x.ctx = call.Context(ctx)
	defer x.end()
	path := pathOf(route.Pattern)
	if s.cfg.Observer != nil {
		s.cfg.Observer.Began(path)
	}
	err := s.handle(x, route)
	f := x.finish(err)
	took := time.Since(begin)
	if s.cfg.Observer != nil {
		s.cfg.Observer.Ended(path, x.out.status, f, took)
	}
	endSpan(span, x, f)
	s.log(x, path, f, err, took)
}

// authorization returns the token that a client sent, as the contract wants it. It returns "" for
// what is not printable ASCII, which no token is and gRPC does not send.
func authorization(r *http.Request) string {
	shown := r.Header.Get("Authorization")
	if key := r.Header.Get(apiKeyHeader); shown == "" && key != "" {
		shown = "Bearer " + key
	}
	for _, c := range []byte(shown) {
		if c < ' ' || c > '~' {
			return ""
		}
	}
	return shown
}

// handle runs the handler of a request. A panic costs this request alone.
func (s *Server) handle(x *Exchange, route Route) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.logger.Error("handler panicked", "request_id", x.ID, "route", route.Pattern, "panic", p, "stack", string(debug.Stack()))
			err = Refuse(codes.Internal, "", "the gateway failed: its log has the error of this request id").because(reason.Panic)
		}
	}()
	if s.draining.Load() {
		x.out.Header().Set("Connection", "close")
		return stopping()
	}
	if text := x.Request.Header.Get(timeoutHeader); text != "" {
		if err := x.headerTimeout(text); err != nil {
			return err
		}
	}
	return route.Handle(x)
}

// headerTimeout sets the deadline of the header: seconds, or a duration such as 500ms.
func (x *Exchange) headerTimeout(text string) error {
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil {
		d, failed := time.ParseDuration(text)
		if failed != nil {
			return Refuse(codes.InvalidArgument, timeoutHeader, "the header %s is %.32q: want seconds such as 2.5, or a duration such as 500ms", timeoutHeader, text)
		}
		seconds = d.Seconds()
	}
	return x.SetTimeout(seconds, timeoutHeader)
}

// finish answers a request that failed, and returns its failure.
func (x *Exchange) finish(err error) *Failure {
	if err == nil {
		return nil
	}
	var cut *Failure
	switch {
	case errors.Is(err, errSlow):
		return Refuse(codes.ResourceExhausted, "", "the client read nothing for %v", x.server.cfg.SendStall).because(reason.SlowReader)
	case errors.Is(err, errGone), x.Request.Context().Err() != nil && context.Cause(x.server.base) == nil:
		x.setStatus(statusClientClosed)
		return Refuse(codes.Canceled, "", "the client has left").because(reason.Cancelled)
	case errors.As(context.Cause(x.server.base), &cut):
		err = cut // whatever the call returned for the end of its context
	}
	own := *FailureOf(err) // a copy, because requests that are cut off share theirs
	f := &own
	f.RequestID = x.ID
	if x.out.begun {
		event := x.dialect.ErrorEvent
		if x.failed != nil {
			event = x.failed
		}
		_ = x.out.write(event(f)) // the client may be gone
		return f
	}
	head := x.out.Header()
	head.Del("Cache-Control")
	if after := f.RetryAfter; after > 0 {
		head.Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
		head.Set("Retry-After-Ms", strconv.FormatInt(max(1, after.Milliseconds()), 10))
	}
	if f.Status == http.StatusUnauthorized {
		head.Set("WWW-Authenticate", "Bearer")
	}
	_ = x.respond(f.Status, "application/json", x.dialect.ErrorBody(f)) // the client may be gone
	return f
}

// setStatus sets the status that is reported for a request whose client gets none.
func (x *Exchange) setStatus(status int) {
	if !x.out.begun {
		x.out.status = status
	}
}
