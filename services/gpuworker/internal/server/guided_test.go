package server

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/guide"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

const personSchema = `{"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,
	"maximum":120},"friends":{"type":"array","maxItems":2,"items":{"enum":["Tom","Lily"]}}},"required":["name","age"],"additionalProperties":false}`

func byRegex(expression string) *pb.Guided {
	return &pb.Guided{Constraint: &pb.Guided_Regex{Regex: expression}}
}

func bySchema(schema string) *pb.Guided {
	return &pb.Guided{Constraint: &pb.Guided_JsonSchema{JsonSchema: schema}}
}

// guided is prompted with the model's end tokens, without which no constrained text ends.
func guided(prompt string, maxTokens int32) *pb.GenerateRequest {
	in := prompted(prompt, maxTokens)
	in.Stopping.IgnoreEos = nil
	return in
}

func TestGuidedAnswersObey(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	for name, tc := range map[string]struct {
		guided *pb.Guided
		obeys  string
	}{
		"regex":  {byRegex(`[A-Z][a-z]{2,8}( [a-z]{1,7}){1,5}\.`), `^[A-Z][a-z]{2,8}( [a-z]{1,7}){1,5}\.$`},
		"choice": {&pb.Guided{Constraint: &pb.Guided_Choice{Choice: &pb.Choice{Options: []string{"yes", "no", "é漢字🙂"}}}}, `^(yes|no|é漢字🙂)$`},
		"schema": {bySchema(personSchema), `^\{[\s\S]*\}$`},
		"grammar": {
			&pb.Guided{Constraint: &pb.Guided_Grammar{Grammar: "root ::= \"(\" [a-z]+ root? \")\""}}, `^(\([a-z]+)+\)+$`,
		},
		"lark": {&pb.Guided{Constraint: &pb.Guided_Lark{Lark: "start: \"(\" /[a-z]+/ start? \")\""}}, `^(\([a-z]+)+\)+$`},
	} {
		t.Run(name, func(t *testing.T) {
			in := guided("Once upon a time", 200)
			in.Guided = tc.guided
			in.Sampling.NumSequences, in.Sampling.Temperature = ptr(int32(3)), ptr(float32(1.5))
			in.Response = &pb.ResponseOptions{OutputLogprobs: ptr(true)}
			got := w.generate(t.Context(), t, in)
			require.NoError(t, got.err)
			for i := range uint32(3) {
				if got.finished[i].GetReason() == pb.FinishReason_FINISH_REASON_LENGTH {
					continue
				}
				require.Regexp(t, tc.obeys, got.text[i])
				if name == "schema" {
					var person struct {
						Name *string
						Age  *int
					}
					require.NoError(t, json.Unmarshal([]byte(got.text[i]), &person), got.text[i])
					require.True(t, *person.Age >= 0 && *person.Age <= 120 && len([]rune(*person.Name)) <= 12)
				}
			}
		})
	}
}

// A stream that breaks after any token goes on under its grammar with the tokens that it would have had.
func TestGuidedStreamResumes(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	in := guided("Once upon a time", 60)
	in.Guided = bySchema(personSchema)
	in.Sampling.Seed = ptr(uint64(5))
	whole := w.generate(t.Context(), t, in)
	require.NoError(t, whole.err)
	n := len(whole.ids[0])
	require.Greater(t, n, 10)
	for k := range n {
		again := proto.Clone(in).(*pb.GenerateRequest)
		again.Resume = []*pb.Resume{{TokenIds: whole.ids[0][:k]}}
		got := w.generate(t.Context(), t, again)
		require.NoError(t, got.err, "after %d", k)
		require.Equal(t, whole.ids[0][k:], got.ids[0], "after %d", k)
		require.True(t, strings.HasSuffix(whole.text[0], got.text[0]))
	}
	in.Resume = []*pb.Resume{{TokenIds: append(whole.ids[0][:3:3], whole.ids[0][0])}}
	got := w.generate(t.Context(), t, in)
	require.Equal(t, codes.InvalidArgument, status.Code(got.err))
	require.Equal(t, []string{"resume[0].token_ids[3]"}, violated(got.err))
}

