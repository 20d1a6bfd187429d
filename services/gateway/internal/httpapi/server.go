package httpapi

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/internal/ingress"
	"github.com/millrace/millrace/services/internal/ratelog"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/transport"
)

// Limits of connections.
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
	// maxStreams bounds the requests of one HTTP/2 connection.
	maxStreams = 256
	// cutOffTimeout bounds the wait for requests that were cut off.
	cutOffTimeout = 5 * time.Second
)

// Config configures a Server.
type Config struct {
	// Dialects are the APIs. The first one answers paths that do not exist.
	Dialects []Dialect
	// Ready returns nil if requests can be served.
	Ready func(ctx context.Context) error
	// TLS secures connections; nil: plaintext. Refuse returns why requests on a TLS connection are
	// refused, or nil; it may be nil itself.
	TLS    *tls.Config
	Refuse func(*tls.ConnectionState) error
	// MaxConnections bounds the connections, and MaxConnectionsPerAddress those of one address;
	// the latter may be 0: no bound.
	MaxConnections, MaxConnectionsPerAddress int
	// MaxBodyBytes bounds a body, and MaxHeldBytes all bodies above 32 KiB whose requests have no
	// answer yet.
	MaxBodyBytes, MaxHeldBytes int64
	// SendStall bounds the time in which a client must read a piece of its answer.
	SendStall time.Duration
	// DrainTimeout bounds the wait for running requests at shutdown.
	DrainTimeout time.Duration
	// Origins are the web origins whose pages may make requests; "*" is any.
	Origins []string
	// Strict refuses fields that would be skipped.
	Strict bool
	// HidesTokens: the tokens of clients are not passed on, because other machines could read them.
	HidesTokens bool
	// StreamKey signs the ids of events, see Exchange.StreamKey; nil: a random one.
	StreamKey []byte
	// Tracer starts the span of each request; nil: none is recorded.
	Tracer trace.Tracer
	// Observer is called for each request of a dialect; nil: nothing is.
	Observer Observer
}

// Observer is called when requests begin and end. It must be safe for concurrent use.
type Observer interface {
	Began(route string)
	// Ended is called once after Began. failure is nil if the request succeeded.
	Ended(route string, status int, failure *Failure, took time.Duration)
}

// Server serves the dialects. New makes it.
type Server struct {
	cfg    Config
	logger hclog.Logger
	lines  ratelog.Limiter
	held   atomic.Int64 // see Config.MaxHeldBytes

	base context.Context // of every request; ends when they are cut off
	cut  context.CancelCauseFunc

	draining atomic.Bool
	mu       struct {
		sync.Mutex
		running int           // requests of dialects
		idle    chan struct{} // closed when none runs; nil unless Serve waits
	}
}

// New returns a Server.
func New(cfg Config, logger hclog.Logger) *Server {
	if cfg.Tracer == nil {
		cfg.Tracer = noop.NewTracerProvider().Tracer("")
	}
	if cfg.StreamKey == nil {
		cfg.StreamKey = make([]byte, sha256.Size)
		_, _ = rand.Read(cfg.StreamKey) // never fails
	}
	s := &Server{cfg: cfg, logger: logger}
	s.base, s.cut = context.WithCancelCause(context.Background())
	return s
}

// stopping is the failure of requests that arrive while the gateway stops, or still run when it
// cuts them off.
func stopping() *Failure {
	return Refuse(codes.Unavailable, "", "the gateway is stopping: try again").because(reason.Stopping)
}

// Serve serves on lis until ctx ends, then stops: probes report it, further requests are refused,
// running ones get DrainTimeout to end, and the rest is cut off. It closes lis. Call it once.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	address := lis.Addr()
	lis = ingress.Limit(lis, ingress.Limits{PerAddress: s.cfg.MaxConnectionsPerAddress, Refused: s.refusedConnection})
	lis = netutil.LimitListener(lis, s.cfg.MaxConnections)
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	h := &http.Server{
		Handler: s.Handler(), TLSConfig: s.cfg.TLS, Protocols: protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		BaseContext: func(net.Listener) context.Context { return s.base },
		ErrorLog:    s.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	ended := make(chan error, 1)
	go func() {
		if s.cfg.TLS != nil {
			ended <- h.ServeTLS(transport.Linger(lis), "", "")
			return
		}
		ended <- h.Serve(lis)
	}()
	rpc.NotifySupervisor(daemon.SdNotifyReady, s.logger)
	defer s.cut(nil)
	select {
	case err := <-ended:
		return fmt.Errorf("serve on %s: %w", address, err)
	case <-ctx.Done():
	}
	s.drain(h)
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", address, err)
	}
	return nil
}

// drain stops the server as Serve says. The port stays open until no request runs, so that probes
// and new requests get an answer.
func (s *Server) drain(h *http.Server) {
	s.logger.Info("stopping", "drain_timeout", s.cfg.DrainTimeout)
	rpc.NotifySupervisor(daemon.SdNotifyStopping, s.logger)
	s.draining.Store(true)
	h.SetKeepAlivesEnabled(false)
	if !s.awaitIdle(s.cfg.DrainTimeout) {
		s.logger.Warn("cutting off running requests", "drain_timeout", s.cfg.DrainTimeout)
		s.cut(stopping())
		if !s.awaitIdle(cutOffTimeout) {
			s.logger.Error("requests still run after they were cut off", "waited", cutOffTimeout)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if h.Shutdown(ctx) != nil {
		_ = h.Close() // cuts off probes that do not read
	}
	s.logger.Info("stopped")
}

// awaitIdle waits until no request of a dialect runs. It returns false after the given time.
func (s *Server) awaitIdle(within time.Duration) bool {
	s.mu.Lock()
	if s.mu.running == 0 {
		s.mu.Unlock()
		return true
	}
	idle := make(chan struct{})
	s.mu.idle = idle
	s.mu.Unlock()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
		return false
	}
}

// enter counts a running request.
func (s *Server) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.running++
}

// leave ends what enter began.
func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.running--; s.mu.running == 0 && s.mu.idle != nil {
		close(s.mu.idle)
		s.mu.idle = nil
	}
}

// Running returns how many requests of dialects run.
func (s *Server) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.running
}

// HeldBytes returns the bytes of bodies that are held, see Config.MaxHeldBytes.
func (s *Server) HeldBytes() int64 { return s.held.Load() }

// Able reports whether the server accepts requests, with a line of text for probes.
func (s *Server) Able(ctx context.Context) (ok bool, text string) {
	if s.draining.Load() {
		return false, "stopping\n"
	}
	if err := s.cfg.Ready(ctx); err != nil {
		return false, "no model server is ready\n"
	}
	return true, "ready\n"
}

// refusedConnection logs a connection that a limit closed.
func (s *Server) refusedConnection(from net.Addr, why error) {
	if suppressed, ok := s.lines.Allow(why.Error()); ok {
		s.logger.Warn("connection closed", "peer", from.String(), "error", why, "closed_without_a_line", suppressed)
	}
}
