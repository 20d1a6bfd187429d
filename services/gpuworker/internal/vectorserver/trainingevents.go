package vectorserver

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/vectors"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// trainingEvents sends the events of a training to its caller.
type trainingEvents struct {
	call *trainingCall
	ctx  context.Context
}

// Progress implements vectors.Events.
func (e *trainingEvents) Progress(p vectors.Progress) error {
	return e.call.send(e.ctx, progressOfTraining(p))
}

// Checkpoint implements vectors.Events.
func (e *trainingEvents) Checkpoint(updates int64, state []byte) error {
	for offset := 0; offset < len(state); offset += pieceBytes {
		piece := &pb.TrainingCheckpoint{
			Iteration: uint64(updates), Offset: uint64(offset), Total: uint64(len(state)), Chunk: state[offset:min(offset+pieceBytes, len(state))],
		}
		m := &pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Checkpoint{Checkpoint: piece}}
		if err := e.call.send(e.ctx, m); err != nil {
			return err
		}
	}
	return nil
}

var phaseOf = map[engine.Phase]pb.TrainingPhase{
	engine.Writing: pb.TrainingPhase_TRAINING_PHASE_WRITING, engine.Seeding: pb.TrainingPhase_TRAINING_PHASE_SEEDING,
	engine.Assigning: pb.TrainingPhase_TRAINING_PHASE_ASSIGNING, engine.Updating: pb.TrainingPhase_TRAINING_PHASE_UPDATING,
	engine.Done: pb.TrainingPhase_TRAINING_PHASE_UPDATING,
}

func progressOfTraining(p vectors.Progress) *pb.TrainCodebookResponse {
	out := &pb.TrainingProgress{Phase: phaseOf[p.Phase], RowsDone: p.RowsDone, RowsTotal: p.RowsTotal}
	if r := p.Round; r != nil {
		out.Iteration, out.Energy, out.EnergyDelta, out.Changes = count(r.Iteration), &r.Energy, p.Delta, count(r.Changes)
		out.Empty, out.Merged, out.Split, out.Imbalance = count(r.Empty), count(r.Merged), count(r.Split), &r.Imbalance
		if r.Temperature > 0 {
			out.Temperature = &r.Temperature
		}
		out.Codewords = count(p.Codewords - r.Empty)
	}
	if p.ETA > 0 {
		out.Eta = durationpb.New(p.ETA)
	}
	return &pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Progress{Progress: out}}
}

func count(n int64) *uint64 {
	u := uint64(n)
	return &u
}

// received describes how many rows have come.
func received(done, of uint64) string {
	return fmt.Sprintf("%d of %d declared rows have come", done, of)
}
