package openai_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/repotest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/openai"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// hang bounds waits for events that come much sooner.
const hang = time.Minute

// gateway is a gateway in front of a fake server.
type gateway struct {
	*servertest.Server
	url string
}

// start serves the dialect on a port of loopback until the test ends.
func start(t testing.TB, s *servertest.Server, change func(*httpapi.Config)) *gateway {
	t.Helper()
	cfg := httpapi.Config{
		Dialects: []httpapi.Dialect{openai.New(s.Start(t))}, Ready: func(context.Context) error { return nil },
		MaxConnections: 100, MaxBodyBytes: 1 << 20, MaxHeldBytes: 8 << 20, SendStall: hang, DrainTimeout: hang,
	}
	if change != nil {
		change(&cfg)
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- httpapi.New(cfg, rpctest.Logger(t)).Serve(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return &gateway{s, "http://" + lis.Addr().String()}
}

// call makes a request. headers are names and values.
func (g *gateway) call(t testing.TB, method, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	in, err := http.NewRequestWithContext(t.Context(), method, g.url+path, strings.NewReader(body))
	require.NoError(t, err)
	in.Header.Set("X-Request-Id", "id")
	for i := 0; i < len(headers); i += 2 {
		in.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: hang}
	out, err := client.Do(in)
	require.NoError(t, err)
	raw, err := io.ReadAll(out.Body)
	require.NoError(t, err)
	require.NoError(t, out.Body.Close())
	return out, string(raw)
}

var created = regexp.MustCompile(`"created":\d+`)

// golden compares a text with a file of testdata.
func golden(t *testing.T, name, text string) {
	t.Helper()
	text = created.ReplaceAllString(servertest.EventIDs.ReplaceAllString(text, ""), `"created":1`)
	path := filepath.Join("testdata", name)
	if *repotest.Update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "the same test with -update writes it")
	require.Equal(t, string(want), text, name)
}

// chat returns the body of a chat request with further fields.
func chat(fields ...string) string {
	all := append([]string{`"model":"` + servertest.Model + `"`, `"messages":[{"role":"user","content":"hi"}]`, `"seed":7`}, fields...)
	return "{" + strings.Join(all, ",") + "}"
}

// seeded returns the body of a chat request with a seed.
func seeded(seed string) string { return strings.Replace(chat(), `"seed":7`, `"seed":`+seed, 1) }

// weather are tools, and toolTurns a conversation in which one was called.
const (
	weather = `"tools":[{"type":"function","function":{"name":"weather","description":"Says it.","strict":true,
		"parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}}}]`
	toolTurns = `{"role":"user","content":"hi"},
		{"role":"assistant","content":null,"reasoning_content":"Hm.","tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Oslo\"}"}}]},
		{"role":"tool","tool_call_id":"call_1","content":[{"type":"text","text":"sunny"}]}`
)

// Tools, their choice and earlier calls reach the server.
func TestToolsReachTheServer(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	for choice, want := range map[string]*pb.ToolChoice{
		`"none"`: {Mode: pb.ToolMode_TOOL_MODE_NONE}, `"required"`: {Mode: pb.ToolMode_TOOL_MODE_REQUIRED}, `null`: nil,
		`{"type":"function","function":{"name":"weather"}}`: {Mode: pb.ToolMode_TOOL_MODE_REQUIRED, Name: proto.String("weather")},
	} {
		body := strings.Replace(chat(weather, `"tool_choice":`+choice), `{"role":"user","content":"hi"}`, toolTurns, 1)
		out, text := g.call(t, http.MethodPost, "/v1/chat/completions", body)
		require.Equal(t, http.StatusOK, out.StatusCode, text)
		in, _ := g.Last()
		require.True(t, in.GetResponse().GetParts())
		got := in.GetChat()
		require.True(t, proto.Equal(want, got.GetToolChoice()), "%v", got.GetToolChoice())
		require.Equal(t, "weather", got.GetTools()[0].GetName())
		require.True(t, got.GetTools()[0].GetStrict())
		require.True(t, strings.HasPrefix(got.GetTools()[0].GetParameters(), `{"type":"object"`))
		call := &pb.ToolCall{Id: "call_1", Name: "weather", Arguments: `{"city":"Oslo"}`}
		require.True(t, proto.Equal(call, got.GetMessages()[1].GetToolCalls()[0]))
		require.Equal(t, "Hm.", got.GetMessages()[1].GetReasoning())
		require.Equal(t, "call_1", got.GetMessages()[2].GetToolCallId())
		require.Equal(t, "sunny", got.GetMessages()[2].GetContent())
	}
}

func TestChatAnswers(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	for name, body := range map[string]string{
		"chat-whole.json":           chat(),
		"chat-whole-n.json":         chat(`"n":2`, `"max_tokens":1`, `"service_tier":"default"`),
		"chat-whole-logprobs.json":  chat(`"logprobs":true`, `"top_logprobs":2`),
		"chat-stream.txt":           chat(`"stream":true`),
		"chat-stream-usage.txt":     chat(`"stream":true`, `"n":2`, `"max_tokens":2`, `"stream_options":{"include_usage":true}`),
		"chat-stream-logprobs.txt":  chat(`"stream":true`, `"max_completion_tokens":3`, `"logprobs":true`, `"top_logprobs":1`),
		"chat-stream-negative.txt":  strings.Replace(seeded("-7"), "{", `{"stream":true,"max_tokens":1,`, 1),
		"chat-whole-tools.json":     chat(weather, `"tool_choice":"auto"`),
		"chat-whole-forced.json":    chat(weather, `"tool_choice":{"type":"function","function":{"name":"weather"}}`, `"max_tokens":3`),
		"chat-whole-result.json":    strings.Replace(chat(weather), `{"role":"user","content":"hi"}`, toolTurns, 1),
		"chat-stream-tools.txt":     chat(`"stream":true`, weather, `"parallel_tool_calls":false`, `"stream_options":{"include_usage":true}`),
		"chat-whole-unlogprob.json": chat(`"logprobs":false`, `"tools":[]`, `"tool_choice":"none"`, `"response_format":{"type":"text"}`, `"store":false`),
	} {
		out, text := g.call(t, http.MethodPost, "/v1/chat/completions", body)
		require.Equal(t, http.StatusOK, out.StatusCode, text)
		require.Equal(t, "id", out.Header.Get("X-Request-Id"))
		require.Empty(t, out.Header.Get("Millrace-Skipped"))
		want := "application/json"
		if strings.HasSuffix(name, ".txt") {
			want = "text/event-stream"
			require.True(t, strings.HasSuffix(text, "data: [DONE]\n\n"), text)
		}
		require.Equal(t, want, out.Header.Get("Content-Type"))
		golden(t, name, text)
	}
}

// completion returns the body of a completion request with a prompt and further fields.
func completion(prompt string, fields ...string) string {
	all := append([]string{`"model":"` + servertest.Model + `"`, `"prompt":` + prompt, `"seed":7`}, fields...)
	return "{" + strings.Join(all, ",") + "}"
}

func TestCompletionsAnswer(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	for name, body := range map[string]string{
		"completion-whole.json":         completion(`"Once upon"`),
		"completion-ids.json":           completion(`[1,3]`, `"n":2`, `"max_tokens":1`),
		"completion-echo.json":          completion(`[0,1]`, `"echo":true`, `"max_tokens":0`),
		"completion-logprobs.json":      completion(`"abcdef"`, `"echo":true`, `"max_tokens":2`, `"logprobs":2`),
		"completion-logprobs-0.json":    completion(`[0,1,2]`, `"echo":true`, `"max_tokens":1`, `"logprobs":0`),
		"completion-stream.txt":         completion(`"Once upon"`, `"stream":true`),
		"completion-stream-echo.txt":    completion(`"Oncé"`, `"stream":true`, `"echo":true`, `"max_tokens":1`, `"logprobs":1`, `"stream_options":{"include_usage":true}`),
		"completion-prompts.json":       completion(`["a","b"]`, `"n":2`, `"best_of":2`, `"max_tokens":1`),
		"completion-prompts-ids.json":   completion(`[[0],[1]]`, `"max_tokens":1`, `"echo":true`),
		"completion-one-of-a-list.json": completion(`["a"]`, `"max_tokens":1`),
	} {
		out, text := g.call(t, http.MethodPost, "/v1/completions", body)
		require.Equal(t, http.StatusOK, out.StatusCode, text)
		golden(t, name, text)
	}
}

func TestStreamOfSeveralPromptsHasAll(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	out, text := g.call(t, http.MethodPost, "/v1/completions", completion(`["a","b","c"]`, `"stream":true`, `"n":2`, `"stream_options":{"include_usage":true}`))
	require.Equal(t, http.StatusOK, out.StatusCode, text)
	for i := range 6 {
		require.Equal(t, 1, strings.Count(text, fmt.Sprintf(`{"index":%d,"text":" five","logprobs":null,"finish_reason":null}`, i)))
		require.Equal(t, 1, strings.Count(text, fmt.Sprintf(`{"index":%d,"text":"","logprobs":null,"finish_reason":"stop"}`, i)))
	}
	require.Contains(t, text, `"choices":[],"usage":{"prompt_tokens":18,"completion_tokens":30,"total_tokens":48`)
	require.True(t, strings.HasSuffix(text, "data: [DONE]\n\n"))
}

func TestOnePromptThatFailsEndsAll(t *testing.T) {
	g := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if in.GetPrompt() == "bad" {
			return servertest.Refusal(codes.InvalidArgument, reason.PromptTooLong, "the prompt is too long")
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}}, nil)
	out, text := g.call(t, http.MethodPost, "/v1/completions", completion(`["a","bad","c"]`))
	require.Equal(t, http.StatusBadRequest, out.StatusCode)
	require.Contains(t, text, reason.PromptTooLong)
}

