package monitor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
)

// Limits of the server. They bound how long a slow or silent client holds one of the few
// connections.
const (
	readTimeout    = 5 * time.Second
	writeTimeout   = 10 * time.Second
	maxHeaderBytes = 16 << 10
	maxConnections = 64
	maxScrapes     = 4 // concurrent scrapes; more get 503
	// stopTimeout bounds running requests when the process ends.
	stopTimeout = time.Second
)

// Page is what Serve serves.
type Page struct {
	// Metrics are gathered at each scrape.
	Metrics prometheus.Gatherer
	// Alive reports whether the process works, so that a restart would not help. Able reports
	// whether it accepts requests. text is the response, whose lines name what does not hold.
	Alive, Able func() (ok bool, text string)
	// Secure serves everything over TLS, and metrics only to callers that it allows. nil:
	// plaintext, to everyone.
	Secure Secure
}

// Registry returns a registry of the given collectors, Go's runtime metrics and the process
// metrics.
func Registry(own ...prometheus.Collector) (*prometheus.Registry, error) {
	r := prometheus.NewRegistry()
	own = append(own, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, c := range own {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Handler serves GET and HEAD:
//
//	/metrics  every metric in the format of Prometheus
//	/healthz  200 while the process is alive, else 503
//	/readyz   200 while it is able to serve, else 503
func (p Page) Handler(logger hclog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.guarded(promhttp.HandlerFor(p.Metrics, promhttp.HandlerOpts{
		ErrorLog: logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Warn}),
		// a metric that cannot be read hides no other
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
	})))
	mux.HandleFunc("GET /healthz", probe(p.Alive))
	mux.HandleFunc("GET /readyz", probe(p.Able))
	return mux
}

// probe returns a handler that reports the result of good.
func probe(good func() (bool, string)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		ok, text := good()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, text) // the client may be gone
	}
}

// Serve serves on lis until ctx ends, and closes lis.
func (p Page) Serve(ctx context.Context, lis net.Listener, logger hclog.Logger) error {
	lis = netutil.LimitListener(lis, maxConnections)
	if p.Secure != nil {
		// outermost, so that the server's timeouts cover handshakes and handlers see the
		// certificate
		lis = p.Secure.Listen(lis)
	}
	if err := serve(ctx, lis, p.Handler(logger), writeTimeout, logger); err != nil {
		return fmt.Errorf("serve metrics on %s: %w", lis.Addr(), err)
	}
	return nil
}

// serve serves a handler, each response within the given time, on a listener that bounds
// connections.
func serve(ctx context.Context, lis net.Listener, handler http.Handler, within time.Duration, logger hclog.Logger) error {
	s := &http.Server{
		Handler: handler, ReadTimeout: readTimeout, WriteTimeout: within,
		MaxHeaderBytes: maxHeaderBytes, ErrorLog: logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	// Clients that keep their connections would hold all of them, and a probe that gets none would
	// consider a healthy process dead. A new connection for each request is cheap at the rate of
	// probes and scrapes.
	s.SetKeepAlivesEnabled(false)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(lis) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if s.Shutdown(stopping) != nil {
		_ = s.Close() // cuts off clients that do not read
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
