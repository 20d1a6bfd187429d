package vectors

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestUrgentIgnoresAgesOfCodebooks(t *testing.T) {
	delta := func(trainings uint32, change func(*pb.CodebookInfo)) *pb.WorkerDelta {
		b := &pb.CodebookInfo{Name: "k", CodebookDigest: "d", State: pb.CodebookState_CODEBOOK_STATE_READY}
		change(b)
		return &pb.WorkerDelta{Vectors: &pb.VectorStatus{Trainings: trainings, MaxTrainings: 2, Codebooks: []*pb.CodebookInfo{b}}}
	}
	before := &pb.WorkerReport{Vectors: delta(1, func(*pb.CodebookInfo) {}).GetVectors()}
	readings := delta(2, func(*pb.CodebookInfo) {})
	readings.ReadingsOnly = true
	for name, tc := range map[string]struct {
		delta *pb.WorkerDelta
		want  bool
	}{
		"a codebook's age":          {delta(1, func(b *pb.CodebookInfo) { b.VerifiedAge = durationpb.New(time.Hour) }), false},
		"a codebook's state":        {delta(1, func(b *pb.CodebookInfo) { b.State = pb.CodebookState_CODEBOOK_STATE_FAILED }), true},
		"a codebook's digest":       {delta(1, func(b *pb.CodebookInfo) { b.CodebookDigest = "e" }), true},
		"a training more":           {delta(2, func(*pb.CodebookInfo) {}), true},
		"no codebook any more":      {&pb.WorkerDelta{Vectors: &pb.VectorStatus{Trainings: 1, MaxTrainings: 2}}, true},
		"nothing of vectors":        {&pb.WorkerDelta{State: pb.WorkerState_WORKER_STATE_DRAINING}, false},
		"readings, whatever is set": {readings, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, Urgent(before, tc.delta)) })
	}
}
