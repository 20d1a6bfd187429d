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

// Limits of the server. A page has one connection for what it follows and one for each call beside that.
const (
	readTimeout    = 10 * time.Second // a request's header, and then its body
	writeTimeout   = 30 * time.Second // one message to a browser that reads slowly
	idleTimeout    = time.Minute
	maxHeaderBytes = 16 << 10
	maxConnections = 128
	// stopTimeout is how long answers under way may take when the process ends; their calls have ended before.
	stopTimeout = time.Second
)

// Config is what the console is made of.
type Config struct {
	// Conn leads to the scheduler's server.
	Conn grpc.ClientConnInterface
	// TLS makes connections; nil: they are plaintext, and stay on this machine.
	TLS *tls.Config
	// Refuse says of a connection over TLS why nothing is answered on it.
	Refuse func(*tls.ConnectionState) error
}

// Serve answers on lis until ctx ends, and closes it.
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
		_ = s.Close() // whose answers are still under way gets no more of them
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the console on %s: %w", lis.Addr(), err)
	}
	return nil
}

// Handler is what Serve answers with.
func Handler(cfg Config) http.Handler {
	mux := http.NewServeMux()
	servePage(mux)
	mux.Handle("POST /api/{method}", &bridge{cfg.Conn})
	return guard(cfg, mux)
}
