package loading

import (
	"context"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
)

// awaitReady waits until the fleet's snapshots show the model as serving on the worker, so that a caller who is told
// that it is loaded can use it through this scheduler.
func awaitReady(ctx context.Context, f Fleet, id, model string) {
	fleet.Await(ctx, f, func(members []fleet.Member) bool {
		for i := range members {
			m := &members[i]
			if m.Report.GetWorkerId() == id && m.Model(model).GetState() == pb.ModelState_MODEL_STATE_READY {
				return true
			}
		}
		return false
	})
}

// awaitGone waits until no snapshot shows the model on the worker any more, so that what a caller lists or asks for
// after it is told that the model is unloaded agrees with it.
func awaitGone(ctx context.Context, f Fleet, id, model string) {
	fleet.Await(ctx, f, func(members []fleet.Member) bool {
		for i := range members {
			m := &members[i]
			if m.Connected && m.Report.GetWorkerId() == id && m.Model(model) != nil {
				return false
			}
		}
		return true
	})
}
