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
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/internal/intake"
)

// cutOffTimeout bounds the wait for handlers whose calls have been cut off.
const cutOffTimeout = 5 * time.Second

// Listen opens "host:port", "unix:PATH" or "unix:///PATH". A socket file that nobody listens on is replaced.
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
		return nil // not there, or not ours to remove: listening says so
	}
	var d net.Dialer
	if conn, err := d.DialContext(ctx, "unix", path); err == nil {
		return errors.Join(fmt.Errorf("listen on %s: another process serves there", path), conn.Close())
	}
	return os.Remove(path)
}

// unixPath is the path of a "unix:" address.
func unixPath(address string) (string, bool) {
	path, ok := strings.CutPrefix(address, "unix:")
	return strings.TrimPrefix(path, "//"), ok
}

// Serve serves on lis until ctx ends, then stops: health flips to NOT_SERVING, no new connection or call is taken,
// running calls get DrainTimeout to end, and what is left is cut off. It returns nil after such a stop, when no
// handler runs any more or the last ones ignored the end of their contexts for 5 s, and the listener's error otherwise.
// It closes lis. Call it once. A supervisor of the process is told when it begins and when it begins to stop.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	s.serveAll()
	defer s.serveWithin()()
	lis = s.limited(lis)
	failed := make(chan error, 1)
	go func() { failed <- s.grpc.Serve(lis) }()
	tell(daemon.SdNotifyReady, s.logger)
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

// limited bounds the connections of a listener. Of those that are closed for it a few lines are written.
func (s *Server) limited(lis net.Listener) net.Listener {
	return intake.Limit(lis, intake.Limits{
		PerAddress: s.cfg.MaxConnectionsPerAddress, Unsettled: maxUnsettled,
		Refused: func(from net.Addr, why error) {
			s.refused.limit(why)
			if untold, ok := s.lines.Tell(why.Error()); ok {
				s.logger.Warn("connection closed", "peer", from.String(), "error", why, "closed_without_a_line", untold)
			}
		},
	})
}

// serveAll makes every service that has no health status yet SERVING.
func (s *Server) serveAll() {
	known, err := s.health.List(context.Background(), nil)
	if err != nil { // only with more services than it lists
		return
	}
	for name := range s.grpc.GetServiceInfo() {
		if known.GetStatuses()[name] == nil {
			s.SetServiceReady(name, true)
		}
	}
}

// stop ends the server as Serve says.
func (s *Server) stop() {
	s.logger.Info("stopping", "drain_timeout", s.cfg.DrainTimeout)
	tell(daemon.SdNotifyStopping, s.logger)
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
