package cli_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestHelpFitsAndListsGlobalFlagsOnce(t *testing.T) {
	for _, command := range []string{
		"", "generate", "chat", "load", "unload", "models", "workers", "drain", "undrain", "embed", "rerank", "tokenize", "detokenize", "score", "certs",
		"keys new", "keys check", "health", "vectors", "vectors train", "vectors encode", "vectors decode", "vectors inspect", "vectors list",
	} {
		t.Run(command, func(t *testing.T) {
			r := &rig{target: "127.0.0.1:1"}
			require.Equal(t, 0, r.run(t, strings.Fields(command+" --help")...))
			_, flags, _ := strings.Cut(r.out.String(), "\nFlags:\n")
			require.Equal(t, command == "", strings.Contains(flags, "--tls-server-san"))
			for line := range strings.Lines(flags) {
				require.LessOrEqual(t, len(line), 101, line)
			}
		})
	}
}

// Every flag that a command adds is in its help, whatever group it is in.
func TestHelpListsEveryFlag(t *testing.T) {
	for command, flags := range map[string][]string{
		"generate": {"chat", "template", "template-arg", "parse-special-in-content", "context-length", "top-p", "resume", "json"},
		"chat":     {"template", "template-arg", "parse-special-in-content", "top-p", "fairness-id", "system"},
		"tokenize": {"chat", "template", "template-arg"},
	} {
		t.Run(command, func(t *testing.T) {
			r := &rig{target: "127.0.0.1:1"}
			require.Equal(t, 0, r.run(t, command, "--help"))
			for _, name := range flags {
				require.Regexp(t, `(?m)^ +(-., )?--`+name+` `, r.out.String())
			}
		})
	}
}

func TestHelpGroupsTheFlagsOfGenerate(t *testing.T) {
	r := &rig{target: "127.0.0.1:1"}
	require.Equal(t, 0, r.run(t, "generate", "--help"))
	at := -1
	for _, heading := range []string{"\nFlags:", "\nSampling:", "\n      --top-p", "\nStopping:", "\n      --max-tokens", "\nOutput:", "\nScheduling and cache:", "\nResuming:"} {
		next := strings.Index(r.out.String(), heading)
		require.Greater(t, next, at, heading)
		at = next
	}
}

func TestCompletionKnowsNamesAndValues(t *testing.T) {
	loaded, onDisk := model("m"), &pb.ModelInfo{Name: "other", State: pb.ModelState_MODEL_STATE_ON_DISK}
	r := serve(t, &fake{models: []*pb.ModelInfo{loaded, onDisk}})
	for args, want := range map[string]string{
		"load":                 "other\n",
		"unload":               "m\n",
		"generate -m":          "m\n",
		"load --kv-type":       "f32\nf16\nbf16\nf8\n",
		"vectors train --kind": "flat\nproduct\n",
		"unload m":             "",
	} {
		t.Run(args, func(t *testing.T) {
			r.out = buffer{}
			require.Equal(t, 0, r.run(t, append(append([]string{"__complete"}, strings.Fields(args)...), "")...), r.err.String())
			names, _, _ := strings.Cut(r.out.String(), ":4")
			require.Equal(t, want, names)
		})
	}
}

func TestAMistakenCommandNamesItsHelp(t *testing.T) {
	r := &rig{target: "127.0.0.1:1"}
	require.Equal(t, 2, r.run(t, "load"))
	require.Contains(t, r.err.String(), "try: millrace load --help")
}
