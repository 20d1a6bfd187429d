package server

import (
	"iter"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestEveryFieldOfALoadIsAReadingOrACount(t *testing.T) {
	// A new field must be added here or counts as a change.
	readings := []protoreflect.Name{
		"tokens_per_second", "prefill_tokens_per_second", "generated_tokens", "cached_tokens", "queue_age",
	}
	isReading := func(load *pb.LoadStatus) bool {
		t.Helper()
		last := &snapshot{report: &pb.WorkerReport{Device: &pb.DeviceStatus{}, Load: &pb.LoadStatus{Models: []*pb.ModelLoad{{}}}}}
		now := &snapshot{report: &pb.WorkerReport{Device: &pb.DeviceStatus{}, Load: load}}
		revisions := last.revisions.next(last, now)
		require.EqualValues(t, 1, revisions.readings, "it is sent")
		require.Zero(t, revisions.urgent, "it can wait")
		return revisions.counts == 0
	}
	for field, load := range eachField(&pb.LoadStatus{Models: []*pb.ModelLoad{{}}}) {
		require.Equal(t, slices.Contains(readings, field), isReading(load), "%s", field)
	}
	for field, m := range eachField(&pb.ModelLoad{}) {
		require.Equal(t, slices.Contains(readings, field), isReading(&pb.LoadStatus{Models: []*pb.ModelLoad{m}}), "%s of a model", field)
	}
}

// eachField yields a message once for each of its fields, with that field changed.
func eachField[M proto.Message](of M) iter.Seq2[protoreflect.Name, M] {
	return func(yield func(protoreflect.Name, M) bool) {
		fields := of.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			field := fields.Get(i)
			m := proto.CloneOf(of)
			to := m.ProtoReflect()
			switch {
			case field.IsList():
				list := to.Mutable(field).List()
				list.Append(list.NewElement())
			case field.Kind() == protoreflect.StringKind:
				to.Set(field, protoreflect.ValueOfString("x"))
			case field.Kind() == protoreflect.Uint32Kind:
				to.Set(field, protoreflect.ValueOfUint32(1))
			case field.Kind() == protoreflect.Uint64Kind:
				to.Set(field, protoreflect.ValueOfUint64(1))
			case field.Kind() == protoreflect.DoubleKind:
				to.Set(field, protoreflect.ValueOfFloat64(1))
			default:
				to.Set(field, to.NewField(field))
			}
			if !yield(field.Name(), m) {
				return
			}
		}
	}
}