func TestOtherEndpoints(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	var all bytes.Buffer
	for _, line := range []string{
		"GET /v1/models", "GET /v1/models/" + servertest.Model, "GET /v1/models/file", "GET /v1/models/none",
		`POST /tokenize {"model":"org/model","prompt":"abcdef","return_token_strs":true}`,
		`POST /tokenize {"model":"org/model","messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false}`,
		`POST /tokenize {"model":"org/model"}`, `POST /tokenize {"prompt":"a"}`,
		`POST /detokenize {"model":"org/model","tokens":[0,1]}`, `POST /detokenize {"model":"org/model","tokens":[99]}`, `POST /detokenize {"model":"m"}`,
		`POST /v1/embeddings {"model":"org/model","input":"a"}`, `POST /v1/embeddings {"model":"org/model","input":[[1]]}`,
		`POST /v1/embeddings {"model":"org/model","input":["a",""]}`, `POST /v1/embeddings {"model":"org/model"}`,
		`POST /v1/embeddings {"model":"org/model","input":"a","encoding_format":"hex"}`, `POST /v1/embeddings {"model":"org/model","input":"a","dimensions":0}`,
		`POST /v1/embeddings {"model":"org/model","input":[[]]}`, `POST /v1/rerank {"model":"org/model","query":"q","documents":["a"]}`,
		`POST /v1/rerank {"model":"org/model","documents":["a"]}`, `POST /v1/rerank {"model":"org/model","query":"q"}`,
		`POST /v1/rerank {"model":"org/model","query":"q","documents":["a",{"text":"b"},{"title":"c"}]}`, `POST /v1/rerank {"query":"q","documents":["a"]}`,
		`POST /v1/rerank {"model":"org/model","query":"q","documents":["a"],"top_n":0}`,
		`POST /v1/rerank {"model":"org/model","query":"q","documents":["a"],"max_tokens_per_doc":5}`,
		`POST /v1/completions {"model":"m"}`, `POST /v1/completions ` + completion(`""`), `POST /v1/completions ` + completion(`[]`),
		`POST /v1/completions ` + completion(`["a",[1]]`), `POST /v1/completions ` + completion(`["a",""]`), `POST /v1/completions ` + completion(`[1.5]`),
		`POST /v1/completions ` + completion(`"a"`, `"suffix":"b"`), `POST /v1/completions ` + completion(`"a"`, `"best_of":3`),
		`POST /v1/completions ` + completion(`"a"`, `"add_special_tokens":false`), `POST /v1/completions ` + completion(`{}`),
		`POST /v1/completions ` + completion(`["`+strings.Repeat(`a","`, 128)+`a"]`),
	} {
		parts := strings.SplitN(line, " ", 3)
		body := ""
		if len(parts) == 3 {
			body = parts[2]
		}
		out, text := g.call(t, parts[0], parts[1], body)
		all.WriteString(fmt.Sprintf("%.200s", line) + "\n" + out.Status + " " + text + "\n\n")
	}
	golden(t, "endpoints.txt", all.String())
}

