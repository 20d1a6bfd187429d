package relay

import (
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
)

// Workers of one class and digest may have different contexts. A call's answer must not depend on which of them is chosen: it is as
// long as the longest context allows that serves the model when the call is placed. route chooses only workers that likely hold such an
// answer. A worker with a shorter context is given the longest one as context_length: it computes the same max_tokens as any other, or
// refuses before it computes anything; then the call goes to a worker with a longer context. From `started` on the length is known, and
// every further attempt states it and goes only to workers that hold it.

// contextFor returns the context_length that an attempt's request is given; 0: it needs none. A stream that has begun states
// max_tokens instead.
func (c *call) contextFor(lease *admission.Lease) int64 {
	if c.log == nil || c.stated > 0 || c.resumable() || lease.Context == 0 || lease.Context >= lease.Longest {
		return 0
	}
	return lease.Longest
}

// needs returns the shortest context to which the attempt under way may be handed over before it has started.
func (c *call) needs(lease *admission.Lease) int64 {
	return max(c.longer, min(c.route.Length, lease.Longest))
}

// outgrown notes that the worker of the last attempt had too short a context.
func (a *attempt) outgrown(err error) {
	judged := a.lease.Context
	if r := rpc.Reason(err); a.context > 0 && r != reason.ContextTooShort && r != reason.UnknownField {
		judged = a.context // the request does not fit the context that it was given
	}
	a.longer = max(a.longer, judged+1)
}
