package ollama_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/ollama"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
	"github.com/millrace/millrace/services/internal/reason"
)

// varies matches what depends on the time and the build.
var varies = regexp.MustCompile(`2\d{3}-\d\d-[^"]+|"total_duration":\d+|"millrace":"[^"]*"`)

// start serves the dialect over a fake server.
func start(t testing.TB, s *servertest.Server, change func(*httpapi.Config)) *servertest.Gateway {
	t.Helper()
	return servertest.Serve(t, ollama.New(s.Start(t)), change)
}

// body returns the body of a request with further fields.
func body(fields ...string) string {
	return "{" + strings.Join(append([]string{`"model":"` + servertest.Model + `"`}, fields...), ",") + "}"
}

const (
	hi   = `"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"hi"}]`
	seed = `"options":{"seed":7}`
)

// weather are tools, and toolTurns a conversation in which two were called, by clients that send no ids.
const (
	weather   = `"tools":[{"type":"function","function":{"name":"weather","description":"Says it.","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]`
	toolTurns = `"messages":[{"role":"user","content":"hi"},
		{"role":"assistant","content":"","thinking":"Hm.","tool_calls":[{"function":{"name":"weather","arguments":{"city":"Oslo"}}},{"function":{"index":1,"name":"now","arguments":{}}}]},
		{"role":"tool","content":"noon","tool_name":"now"},{"role":"tool","content":"sunny"}]`
)

// A result is that of the call that its tool names, or of the next one.
func TestToolsReachTheServer(t *testing.T) {
	server := &servertest.Server{}
	out, text := start(t, server, nil).Call(t, http.MethodPost, "/api/chat", body(toolTurns, `"stream":false`, weather, `"think":"low"`))
	require.Equal(t, http.StatusOK, out.StatusCode, text)
	in, _ := server.Last()
	messages := in.GetChat().GetMessages()
	require.True(t, in.GetResponse().GetParts())
	require.Equal(t, "Hm.", messages[1].GetReasoning())
	calls := messages[1].GetToolCalls()
	require.JSONEq(t, `{"city":"Oslo"}`, calls[0].GetArguments())
	require.NotEqual(t, calls[0].GetId(), calls[1].GetId())
	require.Equal(t, calls[1].GetId(), messages[2].GetToolCallId())
	require.Equal(t, calls[0].GetId(), messages[3].GetToolCallId())
	variables := in.GetChat().GetTemplateKwargs().GetFields()
	require.True(t, variables["enable_thinking"].GetBoolValue())
	require.Equal(t, "low", variables["reasoning_effort"].GetStringValue())
	require.Equal(t, "weather", in.GetChat().GetTools()[0].GetName())
}

func TestChatAndGenerateAnswer(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	for name, in := range map[string]string{
		"chat-stream.txt":     "/api/chat " + body(hi, seed),
		"chat-tools.json":     "/api/chat " + body(hi, seed, `"stream":false`, weather, `"think":true`),
		"chat-tools.txt":      "/api/chat " + body(hi, seed, weather),
		"chat-quiet.txt":      "/api/chat " + body(hi, seed, weather, `"think":false`),
		"chat-result.json":    "/api/chat " + body(toolTurns, seed, `"stream":false`, weather, `"think":"low"`),
		"chat-whole.json":     "/api/chat " + body(hi, seed, `"stream":false`, `"format":""`, `"tools":[]`, `"think":false`),
		"chat-load.json":      "/api/chat " + body(`"messages":[]`),
		"generate-stream.txt": "/api/generate " + body(`"prompt":"hi"`, `"options":{"seed":7,"num_predict":2}`, `"stream":true`),
		"generate-whole.json": "/api/generate " + body(`"prompt":"hi"`, `"system":"be kind"`, seed, `"stream":false`, `"template":""`, `"context":[]`),
		"generate-raw.json":   "/api/generate " + body(`"prompt":"hi"`, `"raw":true`, seed, `"stream":false`),
		"generate-load.json":  "/api/generate " + body(),
	} {
		path, in, _ := strings.Cut(in, " ")
		out, text := g.Call(t, http.MethodPost, path, in)
		require.Equal(t, http.StatusOK, out.StatusCode, text)
		require.Empty(t, out.Header.Get("Millrace-Skipped"))
		want := "application/json"
		if strings.HasSuffix(name, ".txt") {
			want = "application/x-ndjson"
			for line := range strings.Lines(text) {
				require.True(t, json.Valid([]byte(line)), line)
			}
		}
		require.Equal(t, want, out.Header.Get("Content-Type"))
		servertest.Golden(t, name, text, varies)
	}
}

