package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestConstraintFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "constraint")
	require.NoError(t, os.WriteFile(file, []byte("text"), 0o600))
	yes := true
	for name, tc := range map[string]struct {
		args []string
		want *pb.Guided
		says string // the error
	}{
		"none":    {nil, nil, ""},
		"schema":  {[]string{"--json-schema", file}, &pb.Guided{Constraint: &pb.Guided_JsonSchema{JsonSchema: "text"}}, ""},
		"lenient": {[]string{"--json-schema", file, "--lenient-schema"}, &pb.Guided{Constraint: &pb.Guided_JsonSchema{JsonSchema: "text"}, Lenient: &yes}, ""},
		"any order": {
			[]string{"--json-schema", file, "--any-order"}, &pb.Guided{Constraint: &pb.Guided_JsonSchema{JsonSchema: "text"}, AnyOrder: &yes}, "",
		},
		"regex":   {[]string{"--regex", "a,b"}, &pb.Guided{Constraint: &pb.Guided_Regex{Regex: "a,b"}}, ""},
		"grammar": {[]string{"--grammar", file}, &pb.Guided{Constraint: &pb.Guided_Grammar{Grammar: "text"}}, ""},
		"lark":    {[]string{"--lark", file}, &pb.Guided{Constraint: &pb.Guided_Lark{Lark: "text"}}, ""},
		"choice": {
			[]string{"--choice", "a,b", "--choice", "c"}, &pb.Guided{Constraint: &pb.Guided_Choice{Choice: &pb.Choice{Options: []string{"a,b", "c"}}}}, "",
		},
		"two":              {[]string{"--regex", "a", "--choice", "c"}, nil, "--regex or --choice"},
		"lenient alone":    {[]string{"--lenient-schema"}, nil, "needs --json-schema"},
		"lenient regex":    {[]string{"--regex", "a", "--lenient-schema"}, nil, "needs --json-schema"},
		"any order alone":  {[]string{"--any-order"}, nil, "needs --json-schema"},
		"a missing file":   {[]string{"--grammar", file + "x"}, nil, "no such file"},
		"an empty regex":   {[]string{"--regex", ""}, &pb.Guided{Constraint: &pb.Guided_Regex{}}, ""},
		"a file of no one": {[]string{"--json-schema", ""}, nil, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			var f guidedFlags
			fs := pflag.NewFlagSet("generate", pflag.ContinueOnError)
			f.register(fs)
			require.NoError(t, fs.Parse(tc.args))
			got, err := f.guided(fs)
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says)
				return
			}
			require.NoError(t, err)
			require.True(t, proto.Equal(tc.want, got), "%v", got)
		})
	}
}
