package loading

import (
	"context"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
)

// visibleTimeout bounds the wait for a worker's report of what it has told to be loaded or unloaded. A worker that does
// not report it in time is no reason to fail.
const visibleTimeout = 2 * time.Second

// awaitReady waits until the fleet's snapshots show the model as serving on the worker, so that a caller who is told
// that it is loaded can use it through this scheduler.
func awaitReady(ctx context.Context, f Fleet, id, model string) {
	await(ctx, f, func(members []fleet.Member) bool {
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
	await(ctx, f, func(members []fleet.Member) bool {
		for i := range members {
			m := &members[i]
			if m.Connected && m.Report.GetWorkerId() == id && m.Model(model) != nil {
				return false
			}
		}
		return true
	})
}

// await waits until a snapshot's members hold, ctx ends, or visibleTimeout is over.
func await(ctx context.Context, f Fleet, holds func([]fleet.Member) bool) {
	ctx, cancel := context.WithTimeout(ctx, visibleTimeout)
	defer cancel()
	for {
		snapshot := f.Snapshot()
		if holds(snapshot.Members) {
			return
		}
		select {
		case <-snapshot.Next:
		case <-ctx.Done():
			return
		}
	}
}
