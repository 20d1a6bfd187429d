package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
)

// cutting says two of four words of one output and all of the other, and is lost; resumed, it says the rest.
func cutting(got **pb.GenerateRequest) func(*pb.GenerateRequest, generating) error {
	return func(in *pb.GenerateRequest, s generating) error {
		*got = in
		first := begun(in)
		if len(in.GetResume()) > 0 {
			first.GetStarted().ResumedTokens = []uint32{2, 1}
		}
		if err := s.Send(first); err != nil {
			return err
		}
		if len(in.GetResume()) > 0 {
			for i, text := range []string{" a", " time"} {
				if err := s.Send(tokens(0, uint32(2+i), text)); err != nil {
					return err
				}
			}
			return s.Send(finished(0))
		}
		for i, text := range []string{" é", " upon"} {
			if err := s.Send(tokens(0, uint32(i), text)); err != nil {
				return err
			}
		}
		if err := say(s, 1, "other"); err != nil {
			return err
		}
		return refusal(codes.Unavailable, reason.WorkerLost, "the worker was lost")
	}
}

func TestResumeRefusesAFileWithoutAllOfThePrompt(t *testing.T) {
	// A resumed stream has nothing of the prompt, so that its logprobs would be missing in silence.
	var got *pb.GenerateRequest
	r := serve(t, &fake{generate: teller(&got)})
	path := filepath.Join(t.TempDir(), "cut.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(`{"started":{"promptTokens":3,"seed":"7"}}`+"\n"), 0o600))
	require.Equal(t, 2, r.run(t, "generate", "-m", "m", "--json", "--prompt-logprobs", "0", "--resume", path, "Once"))
	require.Contains(t, r.err.String(), "ends before the last event of the prompt")
	require.Nil(t, got)
	require.Equal(t, 0, r.run(t, "generate", "-m", "m", "--json", "--resume", path, "Once"), r.err.String())
}

func TestAStreamSavedAsJSONIsResumed(t *testing.T) {
	var got *pb.GenerateRequest
	r := serve(t, &fake{generate: cutting(&got)})
	require.Equal(t, 3, r.run(t, "generate", "-m", "m", "--json", "--num-sequences", "2", "Once"))
	saved := r.out.String()
	require.Equal(t, 5, strings.Count(saved, "\n"))
	want := []*pb.Resume{
		{OutputIndex: 0, TokenIds: []uint32{10, 11}, TextBytes: proto.Uint64(8)},
		{OutputIndex: 1, TokenIds: []uint32{20}, TextBytes: proto.Uint64(5), Finished: true},
	}
	for name, content := range map[string]string{
		"as it was saved":                       saved,
		"with empty lines":                      "\n" + strings.ReplaceAll(saved, "\n", "\n\n"),
		"with a last line that was cut":         saved + `{"tokens":{"token`,
		"after an attempt that brought nothing": strings.SplitAfter(saved, "\n")[0] + saved,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "cut.jsonl")
			require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
			var out, complaints bytes.Buffer
			require.Equal(t, 0, r.on(t, r.in, &out, &complaints, "generate", "-m", "m", "--num-sequences", "2", "--resume", file, "Once"), complaints.String())
			require.Len(t, got.GetResume(), 2)
			for i := range want {
				require.True(t, proto.Equal(want[i], got.GetResume()[i]), "%v", got.GetResume()[i])
			}
			require.EqualValues(t, 42, got.GetSampling().GetSeed(), "the seed that was told, though none was given")
			require.Equal(t, strings.Repeat("ab", 32), got.GetExpectModelDigest())
			require.Equal(t, "class", got.GetExpectClassId(), "another class may give other tokens")
			require.Equal(t, "--- 1 of 2 ---\n a time\n\n--- 2 of 2 ---\n\n", out.String(), "only what is new")
			require.Contains(t, complaints.String(), "2 tokens, ")
		})
	}
}

