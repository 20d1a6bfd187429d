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

// Limits of the server: whoever connects and does not speak, or reads slowly, holds one of few connections for a short while.
const (
	readTimeout    = 5 * time.Second
	writeTimeout   = 10 * time.Second
	maxHeaderBytes = 16 << 10
	maxConnections = 64
	maxScrapes     = 4 // at the same time; more are answered 503
	// stopTimeout is how long answers under way may take when the process ends.
	stopTimeout = time.Second
)

// Page is what Serve answers with.
type Page struct {
	// Measures are gathered at each scrape.
	Measures prometheus.Gatherer
	// Alive is whether a restart would mend nothing, Able whether the process asks for requests; says is the answer's text, whose
	// lines name what does not hold.
	Alive, Able func() (is bool, says string)
	// Secure serves all of it over TLS, and measures to those whom it vouches for alone; nil: in plaintext, to everybody.
	Secure Secure
}

// Registry is collectors of a process, together with those of its Go runtime and of itself as the system sees it.
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

// Handler answers to GET and HEAD:
//
//	/metrics  every measure, as Prometheus reads it
//	/healthz  200 while the process is alive, else 503
//	/readyz   200 while it is able to serve, else 503
func (p Page) Handler(logger hclog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.guarded(promhttp.HandlerFor(p.Measures, promhttp.HandlerOpts{
		ErrorLog:            logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Warn}),
		ErrorHandling:       promhttp.ContinueOnError, // one measure that cannot be read hides no other
		MaxRequestsInFlight: maxScrapes,
	})))
	mux.HandleFunc("GET /healthz", probe(p.Alive))
	mux.HandleFunc("GET /readyz", probe(p.Able))
	return mux
}

// probe answers as good says.
func probe(good func() (bool, string)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		is, says := good()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if !is {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, says) // who asked may be gone
	}
}

// Serve answers on lis until ctx ends, and closes it.
func (p Page) Serve(ctx context.Context, lis net.Listener, logger hclog.Logger) error {
	lis = netutil.LimitListener(lis, maxConnections)
	if p.Secure != nil {
		lis = p.Secure.Listen(lis) // outermost: the server times handshakes, and tells handlers who is there
	}
	if err := serve(ctx, lis, p.Handler(logger), writeTimeout, logger); err != nil {
		return fmt.Errorf("serve measures on %s: %w", lis.Addr(), err)
	}
	return nil
}

// serve answers with a handler, each time within so long, on a listener that bounds connections.
func serve(ctx context.Context, lis net.Listener, handler http.Handler, within time.Duration, logger hclog.Logger) error {
	s := &http.Server{
		Handler: handler, ReadTimeout: readTimeout, WriteTimeout: within,
		MaxHeaderBytes: maxHeaderBytes, ErrorLog: logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	// Clients that keep a connection for their next question would hold all of them, and a probe that gets none finds a process
	// dead that is well. A new connection for each question is cheap at the rate of probes and scrapes.
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
		_ = s.Close() // cuts off who does not read
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