func TestGuidedRefusals(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	for name, tc := range map[string]struct {
		guided        *pb.Guided
		reason, field string
		path, problem string
		change        func(*pb.GenerateRequest)
	}{
		"a position": {
			guided: &pb.Guided{Constraint: &pb.Guided_Lark{Lark: "start: \"a\"\n  | <b>"}}, reason: reason.InvalidGrammar, field: "guided.lark",
			path: "line 2, column 5", problem: "unsupported",
		},
		"syntax": {guided: byRegex("(a"), reason: reason.InvalidGrammar, field: "guided.regex", problem: "syntax"},
		"a path": {
			guided: bySchema(`{"properties":{"a":{"unevaluatedItems":false}}}`), reason: reason.InvalidGrammar, field: "guided.json_schema",
			path: "#/properties/a/unevaluatedItems", problem: "unsupported",
		},
		"size": {
			guided: byRegex(strings.Repeat("a", 300<<10)), reason: reason.InvalidGrammar, field: "guided.regex", problem: "limit",
		},
		"nothing": {guided: &pb.Guided{}, reason: reason.InvalidArgument, field: "guided"},
		"ignore_eos": {
			guided: byRegex("a"), reason: reason.InvalidArgument, field: "stopping.ignore_eos",
			change: func(in *pb.GenerateRequest) { in.Stopping.IgnoreEos = ptr(true) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := guided("Once", 5)
			in.Guided = tc.guided
			if tc.change != nil {
				tc.change(in)
			}
			got := w.generate(t.Context(), t, in)
			require.Equal(t, codes.InvalidArgument, status.Code(got.err))
			require.Equal(t, tc.reason, rpc.Reason(got.err))
			require.Equal(t, []string{tc.field}, violated(got.err))
			if tc.problem != "" {
				require.Equal(t, tc.path, rpc.Info(got.err).GetMetadata()["path"])
				require.Equal(t, tc.problem, rpc.Info(got.err).GetMetadata()["problem"])
			}
		})
	}
}

func TestLenientIsReportedInStarted(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	in := guided("Once", 40)
	in.Guided = bySchema(`{"type":"string","format":"iri","maxLength":4}`)
	in.Guided.Lenient = ptr(true)
	got := w.generate(t.Context(), t, in)
	require.NoError(t, got.err)
	require.Equal(t, []string{"#/format"}, got.started.GetGuidedIgnored())
}

func TestSourceOfAConstraint(t *testing.T) {
	schema := bySchema("{}")
	schema.Lenient, schema.AnyOrder = ptr(true), ptr(true)
	for field, tc := range map[string]struct {
		in   *pb.Guided
		want guide.Source
	}{
		"guided.json_schema": {schema, guide.Source{Kind: guide.JSONSchema, Text: "{}", Lenient: true, AnyOrder: true}},
		"guided.regex":       {byRegex("a"), guide.Source{Kind: guide.Regex, Text: "a"}},
		"guided.grammar":     {&pb.Guided{Constraint: &pb.Guided_Grammar{Grammar: "g"}}, guide.Source{Kind: guide.GBNF, Text: "g"}},
		"guided.lark":        {&pb.Guided{Constraint: &pb.Guided_Lark{Lark: "g"}}, guide.Source{Kind: guide.Lark, Text: "g"}},
	} {
		got, at := sourceOf(tc.in)
		require.Equal(t, tc.want, got)
		require.Equal(t, field, at)
	}
}

// min_tokens forbids the end tokens, and the grammar everything else, at the end of its only text.
func TestMinTokensBeyondTheGrammar(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	in := guided("Once", 40)
	in.Guided = byRegex("ab")
	in.Stopping.MinTokens = ptr(int32(20))
	got := w.generate(t.Context(), t, in)
	require.Equal(t, codes.FailedPrecondition, status.Code(got.err), "%v", got.err)
	require.Equal(t, reason.NoTokenLeft, rpc.Reason(got.err))
}
