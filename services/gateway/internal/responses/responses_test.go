package responses_test

import (
	"bytes"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/responses"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
	"github.com/millrace/millrace/services/internal/reason"
)

// unixTime matches the times of answers.
var unixTime = regexp.MustCompile(`\b\d{10}\b`)

// start serves the dialect over a fake server.
func start(t testing.TB, s *servertest.Server, change func(*httpapi.Config)) *servertest.Gateway {
	t.Helper()
	return servertest.Serve(t, responses.New(s.Start(t)), change)
}

// body returns the body of a request with further fields.
func body(fields ...string) string {
	all := append([]string{`"model":"` + servertest.Model + `"`, `"input":"hi"`, `"seed":7`}, fields...)
	return "{" + strings.Join(all, ",") + "}"
}

// weather are tools, and toolTurns an input in which one was called.
const (
	weather   = `"tools":[{"type":"function","name":"weather","description":"Says it.","strict":true,"parameters":{"type":"object","properties":{"city":{"type":"string"}}}}]`
	toolTurns = `"input":[{"role":"user","content":"hi"},
		{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}]},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look."}]},
		{"type":"function_call","call_id":"call_1","name":"weather","arguments":"{\"city\":\"Oslo\"}","id":"fc_1","status":"completed"},
		{"type":"function_call","call_id":"call_2","name":"weather","arguments":"{}"},
		{"type":"function_call_output","call_id":"call_1","output":"sunny"},
		{"type":"function_call_output","call_id":"call_2","output":[{"type":"input_text","text":"rain"}]}]`
)

// Tools, their choice and earlier calls reach the server.
func TestToolsReachTheServer(t *testing.T) {
	server := &servertest.Server{}
	in := strings.Replace(body(weather, `"tool_choice":"required"`, `"parallel_tool_calls":false`), `"input":"hi"`, toolTurns, 1)
	out, text := start(t, server, nil).Call(t, http.MethodPost, "/v1/responses", in)
	require.Equal(t, http.StatusOK, out.StatusCode, text)
	got, _ := server.Last()
	chat := got.GetChat()
	require.True(t, got.GetResponse().GetParts())
	require.Equal(t, pb.ToolMode_TOOL_MODE_REQUIRED, chat.GetToolChoice().GetMode())
	require.False(t, chat.GetToolChoice().GetParallel())
	require.Equal(t, "weather", chat.GetTools()[0].GetName())
	var roles []string
	for _, m := range chat.GetMessages() {
		roles = append(roles, m.GetRole()+" "+m.GetContent()+" "+m.GetToolCallId())
	}
	require.Equal(t, []string{"user hi ", "assistant I look. ", "tool sunny call_1", "tool rain call_2"}, roles)
	require.Equal(t, "Hm.", chat.GetMessages()[1].GetReasoning())
	require.Len(t, chat.GetMessages()[1].GetToolCalls(), 2)
}

func TestResponsesAnswer(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	for name, in := range map[string]string{
		"whole.json": body(),
		"whole-fields.json": body(`"instructions":"be kind"`, `"max_output_tokens":100`, `"temperature":0.5`, `"top_p":0.25`, `"metadata":{"a":"b"}`, `"user":"u"`,
			`"safety_identifier":"s"`, `"prompt_cache_key":"k"`, `"service_tier":"flex"`, `"reasoning":{"effort":"low"}`, `"text":{"format":{"type":"text"}}`,
			`"tools":[]`, `"tool_choice":"none"`, `"truncation":"disabled"`, `"store":false`, `"background":false`, `"top_logprobs":0`, `"presence_penalty":1`),
		"stream.txt":            body(`"stream":true`),
		"tools.json":            body(weather, `"tool_choice":{"type":"function","name":"weather"}`),
		"tools-stream.txt":      body(weather, `"stream":true`, `"parallel_tool_calls":false`),
		"tools-result.json":     strings.Replace(body(weather), `"input":"hi"`, toolTurns, 1),
		"stream-incomplete.txt": body(`"stream":true`, `"max_output_tokens":1`, `"stream_options":{"include_obfuscation":false}`),
	} {
		out, text := g.Call(t, http.MethodPost, "/v1/responses", in)
		require.Equal(t, http.StatusOK, out.StatusCode, text)
		require.Empty(t, out.Header.Get("Millrace-Skipped"))
		servertest.Golden(t, name, text, unixTime)
	}
}

func TestErrorInMidStreamIsAFailedResponse(t *testing.T) {
	g := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := stream.Send(servertest.Started(in)); err != nil {
			return err
		}
		if err := stream.Send(servertest.Token(in, 0, 0)); err != nil {
			return err
		}
		return servertest.Refusal(codes.Unavailable, reason.WorkerLost, "the worker was lost")
	}}, nil)
	_, text := g.Call(t, http.MethodPost, "/v1/responses", body(`"stream":true`))
	servertest.Golden(t, "stream-failed.txt", text, unixTime)
	out, text := g.Call(t, http.MethodPost, "/v1/responses", body())
	require.Equal(t, http.StatusServiceUnavailable, out.StatusCode)
	require.Contains(t, text, `"code":"WORKER_LOST"`)
}

