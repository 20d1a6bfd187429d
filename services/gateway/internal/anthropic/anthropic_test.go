package anthropic_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/anthropic"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
	"github.com/millrace/millrace/services/internal/reason"
)

// start serves the dialect over a fake server.
func start(t testing.TB, s *servertest.Server, change func(*httpapi.Config)) *servertest.Gateway {
	t.Helper()
	return servertest.Serve(t, anthropic.New(s.Start(t)), change)
}

// body returns the body of a request with further fields.
func body(fields ...string) string {
	all := append([]string{`"model":"` + servertest.Model + `"`, `"max_tokens":100`, `"messages":[{"role":"user","content":"hi"}]`, `"seed":7`}, fields...)
	return "{" + strings.Join(all, ",") + "}"
}

// weather are tools, and toolTurns a conversation in which one was called.
const (
	weather   = `"tools":[{"name":"weather","description":"Says it.","input_schema":{"type":"object","properties":{"city":{"type":"string"}}}}]`
	toolTurns = `{"role":"user","content":"hi"},
		{"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":""},{"type":"text","text":"I look."},
			{"type":"tool_use","id":"call_1","name":"weather","input":{"city":"Oslo"}},{"type":"tool_use","id":"call_2","name":"weather","input":{}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_1","content":[{"type":"text","text":"sunny"}]},
			{"type":"tool_result","tool_use_id":"call_2","is_error":true},{"type":"text","text":"And?"}]}`
)

// Tools, their choice, thinking and earlier calls reach the server.
func TestToolsReachTheServer(t *testing.T) {
	server := &servertest.Server{}
	g := start(t, server, nil)
	for choice, want := range map[string]*pb.ToolChoice{
		`{"type":"none"}`: {Mode: pb.ToolMode_TOOL_MODE_NONE}, `{"type":"any","disable_parallel_tool_use":true}`: {Mode: pb.ToolMode_TOOL_MODE_REQUIRED, Parallel: proto.Bool(false)},
		`{"type":"tool","name":"weather"}`: {Mode: pb.ToolMode_TOOL_MODE_REQUIRED, Name: proto.String("weather")}, `null`: nil,
	} {
		in := strings.Replace(body(weather, `"tool_choice":`+choice, `"thinking":{"type":"disabled"}`), `{"role":"user","content":"hi"}`, toolTurns, 1)
		out, text := g.Call(t, http.MethodPost, "/v1/messages", in)
		require.Equal(t, http.StatusOK, out.StatusCode, text)
		got, _ := server.Last()
		chat := got.GetChat()
		require.True(t, got.GetResponse().GetParts())
		require.True(t, proto.Equal(want, chat.GetToolChoice()), "%v", chat.GetToolChoice())
		require.False(t, chat.GetTemplateKwargs().GetFields()["enable_thinking"].GetBoolValue())
		require.Equal(t, "weather", chat.GetTools()[0].GetName())
		var roles []string
		for _, m := range chat.GetMessages() {
			roles = append(roles, m.GetRole()+" "+m.GetContent()+" "+m.GetToolCallId())
		}
		require.Equal(t, []string{"user hi ", "assistant I look. ", "tool sunny call_1", "tool  call_2", "user And? "}, roles)
		require.Equal(t, "Hm.", chat.GetMessages()[1].GetReasoning())
		require.Len(t, chat.GetMessages()[1].GetToolCalls(), 2)
		require.JSONEq(t, `{"city":"Oslo"}`, chat.GetMessages()[1].GetToolCalls()[0].GetArguments())
	}
}

func TestMessagesAnswer(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	for name, in := range map[string]string{
		"whole.json":  body(`"service_tier":"auto"`, `"thinking":{"type":"disabled"}`, `"tools":[]`, `"tool_choice":{"type":"auto"}`),
		"length.json": strings.Replace(body(), "100", "2", 1),
		"stream.txt":  body(`"stream":true`),
		"tools.json":  body(weather, `"thinking":{"type":"enabled","budget_tokens":1024}`, `"tool_choice":{"type":"any"}`),
		"tools.txt":   body(weather, `"thinking":{"type":"adaptive"}`, `"stream":true`),
		"cut.json":    strings.Replace(body(weather), "100", "3", 1),
		"quiet.txt":   body(weather, `"stream":true`),
		"result.json": strings.Replace(body(weather), `{"role":"user","content":"hi"}`, toolTurns, 1),
	} {
		out, text := g.Call(t, http.MethodPost, "/v1/messages", in, "Anthropic-Version", "2023-06-01", "X-Api-Key", "key")
		require.Equal(t, http.StatusOK, out.StatusCode, text)
		require.Equal(t, "id", out.Header.Get("Request-Id"))
		skipped := ""
		if name == "tools.json" {
			skipped = "thinking.budget_tokens"
		}
		require.Equal(t, skipped, out.Header.Get("Millrace-Skipped"))
		servertest.Golden(t, name, text, nil)
	}
}

func TestKeyIsPassedOnAsToken(t *testing.T) {
	s := &servertest.Server{}
	_, _ = start(t, s, nil).Call(t, http.MethodPost, "/v1/messages", body(), "X-Api-Key", "secret")
	_, md := s.Last()
	require.Equal(t, []string{"Bearer secret"}, md.Get("authorization"))
}

