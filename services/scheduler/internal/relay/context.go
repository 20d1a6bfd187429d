package relay

import (
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
)

// Workers of one class and digest may have different context lengths. The answer to a call must not
// depend on which of them is chosen: it is as long as the longest context allows that serves the
// model when the call is placed. Three rules ensure that (docs/decisions/072):
//
//   - route chooses only workers whose context likely holds the whole answer.
//   - A worker with a shorter context receives the longest one as context_length. It then computes
//     the same max_tokens as any other worker, or refuses before it computes anything, and the call
//     moves to a worker with a longer context.
//   - From `started` on the length is known. Every further attempt states it and goes only to
//     workers that hold it.

// contextFor returns the context_length to add to an attempt's request; 0: none. A stream that has
// begun states max_tokens instead.
func (c *call) contextFor(lease *admission.Lease) int64 {
	if c.log == nil || c.requestContext > 0 || c.resumable() || lease.Context == 0 || lease.Context >= lease.Longest {
		return 0
	}
	return lease.Longest
}

// contextNeeded returns the shortest context to which the attempt may be handed over before it has
// started.
func (c *call) contextNeeded(lease *admission.Lease) int64 {
	return max(c.minContext, min(c.route.Length, lease.Longest))
}

// contextRefused records that the worker of the attempt refused the request for its context.
func (a *attempt) contextRefused(err error) {
	refused := a.lease.Context
	if r := rpc.Reason(err); a.addedContext > 0 && r != reason.ContextTooShort && r != reason.UnknownField {
		refused = a.addedContext // the worker judged the request by the context that was added
	}
	a.minContext = max(a.minContext, refused+1)
}
