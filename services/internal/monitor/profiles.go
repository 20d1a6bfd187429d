package monitor

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/net/netutil"
)

// profileTimeout bounds one profile or trace: the longest that may be requested, and the time to
// write it.
const profileTimeout = 5 * time.Minute

// Profiles serves /debug/pprof/ on lis until ctx ends, and closes lis. Only this machine must be
// able to reach lis.
func Profiles(ctx context.Context, lis net.Listener, logger hclog.Logger) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	// A page of another origin in a browser on this machine must learn nothing, whatever name it
	// uses for this address.
	if err := serve(ctx, netutil.LimitListener(lis, maxConnections), ownHost(mux), profileTimeout, logger); err != nil {
		return fmt.Errorf("serve profiles on %s: %w", lis.Addr(), err)
	}
	return nil
}

// ownHost refuses requests whose host is not a loopback address, for example a name that was
// rebound to this machine.
func ownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if _, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && host != "localhost" && !loopback(net.JoinHostPort(host, "0")) {
			http.Error(w, "use a loopback address", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