func TestEmbeddingsAnswer(t *testing.T) {
	var requests []*pb.EmbedRequest
	g := start(t, &servertest.Server{OnEmbed: func(in *pb.EmbedRequest) (*pb.EmbedResponse, error) {
		out := &pb.EmbedResponse{}
		for range len(in.GetTexts()) + len(in.GetTokenIds()) {
			out.Embeddings = append(out.Embeddings, &pb.Embedding{Values: []float32{1, -0.5}})
		}
		out.Usage = &pb.Usage{PromptTokens: 5}
		requests = append(requests, in)
		return out, nil
	}}, nil)
	_, text := g.call(t, http.MethodPost, "/v1/embeddings", `{"model":"m","input":["a","b"],"user":"u"}`)
	require.JSONEq(t, `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1,-0.5]},{"object":"embedding","index":1,"embedding":[1,-0.5]}],
		"model":"m","usage":{"prompt_tokens":5,"total_tokens":5}}`, text)
	require.Equal(t, "u", requests[0].GetFairnessId())
	_, text = g.call(t, http.MethodPost, "/v1/embeddings", `{"model":"m","input":[[1,2],[3]],"dimensions":2}`)
	require.Contains(t, text, `"index":1`)
	require.Equal(t, []uint32{1, 2}, requests[1].GetTokenIds()[0].GetIds())
	require.EqualValues(t, 2, requests[1].GetDimensions())
	_, text = g.call(t, http.MethodPost, "/v1/embeddings", `{"model":"m","input":"a","encoding_format":"base64"}`)
	require.Contains(t, text, `"embedding":"AACAPwAAAL8="`)
}

