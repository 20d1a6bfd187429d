package transport

import (
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// linesPerSecond bounds the lines about refused connections, so that who makes thousands fills no disk.
const linesPerSecond = 10

// refusals writes one line for each connection that is refused, and of a flood the count.
type refusals struct {
	logger hclog.Logger

	mu     sync.Mutex
	since  time.Time // guarded by mu; when the second began
	lines  int       // guarded by mu; written in it
	untold int       // guarded by mu; refused without a line since the last one
}

// tell says of a connection why it was refused.
func (r *refusals) tell(from net.Addr, err error) {
	r.mu.Lock()
	if now := time.Now(); now.Sub(r.since) >= time.Second {
		r.since, r.lines = now, 0
	}
	if r.lines++; r.lines > linesPerSecond {
		r.untold++
		r.mu.Unlock()
		return
	}
	untold := r.untold
	r.untold = 0
	r.mu.Unlock()
	fields := []any{"peer", from.String(), "error", err}
	if untold > 0 {
		fields = append(fields, "refused_without_a_line", untold)
	}
	r.logger.Warn("connection refused", fields...)
}