func TestEveryOptionIsHonoured(t *testing.T) {
	s := &servertest.Server{}
	_, text := start(t, s, nil).Call(t, http.MethodPost, "/api/chat", body(hi, `"think":false`, `"options":{"temperature":0.5,"top_k":5,"top_p":0.25,"min_p":0.125,
		"typical_p":0.75,"seed":9,"num_predict":3,"stop":"end","repeat_penalty":1.5,"repeat_last_n":64,"presence_penalty":1,"frequency_penalty":-1}`))
	in, _ := s.Last()
	require.NotNil(t, in, text)
	require.Equal(t, `temperature:0.5 top_k:5 top_p:0.25 min_p:0.125 typical_p:0.75 repetition_penalty:1.5 presence_penalty:1 frequency_penalty:-1 penalty_window:64 seed:9`,
		strings.Join(strings.Fields(in.GetSampling().String()), " "))
	require.EqualValues(t, 3, in.GetStopping().GetMaxTokens())
	require.Equal(t, []string{"end"}, in.GetStopping().GetStop())
	require.False(t, in.GetChat().GetTemplateKwargs().GetFields()["enable_thinking"].GetBoolValue())
	require.Len(t, in.GetChat().GetMessages(), 2)
}

func TestUnlimitedAndRandomAreUnset(t *testing.T) {
	s := &servertest.Server{}
	_, _ = start(t, s, nil).Call(t, http.MethodPost, "/api/generate", body(`"prompt":"a"`, `"options":{"num_predict":-1,"seed":-1,"stop":["a","b"]}`))
	in, _ := s.Last()
	require.Nil(t, in.GetStopping().MaxTokens)
	require.Less(t, in.GetSampling().GetSeed(), uint64(1)<<53)
	require.Equal(t, []string{"a", "b"}, in.GetStopping().GetStop())
	require.Equal(t, "a", in.GetChat().GetMessages()[0].GetContent())
}

func TestRawPromptIsTokenIDs(t *testing.T) {
	s := &servertest.Server{}
	_, _ = start(t, s, nil).Call(t, http.MethodPost, "/api/generate", body(`"prompt":"<s>a"`, `"raw":true`))
	in, _ := s.Last()
	require.Equal(t, []uint32{0, 1, 2}, in.GetTokenIds().GetIds())
}

func TestTagLatestIsNoPartOfTheName(t *testing.T) {
	s := &servertest.Server{}
	_, text := start(t, s, nil).Call(t, http.MethodPost, "/api/chat", strings.Replace(body(hi), servertest.Model, servertest.Model+":latest", 1))
	in, _ := s.Last()
	require.Equal(t, servertest.Model, in.GetModel())
	require.Contains(t, text, `"model":"org/model:latest"`, "the answer has the client's name")
}

func TestTimingsAreInNanoseconds(t *testing.T) {
	g := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := stream.Send(servertest.Started(in)); err != nil {
			return err
		}
		return stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
			Reason: pb.FinishReason_FINISH_REASON_STOP, Usage: &pb.Usage{CompletionTokens: 4},
			Timings: &pb.Timings{Prefill: durationpb.New(2 * time.Microsecond), Decode: durationpb.New(3 * time.Microsecond)},
		}}})
	}}, nil)
	_, text := g.Call(t, http.MethodPost, "/api/chat", body(hi))
	require.Contains(t, text, `"prompt_eval_count":6,"prompt_eval_duration":2000,"eval_count":4,"eval_duration":3000`)
}

func TestErrorInMidStreamIsALine(t *testing.T) {
	g := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := stream.Send(servertest.Started(in)); err != nil {
			return err
		}
		if err := stream.Send(servertest.Token(in, 0, 0)); err != nil {
			return err
		}
		return servertest.Refusal(codes.Unavailable, reason.WorkerLost, "the worker was lost")
	}}, nil)
	_, text := g.Call(t, http.MethodPost, "/api/chat", body(hi))
	require.True(t, strings.HasSuffix(text, "\n"+`{"error":"the worker was lost","code":"WORKER_LOST"}`+"\n"), text)
	require.NotContains(t, text, `"done":true`)
}

func TestFieldsWithoutEffectAreNamed(t *testing.T) {
	in := body(`"messages":[{"role":"user","content":"a","thinking":"b"}]`, `"keep_alive":"5m"`, `"truncate":true`, `"shift":true`, `"options":{"num_ctx":4096,"num_gpu":1,"mirostat":0}`)
	out, text := start(t, &servertest.Server{}, nil).Call(t, http.MethodPost, "/api/chat", in)
	require.Equal(t, http.StatusOK, out.StatusCode, text)
	require.Equal(t, "keep_alive, truncate, shift, options.num_ctx, options.num_gpu", out.Header.Get("Millrace-Skipped"))
	out, _ = start(t, &servertest.Server{}, func(c *httpapi.Config) { c.Strict = true }).Call(t, http.MethodPost, "/api/chat", in)
	require.Equal(t, http.StatusBadRequest, out.StatusCode)
}