func TestStopSequenceIsReported(t *testing.T) {
	g := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		inexact := false
		again := servertest.Started(in)
		again.GetStarted().Exact = &inexact
		for _, e := range []*pb.GenerateResponse{servertest.Started(in), servertest.Token(in, 0, 0), again, {Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
			Reason: pb.FinishReason_FINISH_REASON_STOP, Matched: &pb.Finished_Stop{Stop: "end"}, Usage: &pb.Usage{CompletionTokens: 1},
		}}}} {
			if err := stream.Send(e); err != nil {
				return err
			}
		}
		return nil
	}}, nil)
	_, text := g.Call(t, http.MethodPost, "/v1/messages", body(`"stop_sequences":["end"]`))
	require.Contains(t, text, `"stop_reason":"stop_sequence","stop_sequence":"end"`)
	_, text = g.Call(t, http.MethodPost, "/v1/messages", body(`"stream":true`))
	require.Contains(t, text, `"stop_reason":"stop_sequence","stop_sequence":"end"`)
	require.Contains(t, text, `"exact":false`, "the change of class is in the last event")
}

func TestErrorInMidStreamIsAnEvent(t *testing.T) {
	g := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := stream.Send(servertest.Started(in)); err != nil {
			return err
		}
		return servertest.Refusal(codes.Unavailable, reason.WorkerLost, "the worker was lost")
	}}, nil)
	_, text := g.Call(t, http.MethodPost, "/v1/messages", body(`"stream":true`))
	require.True(t, strings.HasSuffix(text, "event: error\ndata: "+
		`{"type":"error","error":{"type":"overloaded_error","message":"the worker was lost","details":{"error_code":"WORKER_LOST"}},"request_id":"id"}`+"\n\n"), text)
	require.NotContains(t, text, "message_stop")
}

func TestCountTokensAnswers(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	_, text := g.Call(t, http.MethodPost, "/v1/messages/count_tokens", `{"model":"m","system":"be kind","messages":[{"role":"user","content":"hi"}]}`)
	require.JSONEq(t, `{"input_tokens":3}`, text)
}

func TestFieldsWithoutEffectAreNamed(t *testing.T) {
	const cache = `"cache_control":{"type":"ephemeral"}`
	in := body(`"system":[{"type":"text","text":"a",`+cache+`}]`, cache, `"context_management":{"edits":[]}`, `"output_config":{"effort":"low"}`, `"speed":"fast"`)
	in = strings.Replace(in, `"content":"hi"`, `"content":[{"type":"text","text":"hi",`+cache+`,"citations":null}]`, 1)
	out, text := start(t, &servertest.Server{}, nil).Call(t, http.MethodPost, "/v1/messages", in)
	require.Equal(t, http.StatusOK, out.StatusCode, text)
	require.Equal(t, "cache_control, context_management, output_config.effort, speed, system[0].cache_control, messages[0].content[0].cache_control",
		out.Header.Get("Millrace-Skipped"))
	out, text = start(t, &servertest.Server{}, func(c *httpapi.Config) { c.Strict = true }).Call(t, http.MethodPost, "/v1/messages", in)
	require.Equal(t, http.StatusBadRequest, out.StatusCode)
	require.Contains(t, text, `"param":"cache_control"`)
}

func TestErrorsHaveAnthropicsShape(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	content := func(block string) string {
		return strings.Replace(body(), `"content":"hi"`, `"content":[{"type":"text","text":"a"},`+block+`]`, 1)
	}
	var all bytes.Buffer
	for _, in := range []string{
		``, `{"model":1}`, `{"modell":"m"}`, `{}`, `{"model":"m"}`, `{"model":"m","messages":[]}`, `{"model":"m","messages":[{"content":"a"}]}`, `{"model":"m","messages":[{"role":"user"}]}`,
		`{"model":"m","messages":[{"role":"tool","content":"a"}]}`, `{"model":"m","messages":[{"role":"user","content":5}]}`,
		`{"model":"m","messages":[{"role":"user","content":"a"}]}`, `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`,
		content(`{"type":"image","source":{"type":"url","url":"x"}}`), content(`{"type":"document","source":{},"title":"t"}`), content(`{"type":"text"}`),
		content(`{"type":"tool_result","content":"b"}`), content(`{"type":"tool_use","id":"x","name":"n","input":{}}`),
		content(`{"type":"thinking","thinking":"t","signature":"s"}`), content(`{"type":"text","text":"a","other":1}`),
		body(`"tools":[{"type":"bash_20250124","name":"bash"}]`), body(`"tool_choice":{"type":"tool","name":"f"}`), body(`"tool_choice":{"type":"x"}`), body(`"thinking":{"type":"x"}`),
		body(`"output_config":{"format":{"type":"json_schema"}}`), body(`"output_config":{"format":{"type":"xml"}}`), body(`"container":"c"`), body(`"thread":{"type":"create"}`), body(`"mcp_servers":[{}]`), body(`"service_tier":"priority"`),
		strings.Replace(body(), "100", "0", 1), body(`"stop_sequences":"a"`), body(`"seed":8`),
		strings.Replace(body(), servertest.Model, "other", 1),
	} {
		out, text := g.Call(t, http.MethodPost, "/v1/messages", in)
		all.WriteString(in + "\n" + out.Status + " " + text + "\n\n")
	}
	servertest.Golden(t, "errors.txt", all.String(), nil)
}

func TestErrorTypesAreThoseOfTheStatus(t *testing.T) {
	for code, want := range map[codes.Code]string{
		codes.Unauthenticated: "authentication_error", codes.PermissionDenied: "permission_error", codes.NotFound: "not_found_error",
		codes.ResourceExhausted: "rate_limit_error", codes.Unavailable: "overloaded_error", codes.DeadlineExceeded: "timeout_error",
		codes.Internal: "api_error", codes.InvalidArgument: "invalid_request_error", codes.Aborted: "conflict_error",
	} {
		require.Contains(t, string(anthropic.New(nil).ErrorBody(httpapi.Refuse(code, "", "x"))), `"error":{"type":"`+want+`"`)
	}
}
