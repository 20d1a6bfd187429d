package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/millrace/millrace/gpuworker/health"
)

// Limits of the server: whoever connects and does not speak, or reads slowly, holds one of few connections for a short while.
const (
	readTimeout    = 5 * time.Second
	writeTimeout   = 10 * time.Second
	maxHeaderBytes = 16 << 10
	maxConnections = 64
	maxScrapes     = 4 // at the same time; more are answered 503
	// stopTimeout is how long answers under way may take when the worker ends.
	stopTimeout = time.Second
	// lookLimit is the age of the worker's last look at itself from which on it counts as hung: a look is made ten times a second,
	// and waits for nothing but the device's readings.
	lookLimit = 10 * time.Second
)

// Serve answers on lis until ctx ends, and closes it:
//
//	/metrics  every measure, as Prometheus reads it
//	/healthz  200 while a restart would mend nothing: it is 503 when the device is lost, a step hangs, or the worker's own watch does
//	/readyz   200 while the worker asks for requests
//
// The last two name the checks that do not hold. Nothing but GET and HEAD is answered.
func (m *Metrics) Serve(ctx context.Context, lis net.Listener, from Source, logger hclog.Logger) error {
	handler, err := m.handler(from, logger)
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	s := &http.Server{
		Handler: handler, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		MaxHeaderBytes: maxHeaderBytes, ErrorLog: logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	// Clients that keep a connection for their next question would hold all of them, and a probe that gets none finds the worker
	// dead that is well. A new connection for each question is cheap at the rate of probes and scrapes.
	s.SetKeepAlivesEnabled(false)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(netutil.LimitListener(lis, maxConnections)) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve measures on %s: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if s.Shutdown(stopping) != nil {
		_ = s.Close() // cuts off who does not read
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve measures on %s: %w", lis.Addr(), err)
	}
	return nil
}

func (m *Metrics) handler(from Source, logger hclog.Logger) (http.Handler, error) {
	registry, err := m.registry(from)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog:            logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Warn}),
		ErrorHandling:       promhttp.ContinueOnError, // one measure that cannot be read hides no other
		MaxRequestsInFlight: maxScrapes,
	}))
	mux.HandleFunc("GET /healthz", probe(from, func(l *health.Look) bool {
		return l == nil || l.State != health.NotReady && time.Since(l.At) < lookLimit
	}))
	mux.HandleFunc("GET /readyz", probe(from, func(l *health.Look) bool {
		return l != nil && serves(l.State) && time.Since(l.At) < lookLimit
	}))
	return mux, nil
}

// probe answers by what good says of the last look, which is nil before the first.
func probe(from Source, good func(*health.Look) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		look := from.Look()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if !good(look) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, describe(look)) // who asked may be gone
	}
}

// describe is the state and the checks that do not hold, a line each.
func describe(l *health.Look) string {
	if l == nil {
		return "starting\n"
	}
	var out strings.Builder
	fmt.Fprintln(&out, l.State)
	if age := time.Since(l.At); age >= lookLimit {
		fmt.Fprintf(&out, "the worker has not looked at itself for %v\n", age.Round(time.Second))
	}
	for _, c := range l.Checks {
		if !c.OK {
			fmt.Fprintf(&out, "%s: %s\n", c.Name, c.Message)
		}
	}
	return out.String()
}
