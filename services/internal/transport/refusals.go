package transport

import (
	"net"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/services/internal/flood"
)

// refusals writes one line for each connection that is refused, and of a flood the count.
type refusals struct {
	logger hclog.Logger
	bound  flood.Bound
}

// tell says of a connection why it was refused.
func (r *refusals) tell(from net.Addr, err error) {
	untold, ok := r.bound.Tell("")
	if !ok {
		return
	}
	fields := []any{"peer", from.String(), "error", err}
	if untold > 0 {
		fields = append(fields, "refused_without_a_line", untold)
	}
	r.logger.Warn("connection refused", fields...)
}
