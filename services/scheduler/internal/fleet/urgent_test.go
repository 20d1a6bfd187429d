package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestWhatIsUrgentInADelta(t *testing.T) {
	model := func(change func(*pb.ModelStatus)) []*pb.ModelStatus {
		m := &pb.ModelStatus{Name: "m", ModelDigest: "d", State: pb.ModelState_MODEL_STATE_READY, ContextLength: 100}
		change(m)
		return []*pb.ModelStatus{m}
	}
	checks := func(name, message string, ok bool) []*pb.HealthCheck {
		return []*pb.HealthCheck{{Name: name, Message: message, Ok: ok}}
	}
	vectors := func(trainings uint32, change func(*pb.CodebookInfo)) *pb.VectorStatus {
		b := &pb.CodebookInfo{Name: "k", CodebookDigest: "d", State: pb.CodebookState_CODEBOOK_STATE_READY}
		change(b)
		return &pb.VectorStatus{Trainings: trainings, MaxTrainings: 2, Codebooks: []*pb.CodebookInfo{b}}
	}
	before := &pb.WorkerReport{Vectors: vectors(1, func(*pb.CodebookInfo) {}), Models: model(func(*pb.ModelStatus) {}), Checks: checks("leaks", "2 buffers", false)}
	for name, tc := range map[string]struct {
		delta *pb.WorkerDelta
		want  bool
	}{
		"numbers":                   {&pb.WorkerDelta{Load: &pb.LoadStatus{Running: 3}}, false},
		"a state":                   {&pb.WorkerDelta{State: pb.WorkerState_WORKER_STATE_DRAINING}, true},
		"files":                     {&pb.WorkerDelta{FilesChanged: true}, true},
		"a model's age":             {&pb.WorkerDelta{ModelsChanged: true, Models: model(func(m *pb.ModelStatus) { m.VerifiedAge = durationpb.New(time.Hour) })}, false},
		"a model's state":           {&pb.WorkerDelta{ModelsChanged: true, Models: model(func(m *pb.ModelStatus) { m.State = pb.ModelState_MODEL_STATE_FAILED })}, true},
		"a model's digest":          {&pb.WorkerDelta{ModelsChanged: true, Models: model(func(m *pb.ModelStatus) { m.ModelDigest = "e" })}, true},
		"a model's class":           {&pb.WorkerDelta{ModelsChanged: true, Models: model(func(m *pb.ModelStatus) { m.ClassId = "c" })}, true},
		"a model's context":         {&pb.WorkerDelta{ModelsChanged: true, Models: model(func(m *pb.ModelStatus) { m.ContextLength = 7 })}, true},
		"a model's problem":         {&pb.WorkerDelta{ModelsChanged: true, Models: model(func(m *pb.ModelStatus) { m.Problem = "p" })}, true},
		"a model's places":          {&pb.WorkerDelta{ModelsChanged: true, Models: model(func(m *pb.ModelStatus) { m.Loaded = &pb.LoadResult{MaxSequences: 4} })}, true},
		"a model less":              {&pb.WorkerDelta{ModelsChanged: true}, true},
		"a codebook's age":          {&pb.WorkerDelta{Vectors: vectors(1, func(b *pb.CodebookInfo) { b.VerifiedAge = durationpb.New(time.Hour) })}, false},
		"a codebook's state":        {&pb.WorkerDelta{Vectors: vectors(1, func(b *pb.CodebookInfo) { b.State = pb.CodebookState_CODEBOOK_STATE_FAILED })}, true},
		"a codebook's digest":       {&pb.WorkerDelta{Vectors: vectors(1, func(b *pb.CodebookInfo) { b.CodebookDigest = "e" })}, true},
		"a training more":           {&pb.WorkerDelta{Vectors: vectors(2, func(*pb.CodebookInfo) {})}, true},
		"no codebook any more":      {&pb.WorkerDelta{Vectors: &pb.VectorStatus{Trainings: 1, MaxTrainings: 2}}, true},
		"a list that is not sent":   {&pb.WorkerDelta{}, false},
		"a check's words":           {&pb.WorkerDelta{ChecksChanged: true, Checks: checks("leaks", "3 buffers", false)}, false},
		"a check that holds again":  {&pb.WorkerDelta{ChecksChanged: true, Checks: checks("leaks", "", true)}, true},
		"another check":             {&pb.WorkerDelta{ChecksChanged: true, Checks: checks("frees", "2 buffers", false)}, true},
		"readings, whatever is set": {&pb.WorkerDelta{ReadingsOnly: true, ModelsChanged: true}, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, urgent(before, tc.delta)) })
	}
}