func TestLargeEmbeddingsComeInParts(t *testing.T) {
	// The server's response holds two texts. It says how large that of five would be.
	var parts []int
	g := start(t, &servertest.Server{OnEmbed: func(in *pb.EmbedRequest) (*pb.EmbedResponse, error) {
		n := len(in.GetTexts())
		parts = append(parts, n)
		if n > 2 {
			return nil, rpc.Error{Code: codes.InvalidArgument, Domain: rpc.WorkerDomain, Reason: reason.ResponseTooLarge, Message: "too large",
				Metadata: map[string]string{"bytes": strconv.Itoa(n * 100), "max_bytes": "250"}}.Err()
		}
		out := &pb.EmbedResponse{Usage: &pb.Usage{PromptTokens: uint32(n)}, ModelDigest: "d", ClassId: "c"}
		for _, text := range in.GetTexts() {
			x, _ := strconv.ParseFloat(text, 32)
			out.Embeddings = append(out.Embeddings, &pb.Embedding{Values: []float32{float32(x)}})
		}
		if len(parts) > 2 && (in.GetExpectModelDigest() != "d" || in.GetExpectClassId() != "c") {
			return nil, servertest.Refusal(codes.InvalidArgument, reason.InvalidArgument, "the parts may be of different models")
		}
		return out, nil
	}}, nil)
	_, text := g.call(t, http.MethodPost, "/v1/embeddings", `{"model":"m","input":["1","2","3","4","5"]}`)
	require.Equal(t, []int{5, 2, 2, 1}, parts)
	for i := 1; i <= 5; i++ {
		require.Contains(t, text, fmt.Sprintf(`"index":%d,"embedding":[%d]`, i-1, i))
	}
	require.Contains(t, text, `"prompt_tokens":5`)
}

func TestRerankAnswer(t *testing.T) {
	var last *pb.RerankRequest
	g := start(t, &servertest.Server{OnRerank: func(in *pb.RerankRequest) (*pb.RerankResponse, error) {
		last = in
		return &pb.RerankResponse{Usage: &pb.Usage{PromptTokens: 9}, Results: []*pb.RerankResult{{Index: 1, Score: 0.75}, {Index: 0, Score: 0.5}}}, nil
	}}, nil)
	_, text := g.call(t, http.MethodPost, "/v1/rerank", `{"model":"m","query":{"text":"q"},"documents":["a",{"text":"b"}],"return_documents":true,"user":"u"}`)
	require.JSONEq(t, `{"model":"m","results":[{"index":1,"relevance_score":0.75,"document":{"text":"b"}},{"index":0,"relevance_score":0.5,"document":{"text":"a"}}],
		"usage":{"prompt_tokens":9,"total_tokens":9}}`, text)
	require.Equal(t, "u", last.GetFairnessId())
	for _, path := range []string{"/v2/rerank", "/rerank"} {
		_, text = g.call(t, http.MethodPost, path, `{"model":"m","query":"q","documents":["a","b"],"top_n":2,"instruction":"i","truncate":true}`)
		require.NotContains(t, text, "document")
	}
	require.True(t, proto.Equal(&pb.RerankRequest{
		Model: "m", Query: "q", Documents: []string{"a", "b"}, TopN: proto.Uint32(2), Instruction: proto.String("i"), Truncate: proto.Bool(true),
	}, last), "%v", last)
}

