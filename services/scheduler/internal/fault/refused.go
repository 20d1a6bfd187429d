package fault

import (
	"slices"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// ofCallers are the reasons of those who may not call, or have called too much.
var ofCallers = []string{
	reason.CallerNotAllowed, reason.NoToken, reason.UnknownToken, reason.TokenExpired, reason.TokenRevoked, reason.RightMissing,
	reason.OtherTenant, reason.PriorityTooHigh, reason.TooManyRequests, reason.TooManyTokens, reason.TooManyStreams,
}

// RefusesScheduler is whether a worker's status says that this scheduler may not call it. The caller of the scheduler must not take
// that for a word about itself.
func RefusesScheduler(err error) bool {
	return rpc.Domain(err) == rpc.WorkerDomain && slices.Contains(ofCallers, rpc.Reason(err))
}