// codex is a request in the shape that Codex sends: the whole conversation, its reasoning of other
// servers, tools of kinds that OpenAI's servers run, and a free-form tool.
const codex = `{"model":"org/model","instructions":"You are a coding agent.","input":[
	{"type":"message","role":"developer","content":[{"type":"input_text","text":"Approvals: never."}]},
	{"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
	{"type":"reasoning","id":"rs_1","summary":[],"content":null,"encrypted_content":"x"},
	{"type":"message","role":"assistant","id":"msg_1","status":"completed","content":[{"type":"output_text","text":"c","annotations":[],"logprobs":[]}]},
	{"role":"user","content":"d"}],
	"tools":[{"type":"web_search","external_web_access":false},{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]},{"type":"image_generation","output_format":"png"},
		{"type":"custom","name":"apply_patch","description":"d","format":{"type":"grammar","syntax":"lark","definition":"x"}}],
	"tool_choice":"auto","parallel_tool_calls":true,"reasoning":{"effort":"medium","summary":"auto"},"store":false,"stream":true,
	"include":["reasoning.encrypted_content"],"prompt_cache_key":"session","text":{"verbosity":"low"},"client_metadata":{"x":"y"}}`

func TestCodexIsServed(t *testing.T) {
	s := &servertest.Server{}
	out, text := start(t, s, nil).Call(t, http.MethodPost, "/v1/responses", codex)
	require.Equal(t, http.StatusOK, out.StatusCode, text)
	require.Contains(t, text, "event: response.completed\n")
	require.Equal(t, "tools[0], tools[1], tools[2], tools[3], include[0], parallel_tool_calls, reasoning.summary, text.verbosity, client_metadata, input[2]",
		out.Header.Get("Millrace-Skipped"))
	in, md := s.Last()
	var chat []string
	for _, m := range in.GetChat().GetMessages() {
		chat = append(chat, m.GetRole()+":"+m.GetContent())
	}
	require.Equal(t, []string{"system:You are a coding agent.\nApprovals: never.", "user:a\nb", "assistant:c", "user:d"}, chat)
	require.Equal(t, []string{"session"}, md.Get("millrace-routing-key"))
	require.Equal(t, "medium", in.GetChat().GetTemplateKwargs().GetFields()["reasoning_effort"].GetStringValue())
	out, text = start(t, s, func(c *httpapi.Config) { c.Strict = true }).Call(t, http.MethodPost, "/v1/responses", codex)
	require.Equal(t, http.StatusBadRequest, out.StatusCode)
	require.Contains(t, text, `"param":"tools[0]"`)
}

func TestErrorsNameTheField(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	items := func(items string) string { return strings.Replace(body(), `"hi"`, "["+items+"]", 1) }
	var all bytes.Buffer
	for _, in := range []string{
		``, `{"model":1}`, `{"modell":"m"}`, `{}`, `{"model":"m"}`, `{"model":"m","input":5}`, `{"model":"m","input":""}`, `{"model":"m","instructions":"a"}`,
		items(``), items(`{"role":"user"}`), items(`{"content":"a"}`), items(`{"role":"tool","content":"a"}`), items(`{"role":"user","content":5}`),
		items(`{"role":"user","content":[{"type":"input_text"}]}`), items(`{"role":"user","content":[{"type":"input_image","image_url":"x","detail":"auto"}]}`),
		items(`{"role":"user","content":[{"type":"input_file","file_id":"x"}]}`), items(`{"role":"assistant","content":[{"type":"refusal","refusal":"x"}]}`),
		items(`{"type":"item_reference","id":"x"}`), items(`{"type":"function_call","call_id":"x","name":"f","arguments":"{}"}`),
		items(`{"type":"function_call_output","call_id":"x","output":"y"}`), items(`{"role":"user","content":"a","other":1}`), items(`{"type":"reasoning","id":"x","summary":[]}`),
		body(`"store":true`), body(`"previous_response_id":"x"`), body(`"conversation":"x"`), body(`"conversation":{"id":"x"}`), body(`"background":true`),
		body(`"prompt":{"id":"x"}`), body(`"tools":[{"type":"web_search"},{"type":"function","nam":"f"}]`),
		body(`"tools":[{}]`), body(`"tools":[1]`), body(`"tools":[{"type":1}]`), body(`"tool_choice":"required"`), body(`"tool_choice":{"type":"function","name":"f"}`),
		body(`"text":{"format":{"type":"grammar"}}`), body(`"text":{"format":{"type":"json_schema","name":"n"}}`), body(`"top_logprobs":2`), body(`"include":["message.output_text.logprobs"]`),
		body(`"moderation":{}`), body(`"image":{}`), body(`"service_tier":"scale"`), body(`"max_output_tokens":0`), body(`"timeout":0`), body(`"metadata":{"a":1}`),
		strings.Replace(body(), servertest.Model, "other", 1),
	} {
		out, text := g.Call(t, http.MethodPost, "/v1/responses", in)
		all.WriteString(in + "\n" + out.Status + " " + unixTime.ReplaceAllString(text, "0") + "\n\n")
	}
	servertest.Golden(t, "errors.txt", all.String(), nil)
}
