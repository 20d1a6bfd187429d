package server

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// TestEveryFieldOfALoadIsAReadingOrAChange names the readings: whoever adds a field decides here.
func TestEveryFieldOfALoadIsAReadingOrAChange(t *testing.T) {
	readings := []protoreflect.Name{
		"tokens_per_second", "prefill_tokens_per_second", "generated_tokens", "cached_tokens", "queue_age",
	}
	fields := (&pb.LoadStatus{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		load := (&pb.LoadStatus{}).ProtoReflect()
		switch field.Kind() {
		case protoreflect.Uint32Kind:
			load.Set(field, protoreflect.ValueOfUint32(1))
		case protoreflect.Uint64Kind:
			load.Set(field, protoreflect.ValueOfUint64(1))
		case protoreflect.DoubleKind:
			load.Set(field, protoreflect.ValueOfFloat64(1))
		default:
			load.Set(field, load.NewField(field))
		}
		last := &snapshot{report: &pb.WorkerReport{Device: &pb.DeviceStatus{}, Load: &pb.LoadStatus{}}}
		now := &snapshot{report: &pb.WorkerReport{Device: &pb.DeviceStatus{}, Load: load.Interface().(*pb.LoadStatus)}}
		parts := last.parts.next(last, now)
		require.Equal(t, slices.Contains(readings, field.Name()), parts.counts == 0, "%s", field.Name())
		require.EqualValues(t, 1, parts.readings, "%s is told", field.Name())
		require.Zero(t, parts.urgent, "%s can wait", field.Name())
	}
}