func TestResumeStartsOverWithoutTokens(t *testing.T) {
	// A stream that brought no token is resumed from its beginning, with its seed.
	var got *pb.GenerateRequest
	r := serve(t, &fake{generate: teller(&got, " upon")})
	file := filepath.Join(t.TempDir(), "cut.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"started":{"seed":"7"}}`+"\n"), 0o600))
	require.Equal(t, 0, r.run(t, "generate", "-m", "m", "--resume", file, "--seed", "7", "Once"), r.err.String())
	require.Len(t, got.GetResume(), 1)
	require.True(t, proto.Equal(&pb.Resume{TextBytes: proto.Uint64(0)}, got.GetResume()[0]))
	require.Nil(t, got.ExpectModelDigest)
}

func TestResumeStatesTheContextOfTheStream(t *testing.T) {
	for name, tc := range map[string]struct {
		started string // of the stream
		args    []string
		context *uint32
	}{
		"as started reported":        {`"maxTokens":507,"promptTokens":5`, nil, proto.Uint32(512)},
		"whatever --max-tokens says": {`"maxTokens":507,"promptTokens":5`, []string{"--max-tokens", "900"}, proto.Uint32(512)},
		"a larger --context-length":  {`"maxTokens":9,"promptTokens":5`, []string{"--context-length", "40"}, proto.Uint32(14)},
		"a smaller --context-length": {`"maxTokens":9,"promptTokens":5`, []string{"--context-length", "12"}, proto.Uint32(12)},
		"no tokens":                  {`"maxTokens":0,"promptTokens":5`, nil, proto.Uint32(5)},
		"an earlier version's":       {`"promptTokens":5`, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got *pb.GenerateRequest
			r := serve(t, &fake{generate: teller(&got, " upon")})
			file := filepath.Join(t.TempDir(), "cut.jsonl")
			require.NoError(t, os.WriteFile(file, []byte(`{"started":{"seed":"7",`+tc.started+"}}\n"), 0o600))
			require.Equal(t, 0, r.run(t, append([]string{"generate", "-m", "m", "--resume", file, "Once"}, tc.args...)...), r.err.String())
			require.Equal(t, tc.context, got.ContextLength)
		})
	}
}

func TestAFileThatCannotBeResumedIsNamed(t *testing.T) {
	r := serve(t, &fake{})
	for name, tc := range map[string]struct {
		content string
		args    []string
		says    string
	}{
		"nothing in it":    {"", nil, "no `started` event"},
		"another format":   {"Once upon a time\n", nil, "line 1 of"},
		"lines missing":    {`{"started":{"seed":"7"}}` + "\n" + `{"tokens":{"tokenIndex":3,"tokenIds":[1]}}` + "\n", nil, "line 2 of"},
		"another seed":     {`{"started":{"seed":"7"}}` + "\n", []string{"--seed", "8"}, "has the seed 7"},
		"a line in halves": {`{"started":` + "\n" + `{"seed":"7"}}` + "\n", nil, "line 1 of"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "cut.jsonl")
			require.NoError(t, os.WriteFile(file, []byte(tc.content), 0o600))
			var complaints bytes.Buffer
			require.Equal(t, 2, r.on(t, r.in, &bytes.Buffer{}, &complaints, append([]string{"generate", "-m", "m", "--resume", file, "Once"}, tc.args...)...))
			require.Contains(t, complaints.String(), tc.says)
		})
	}
	require.Equal(t, 2, r.run(t, "generate", "--resume", filepath.Join(t.TempDir(), "none"), "Once"))
}

func TestResumeInexactTakesAnyClass(t *testing.T) {
	var got *pb.GenerateRequest
	r := serve(t, &fake{generate: teller(&got, " upon")})
	file := filepath.Join(t.TempDir(), "cut.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"started":{"seed":"7","classId":"c"}}`+"\n"), 0o600))
	require.Equal(t, 0, r.run(t, "generate", "-m", "m", "--resume", file, "--resume-inexact", "Once"), r.err.String())
	require.Nil(t, got.ExpectClassId)
}

func TestResumeOfAFinishedStreamDoesNothing(t *testing.T) {
	r := serve(t, &fake{})
	file := filepath.Join(t.TempDir(), "whole.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"started":{"seed":"7"}}`+"\n"+`{"finished":{}}`+"\n"), 0o600))
	require.Equal(t, 0, r.run(t, "generate", "-m", "m", "--json", "--resume", file, "Once"))
	require.Empty(t, r.out.String())
	require.Contains(t, r.err.String(), "is finished: there is nothing to continue")
}
