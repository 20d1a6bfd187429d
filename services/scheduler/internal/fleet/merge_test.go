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