func TestServerIsFoundByItsGreeting(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	out, text := g.Call(t, http.MethodGet, "/", "")
	require.Equal(t, http.StatusOK, out.StatusCode)
	require.Equal(t, "Ollama is running", text)
	require.Equal(t, "text/plain; charset=utf-8", out.Header.Get("Content-Type"))
	out, text = g.Call(t, http.MethodHead, "/", "")
	require.Equal(t, http.StatusOK, out.StatusCode)
	require.Empty(t, text)
}

func TestEmbeddingsAnswer(t *testing.T) {
	var last *pb.EmbedRequest
	g := start(t, &servertest.Server{OnEmbed: func(in *pb.EmbedRequest) (*pb.EmbedResponse, error) {
		last = in
		out := &pb.EmbedResponse{Usage: &pb.Usage{PromptTokens: 7}}
		for range in.GetTexts() {
			out.Embeddings = append(out.Embeddings, &pb.Embedding{Values: []float32{1, -0.5}})
		}
		return out, nil
	}}, nil)
	_, text := g.Call(t, http.MethodPost, "/api/embed", body(`"input":["a","b"]`))
	require.Contains(t, text, `"embeddings":[[1,-0.5],[1,-0.5]]`)
	require.Contains(t, text, `"prompt_eval_count":7`)
	require.True(t, last.GetTruncate(), "Ollama cuts a text that is too long")
	_, text = g.Call(t, http.MethodPost, "/api/embed", body(`"input":"a","truncate":false,"dimensions":2`))
	require.Contains(t, text, `"embeddings":[[1,-0.5]]`)
	require.False(t, last.GetTruncate())
	require.EqualValues(t, 2, last.GetDimensions())
	_, text = g.Call(t, http.MethodPost, "/api/embeddings", body(`"prompt":"a"`))
	require.JSONEq(t, `{"embedding":[1,-0.5]}`, text)
	require.False(t, last.GetNormalize())
	_, text = g.Call(t, http.MethodPost, "/api/embeddings", body())
	require.Contains(t, text, "prompt is missing")
}

func TestEndpointsAndErrors(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	chat, generate := "POST /api/chat ", "POST /api/generate "
	var all bytes.Buffer
	for _, line := range []string{
		"GET /api/tags", "GET /api/ps", "GET /api/version", "GET /api/other", "GET /api/chat",
		`POST /api/show {"model":"org/model"}`, `POST /api/show {"name":"org/model:latest","verbose":true}`, `POST /api/show {"model":"file"}`,
		`POST /api/show {"model":"none"}`, `POST /api/show {}`,
		`POST /api/embed {"model":"org/model","input":"a"}`, `POST /api/embed {"model":"org/model"}`, `POST /api/embed {"input":"a"}`,
		`POST /api/embed {"model":"org/model","input":"a","dimensions":0}`,
		chat + ``, chat + `{}`, chat + `{"model":1}`, chat + body(`"message":[]`), chat + body(`"messages":[{"content":"a"}]`), chat + body(`"messages":[{"role":"user","content":5}]`),
		chat + body(hi, `"tools":[{}]`), chat + body(hi, `"format":"xml"`), chat + body(hi, `"format":[]`), chat + body(hi, `"tools":[{"type":"x"}]`),
		chat + body(hi, `"logprobs":true`), chat + body(`"messages":[{"role":"user","content":"a","images":["x"]}]`), chat + body(`"messages":[{"role":"assistant","content":"","tool_calls":[{}]}]`),
		chat + body(hi, `"options":{"mirostat":1}`), chat + body(hi, `"options":{"num_predict":0}`),
		chat + body(hi, `"options":{"other":1}`), chat + body(hi, `"options":{"seed":1.5}`), chat + `{"model":"none",` + hi + `}`, chat + `{"model":"none"}`,
		generate + body(`"prompt":"a"`, `"raw":true`, `"system":"b"`), generate + body(`"prompt":"a"`, `"suffix":"b"`), generate + body(`"prompt":"a"`, `"template":"b"`), generate + body(`"prompt":"a"`, `"context":[1]`),
		generate + body(`"prompt":"a"`, `"images":["x"]`), generate + `{"model":"none","prompt":"a","raw":true}`,
	} {
		parts := strings.SplitN(line+" ", " ", 3)
		out, text := g.Call(t, parts[0], parts[1], strings.TrimSpace(parts[2]))
		fmt.Fprintf(&all, "%s\n%s %s\n\n", line, out.Status, text)
	}
	servertest.Golden(t, "endpoints.txt", all.String(), varies)
}
