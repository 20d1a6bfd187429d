package console

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/internal/transport"
)

// Limits of the server. A page has one connection for what it follows and one for each call.
const (
	readTimeout    = 10 * time.Second // a request's header, and then its body
	writeTimeout   = 30 * time.Second // one message to a browser that reads slowly
	idleTimeout    = time.Minute
	maxHeaderBytes = 16 << 10
	maxConnections = 128
	// stopTimeout bounds running responses when the process ends. Their calls have ended before.
	stopTimeout = time.Second
)

// Config configures the console.
type Config struct {
	// Conn is a connection to the scheduler's server.
	Conn grpc.ClientConnInterface
	// TLS secures connections; nil: plaintext, on this machine only.
	TLS *tls.Config
	// Refuse returns why requests on a TLS connection are refused, or nil.
	Refuse func(*tls.ConnectionState) error
}

// Serve serves on lis until ctx ends, and closes lis.
func Serve(ctx context.Context, lis net.Listener, cfg Config, logger hclog.Logger) error {
	s := &http.Server{
		Handler: Handler(cfg), TLSConfig: cfg.TLS, ReadHeaderTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	bounded := netutil.LimitListener(lis, maxConnections)
	ended := make(chan error, 1)
	go func() {
		if cfg.TLS != nil {
			ended <- s.ServeTLS(transport.Linger(bounded), "", "")
			return
		}
		ended <- s.Serve(bounded)
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("serve the console on %s: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if s.Shutdown(stopping) != nil {
		_ = s.Close() // cuts off responses that are still running
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the console on %s: %w", lis.Addr(), err)
	}
	return nil
}

// Handler returns the handler that Serve uses.
func Handler(cfg Config) http.Handler {
	mux := http.NewServeMux()
	servePage(mux)
	mux.Handle("POST /api/{method}", &bridge{cfg.Conn})
	return guard(cfg, mux)
}