func TestSeedIsDrawnBelowTwoToThe53(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	_, text := g.call(t, http.MethodPost, "/v1/chat/completions", strings.Replace(chat(), `,"seed":7`, "", 1))
	in, _ := g.Last()
	require.Less(t, in.GetSampling().GetSeed(), uint64(1)<<53)
	require.Contains(t, text, `"seed":`)
}

func TestErrorsHaveOpenAIsShape(t *testing.T) {
	g := start(t, &servertest.Server{}, nil)
	var all bytes.Buffer
	for _, body := range []string{
		``, `[]`, `{"model":1}`, `{"modell":"m"}`, `{"messages":[{"rolle":"user"}]}`,
		`{}`, `{"model":"m"}`, `{"model":"m","messages":[]}`, `{"model":"m","messages":[{"content":"a"}]}`,
		`{"model":"m","messages":[{"role":"user","content":5}]}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}]}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]}`,
		`{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"x"}]}]}`,
		`{"model":"m","messages":[{"role":"tool","tool_call_id":"x","content":""}]}`,
		chat(`"tools":[{"type":"custom","custom":{"name":"f"}}]`), chat(`"tools":[{"type":"function"}]`), chat(`"tool_choice":{"type":"function"}`),
		chat(`"tool_choice":"required"`), chat(weather, `"tool_choice":"any way"`), chat(weather, `"tool_choice":{"type":"allowed_tools","allowed_tools":{}}`),
		chat(`"response_format":{"type":"grammar"}`), chat(`"response_format":{"type":"json_schema"}`), chat(`"structured_outputs":{}`), chat(`"structured_outputs":{"regex":"a","grammar":"b"}`), chat(`"audio":{}`), chat(`"modalities":["text","audio"]`), chat(`"store":true`),
		chat(`"n":0`), chat(`"n":17`), chat(`"top_logprobs":2`), chat(`"max_tokens":1`, `"max_completion_tokens":2`),
		chat(`"logit_bias":{"a":1}`), chat(`"service_tier":"scale"`), chat(`"timeout":0`), chat(`"stream_options":{}`),
		chat(`"skip_special_tokens":false`), chat(`"chat_template_kwargs":[1]`), seeded("1.5"), seeded("18446744073709551616"), seeded(`"7"`), chat(`"seed":8`),
		strings.Replace(chat(), servertest.Model, "other", 1),
	} {
		out, text := g.call(t, http.MethodPost, "/v1/chat/completions", body)
		all.WriteString(body + "\n" + out.Status + " " + text + "\n\n")
	}
	for _, path := range []string{"GET /v1/chat/completions", "POST /v1/other", "GET /"} {
		method, path, _ := strings.Cut(path, " ")
		out, text := g.call(t, method, path, "")
		all.WriteString(method + " " + path + "\n" + out.Status + " " + text + "\n\n")
	}
	golden(t, "errors.txt", all.String())
}

func TestDeadlineEndsAWholeAnswer(t *testing.T) {
	ended := make(chan error, 1)
	g := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := stream.Send(servertest.Started(in)); err != nil {
			return err
		}
		<-stream.Context().Done()
		ended <- stream.Context().Err()
		return stream.Context().Err()
	}}, nil)
	out, text := g.call(t, http.MethodPost, "/v1/chat/completions", chat(`"timeout":0.05`))
	require.Equal(t, http.StatusGatewayTimeout, out.StatusCode, text)
	require.Error(t, <-ended)
}

func TestTenantOfAKeyWinsOverTheUser(t *testing.T) {
	// A server with keys refuses a fairness_id that is not its key's, and clients of OpenAI send users to every server.
	var calls atomic.Int32
	g := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		calls.Add(1)
		if in.FairnessId != nil {
			return servertest.Refusal(codes.PermissionDenied, reason.OtherTenant, "fairness_id is another")
		}
		return servertest.Answer(in, stream)
	}}, nil)
	for i := range 2 {
		out, text := g.call(t, http.MethodPost, "/v1/chat/completions", chat(`"user":"u"`))
		require.Equal(t, http.StatusOK, out.StatusCode, text)
		require.Equal(t, "user", out.Header.Get("Millrace-Skipped"))
		require.EqualValues(t, 2+i, calls.Load(), "the refusal is remembered")
	}
}
