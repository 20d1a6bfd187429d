package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// Fields that a later contract adds travel with what they are in: nothing here copies them one by one.
func TestEveryFieldOfAMessageReachesTheReport(t *testing.T) {
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
	report := applied(last, delta)
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
