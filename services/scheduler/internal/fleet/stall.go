package fleet

import (
	"fmt"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// stall judges a worker's steps by the worker's own numbers: how long the running one has run, beside the bound that it declares. A
// long silent prefill is many steps, each within the bound.
//
// One message beyond the bound may be of a process that was itself stopped for a while and goes on now; hung is a step that is
// beyond it in two messages in a row, and older in the second.
type stall struct {
	beyond time.Duration // age of the running step in the last message, if it was beyond its bound; else 0
	hangs  error         // nil unless its step hangs
}

// take judges a message. changed: the verdict is another one; fresh: it is that a step hangs, and was not.
func (s *stall) take(p *pb.StepProgress) (changed, fresh bool) {
	age, bound := p.GetRunningStepAge().AsDuration(), p.GetStepBound().AsDuration()
	last := s.beyond
	if bound <= 0 || age <= bound {
		changed = s.hangs != nil
		*s = stall{}
		return changed, false
	}
	s.beyond = age
	if last == 0 || age <= last || s.hangs != nil {
		return false, false
	}
	s.hangs = fmt.Errorf("%w: for %v, and its bound is %v: restart it unless it ends by itself", ErrStalled,
		age.Round(time.Millisecond), bound.Round(time.Millisecond))
	return true, true
}
