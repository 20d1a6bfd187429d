package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/internal/ingress"
)

// cutOffTimeout bounds the wait for handlers whose calls were cut off.
const cutOffTimeout = 5 * time.Second

// Listen listens on "host:port", "unix:PATH" or "unix:///PATH". It replaces a socket file on which
// no process listens.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	network := "tcp"
	if path, ok := unixPath(address); ok {
		network, address = "unix", path
		if err := removeStale(ctx, path); err != nil {
			return nil, err
		}
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return lis, nil
}

// removeStale removes a socket that refuses connections.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	if socket := err == nil && info.Mode()&os.ModeSocket != 0; !socket {
		return nil // not there, or not a socket: listening returns the error
	}
	var d net.Dialer
	if conn, err := d.DialContext(ctx, "unix", path); err == nil {
		return errors.Join(fmt.Errorf("listen on %s: another process serves there", path), conn.Close())
	}
	return os.Remove(path)
}

// unixPath returns the path of a "unix:" address.
func unixPath(address string) (string, bool) {
	path, ok := strings.CutPrefix(address, "unix:")
	return strings.TrimPrefix(path, "//"), ok
}

// Serve serves on lis until ctx ends, then stops: health becomes NOT_SERVING, new connections and
// calls are refused, running calls get DrainTimeout to end, and the rest is cut off.
//
// It returns nil after such a stop, when all handlers have returned or have ignored the end of
// their contexts for 5 s. It returns the listener's error otherwise. It closes lis. It must be
// called once. It notifies the process supervisor at the beginning and when it begins to stop.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	s.setDefaultHealth()
	defer s.serveInProcess()()
	lis = s.limitConnections(lis)
	failed := make(chan error, 1)
	go func() { failed <- s.grpc.Serve(lis) }()
	NotifySupervisor(daemon.SdNotifyReady, s.logger)
	select {
	case err := <-failed:
		s.drain()
		s.health.Shutdown()
		s.grpc.Stop()
		return fmt.Errorf("serve on %s: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	s.stop()
	if err := <-failed; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve on %s: %w", lis.Addr(), err)
	}
	return nil
}

// limitConnections bounds the connections of lis. It logs some of those that it closes.
func (s *Server) limitConnections(lis net.Listener) net.Listener {
	return ingress.Limit(lis, ingress.Limits{
		PerAddress: s.cfg.MaxConnectionsPerAddress, Pending: maxPending,
		Refused: func(from net.Addr, why error) {
			s.refusals.countLimit(why)
			if suppressed, ok := s.lines.Allow(why.Error()); ok {
				s.logger.Warn("connection closed", "peer", from.String(), "error", why, "closed_without_a_line", suppressed)
			}
		},
	})
}

// setDefaultHealth makes every service without a health status SERVING.
func (s *Server) setDefaultHealth() {
	known, err := s.health.List(context.Background(), nil)
	if err != nil { // only if there are more services than List returns
		return
	}
	for name := range s.grpc.GetServiceInfo() {
		if known.GetStatuses()[name] == nil {
			s.SetServiceReady(name, true)
		}
	}
}

// stop stops the server as described at Serve.
func (s *Server) stop() {
	s.logger.Info("stopping", "drain_timeout", s.cfg.DrainTimeout)
	NotifySupervisor(daemon.SdNotifyStopping, s.logger)
	s.health.Shutdown()
	s.drain()
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.grpc.GracefulStop()
	}()
	timer := time.NewTimer(s.cfg.DrainTimeout)
	defer timer.Stop()
	select {
	case <-graceful:
	case <-timer.C:
		s.logger.Warn("cutting off running calls", "drain_timeout", s.cfg.DrainTimeout)
		go s.grpc.Stop()
		select {
		case <-graceful:
		case <-time.After(cutOffTimeout):
			s.logger.Error("handlers still run after their calls were cut off", "waited", cutOffTimeout)
			return
		}
	}
	s.logger.Info("stopped")
}

// NotifySupervisor reports the server's state to a supervisor such as systemd with Type=notify,
// which passes its socket in $NOTIFY_SOCKET. It does nothing if that is not set. A failure is
// logged only: the server itself is not affected.
func NotifySupervisor(state string, logger hclog.Logger) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		logger.Warn("the supervisor was not notified", "state", state, "error", err)
	}
}
