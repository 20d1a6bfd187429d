package fleet

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

var update = flag.Bool("update", false, "rewrite the outcomes in testdata")

// A script is one HealthResponse a line, in protobuf's text format; "new" begins another stream. The line after each,
// "-> ...", is the report that comes out, and -update rewrites it.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			got := play(t, string(text))
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
				return
			}
			require.Equal(t, string(text), got, "run with -update if the change is meant")
		})
	}
}

// play runs a script and returns it with the outcomes that are.
func play(t *testing.T, script string) string {
	t.Helper()
	var last *pb.WorkerReport
	var out strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "-> ") {
			continue
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if line == "new" {
			last = nil
			continue
		}
		in := &pb.HealthResponse{}
		require.NoError(t, prototext.Unmarshal([]byte(line), in), "%s", line)
		var kept *pb.WorkerReport
		if last != nil {
			kept = proto.CloneOf(last)
		}
		report, changed, err := merge(last, in)
		require.True(t, proto.Equal(kept, last), "the last report was changed by %s", line)
		if err != nil {
			fmt.Fprintf(&out, "-> %v\n", err)
			last = nil
			continue
		}
		last = report
		fmt.Fprintf(&out, "-> %s\n", summary(report, changed))
	}
	return out.String()
}

// Fields that a later contract adds travel with what they are in: nothing here copies them one by one.
func TestEveryFieldOfAMessageReachesTheReport(t *testing.T) {
	delta := &pb.WorkerDelta{
		Device: &pb.DeviceStatus{}, Load: &pb.LoadStatus{}, Progress: &pb.StepProgress{}, ModelsChanged: true, ChecksChanged: true,
		FilesChanged: true, Models: []*pb.ModelStatus{{}}, Checks: []*pb.HealthCheck{{}}, Files: []*pb.ModelFile{{}},
		State: pb.WorkerState_WORKER_STATE_DEGRADED,
	}
	for _, m := range []proto.Message{delta.Device, delta.Load, delta.Progress, delta.Models[0], delta.Checks[0], delta.Files[0]} {
		fill(m.ProtoReflect())
	}
	last := &pb.WorkerReport{WorkerId: "w", Incarnation: "i", ClassId: "c", Version: "v", State: pb.WorkerState_WORKER_STATE_READY}
	report, changed, err := merge(last, &pb.HealthResponse{Event: &pb.HealthResponse_Delta{Delta: delta}})
	require.NoError(t, err)
	require.True(t, changed)
	want := &pb.WorkerReport{
		WorkerId: "w", Incarnation: "i", ClassId: "c", Version: "v", State: delta.State, Checks: delta.Checks, Device: delta.Device,
		Load: delta.Load, Progress: delta.Progress, Models: delta.Models, Files: delta.Files,
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

func summary(r *pb.WorkerReport, changed bool) string {
	out := fmt.Sprintf("%s/%s %s", r.GetWorkerId(), r.GetIncarnation(), strings.TrimPrefix(r.GetState().String(), "WORKER_STATE_"))
	for _, m := range r.GetModels() {
		out += fmt.Sprintf(" model=%s:%s", m.GetName(), strings.TrimPrefix(m.GetState().String(), "MODEL_STATE_"))
	}
	for _, f := range r.GetFiles() {
		out += " file=" + f.GetName()
	}
	for _, c := range r.GetChecks() {
		out += fmt.Sprintf(" %s=%v", c.GetName(), c.GetOk())
	}
	out += fmt.Sprintf(" running=%d free=%d steps=%d", r.GetLoad().GetRunning(), r.GetDevice().GetBytesFree(), r.GetProgress().GetSteps())
	if changed {
		out += " (changed)"
	}
	return out
}
