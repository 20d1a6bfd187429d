package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestApplyDeltaCopiesEveryField(t *testing.T) {
	// Messages are copied as a whole, so that fields of a later contract are copied with them.
	delta := &pb.WorkerDelta{
		Device: &pb.DeviceStatus{}, Load: &pb.LoadStatus{}, Progress: &pb.StepProgress{}, ModelsChanged: true, ChecksChanged: true,
		FilesChanged: true, Models: []*pb.ModelStatus{{}}, Checks: []*pb.HealthCheck{{}}, Files: []*pb.ModelFile{{}},
		State: pb.WorkerState_WORKER_STATE_DEGRADED, Vectors: &pb.VectorStatus{},
	}
	for _, m := range []proto.Message{delta.Device, delta.Load, delta.Progress, delta.Models[0], delta.Checks[0], delta.Files[0],
		delta.Vectors} {
		fill(m.ProtoReflect())
	}
	last := &pb.WorkerReport{WorkerId: "w", Incarnation: "i", ClassId: "c", Version: "v", State: pb.WorkerState_WORKER_STATE_READY}
	report := applyDelta(last, delta)
	want := &pb.WorkerReport{
		WorkerId: "w", Incarnation: "i", ClassId: "c", Version: "v", State: delta.State, Checks: delta.Checks, Device: delta.Device,
		Load: delta.Load, Progress: delta.Progress, Models: delta.Models, Files: delta.Files,
		Vectors: delta.Vectors,
	}
	require.True(t, proto.Equal(want, report), "want %v, got %v", want, report)
}

// fill sets every scalar field of a message, and every message in it to an empty one.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.IsList():
			m.Mutable(f)
		case f.Message() != nil:
			m.Set(f, m.NewField(f))
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(string(f.Name())))
		case f.Kind() == protoreflect.BoolKind:
			m.Set(f, protoreflect.ValueOfBool(true))
		case f.Kind() == protoreflect.DoubleKind:
			m.Set(f, protoreflect.ValueOfFloat64(float64(f.Number())))
		case f.Kind() == protoreflect.Uint32Kind:
			m.Set(f, protoreflect.ValueOfUint32(uint32(f.Number())))
		case f.Kind() == protoreflect.Int32Kind:
			m.Set(f, protoreflect.ValueOfInt32(int32(f.Number())))
		case f.Kind() == protoreflect.EnumKind:
			m.Set(f, protoreflect.ValueOfEnum(1))
		default:
			m.Set(f, protoreflect.ValueOfUint64(uint64(f.Number())))
		}
	}
}

func TestUrgentDeltas(t *testing.T) {
	model := func(change func(*pb.ModelStatus)) []*pb.ModelStatus {
		m := &pb.ModelStatus{Name: "m", ModelDigest: "d", State: pb.ModelState_MODEL_STATE_READY, ContextLength: 100}
		change(m)
		return []*pb.ModelStatus{m}
	}
	checks := func(name, message string, ok bool) []*pb.HealthCheck {
		return []*pb.HealthCheck{{Name: name, Message: message, Ok: ok}}
	}
	before := &pb.WorkerReport{Models: model(func(*pb.ModelStatus) {}), Checks: checks("leaks", "2 buffers", false)}
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
		"a list that is not sent":   {&pb.WorkerDelta{}, false},
		"a check's words":           {&pb.WorkerDelta{ChecksChanged: true, Checks: checks("leaks", "3 buffers", false)}, false},
		"a check that holds again":  {&pb.WorkerDelta{ChecksChanged: true, Checks: checks("leaks", "", true)}, true},
		"another check":             {&pb.WorkerDelta{ChecksChanged: true, Checks: checks("frees", "2 buffers", false)}, true},
		"readings, whatever is set": {&pb.WorkerDelta{ReadingsOnly: true, ModelsChanged: true}, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, urgent(before, tc.delta)) })
	}
}
