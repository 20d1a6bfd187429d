package resume_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/anthropic"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/openai"
	"github.com/millrace/millrace/services/gateway/internal/responses"
	"github.com/millrace/millrace/services/gateway/internal/resume"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/internal/reason"
)

// key is shared by the gateways of a test.
var key = []byte(strings.Repeat("k", 32))

// gateways are gateways of every dialect with the same key, over one server.
type gateways map[string]*servertest.Gateway

func start(t *testing.T, s *servertest.Server) gateways {
	t.Helper()
	client, all := s.Start(t), gateways{}
	for path, open := range map[string]func(c *target.Client) httpapi.Dialect{
		"/v1/chat/completions": func(c *target.Client) httpapi.Dialect { return openai.New(c) },
		"/v1/responses":        func(c *target.Client) httpapi.Dialect { return responses.New(c) },
		"/v1/messages":         func(c *target.Client) httpapi.Dialect { return anthropic.New(c) },
	} {
		all[path] = servertest.Serve(t, open(client), func(c *httpapi.Config) { c.StreamKey = key })
	}
	all["/v1/completions"] = all["/v1/chat/completions"]
	return all
}

// call makes a request. id is that of the last event, or "".
func (g gateways) call(t *testing.T, path, body, id string, headers ...string) (int, string) {
	t.Helper()
	if id != "" {
		headers = append(headers, "Last-Event-ID", id)
	}
	out, text := g[path].Call(t, http.MethodPost, path, body, headers...)
	return out.StatusCode, text
}

// events divides a stream into its events.
func events(text string) []string {
	all := strings.SplitAfter(text, "\n\n")
	return all[:len(all)-1]
}

// idOf returns the id of an event, or "".
func idOf(event string) string {
	line, _, _ := strings.Cut(event, "\n")
	id, _ := strings.CutPrefix(line, "id: ")
	if id == line {
		return ""
	}
	return id
}

// requests are streams of every path, with what decides their events.
var requests = []struct{ name, path, fields string }{
	{"chat", "/v1/chat/completions", `"messages":[{"role":"user","content":"hi"}]`},
	{"chat of two outputs", "/v1/chat/completions", `"n":2,"seed":-7,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]`},
	{"chat with logprobs", "/v1/chat/completions", `"logprobs":true,"top_logprobs":1,"messages":[{"role":"user","content":"hi"}]`},
	{"completion", "/v1/completions", `"prompt":"hi","stream_options":{"include_usage":true}`},
	{"echoed completion", "/v1/completions", `"prompt":"hi","echo":true,"logprobs":1,"n":2`},
	{"response", "/v1/responses", `"input":"hi"`},
	{"incomplete response", "/v1/responses", `"input":"hi","max_output_tokens":2,"seed":5`},
	{"message", "/v1/messages", `"max_tokens":9,"messages":[{"role":"user","content":"hi"}]`},
}

func body(fields string) string {
	return fmt.Sprintf(`{"model":%q,"stream":true,%s}`, servertest.Model, fields)
}

// completion is when an answer ended: of a stream that goes on, later than the first time.
var completion = regexp.MustCompile(`"completed_at":[0-9]+`)

func withoutCompletion(text string) string {
	return completion.ReplaceAllString(text, `"completed_at":0`)
}

func TestStreamContinuesAfterAnyEvent(t *testing.T) {
	// A client that breaks off after any event gets exactly the bytes that it lacks.
	s := &servertest.Server{}
	g := start(t, s)
	for _, r := range requests {
		t.Run(r.name, func(t *testing.T) {
			status, whole := g.call(t, r.path, body(r.fields), "", "X-Request-Id", "first")
			require.Equal(t, http.StatusOK, status, whole)
			first, _ := s.Last()
			all := events(whole)
			for i, event := range all {
				id := idOf(event)
				if i == len(all)-1 && strings.HasSuffix(event, "[DONE]\n\n") {
					require.Empty(t, id)
					continue
				}
				require.NotEmpty(t, id, event)
				require.LessOrEqual(t, len(id), 200)
				status, rest := g.call(t, r.path, body(r.fields), id)
				require.Equal(t, http.StatusOK, status, rest)
				require.Equal(t, withoutCompletion(": continued\n\n"+strings.Join(all[i+1:], "")), withoutCompletion(rest), "after event %d", i)
				again, _ := s.Last()
				require.Equal(t, first.GetSampling().GetSeed(), again.GetSampling().GetSeed())
				require.Equal(t, "class", again.GetExpectClassId())
				require.True(t, proto.Equal(first.GetAcceptedAt(), again.GetAcceptedAt()))
			}
		})
	}
}

// grouped answers as Answer, with up to n tokens in an event.
func grouped(n int) func(*pb.GenerateRequest, grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	return func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		return servertest.Answer(in, &grouping{ServerStreamingServer: stream, n: n})
	}
}

// grouping joins the tokens of a stream.
type grouping struct {
	grpc.ServerStreamingServer[pb.GenerateResponse]
	n    int
	held []*pb.Tokens
}

func (g *grouping) Send(e *pb.GenerateResponse) error {
	if t := e.GetTokens(); t != nil {
		i := slices.IndexFunc(g.held, func(o *pb.Tokens) bool { return o.GetOutputIndex() == t.GetOutputIndex() })
		if i < 0 {
			i, g.held = len(g.held), append(g.held, &pb.Tokens{OutputIndex: t.OutputIndex, TokenIndex: t.TokenIndex})
		}
		h := g.held[i]
		h.TokenIds, h.Text, h.Details = append(h.TokenIds, t.GetTokenIds()...), h.GetText()+t.GetText(), append(h.Details, t.GetDetails()...)
		for _, p := range t.GetParts() { // as a worker joins them
			if n := len(h.Parts); n > 0 && p.GetCall() == nil && h.Parts[n-1].GetKind() == p.GetKind() {
				h.Parts[n-1] = &pb.Part{Kind: p.GetKind(), TextBytes: h.Parts[n-1].GetTextBytes() + p.GetTextBytes(), Call: h.Parts[n-1].GetCall()}
			} else {
				h.Parts = append(h.Parts, p)
			}
		}
		if len(h.GetTokenIds()) < g.n {
			return nil
		}
	}
	for _, h := range g.held {
		if err := g.ServerStreamingServer.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: h}}); err != nil {
			return err
		}
	}
	g.held = nil
	if e.GetTokens() != nil {
		return nil
	}
	return g.ServerStreamingServer.Send(e)
}

// texts returns the text of each output that the deltas of a stream have together.
func texts(t *testing.T, stream string) map[int]string {
	t.Helper()
	all := map[int]string{}
	for _, event := range events(stream) {
		_, data, ok := strings.Cut(event, "data: ")
		if !ok || strings.HasPrefix(data, "[DONE]") {
			continue
		}
		var e struct {
			Type    string          `json:"type"`
			Delta   json.RawMessage `json:"delta"`
			Choices []struct {
				Index int    `json:"index"`
				Text  string `json:"text"`
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
		}
		require.NoError(t, json.Unmarshal([]byte(data), &e), data)
		for _, c := range e.Choices {
			all[c.Index] += c.Text + c.Delta.Content
		}
		var text string
		var object struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(e.Delta, &text) == nil || json.Unmarshal(e.Delta, &object) == nil {
			all[0] += text + object.Text
		}
	}
	return all
}

func TestRunsMayDivideTextDifferently(t *testing.T) {
	for before := 1; before <= 5; before++ {
		first := start(t, &servertest.Server{OnGenerate: grouped(before)})
		for after := 1; after <= 5; after++ {
			second := start(t, &servertest.Server{OnGenerate: grouped(after)})
			for _, r := range requests {
				_, whole := first.call(t, r.path, body(r.fields), "")
				all, want := events(whole), texts(t, whole)
				for i, event := range all {
					if idOf(event) == "" {
						continue
					}
					status, rest := second.call(t, r.path, body(r.fields), idOf(event))
					require.Equal(t, http.StatusOK, status, rest)
					require.Equal(t, want, texts(t, strings.Join(all[:i+1], "")+rest), "%s: tokens of %d, then of %d, after event %d", r.name, before, after, i)
				}
			}
		}
	}
}

func TestSequenceNumbersContinue(t *testing.T) {
	first, second := start(t, &servertest.Server{}), start(t, &servertest.Server{OnGenerate: grouped(3)})
	const path = "/v1/responses"
	_, whole := first.call(t, path, body(`"input":"hi"`), "")
	for i, event := range events(whole) {
		_, rest := second.call(t, path, body(`"input":"hi"`), idOf(event))
		for k, later := range events(rest)[1:] {
			require.Contains(t, later, fmt.Sprintf(`"sequence_number":%d,`, i+1+k))
		}
	}
}

func TestIDsAreBound(t *testing.T) {
	// An id is worth nothing for another body, token, path or key, nor if a byte of it differs.
	s := &servertest.Server{}
	g := start(t, s)
	const path, fields = "/v1/chat/completions", `"messages":[{"role":"user","content":"hi"}]`
	_, whole := g.call(t, path, body(fields), "", "Authorization", "Bearer a")
	id := idOf(events(whole)[1])
	other := servertest.Serve(t, openai.New(s.Start(t)), func(c *httpapi.Config) { c.StreamKey = []byte(strings.Repeat("x", 32)) })
	status, text := g.call(t, path, body(fields), id, "X-Api-Key", "a")
	require.Equal(t, http.StatusOK, status, text)
	for name, tc := range map[string]struct {
		g              gateways
		body, id, auth string
	}{
		"another body":   {g, body(fields + `,"n":1`), id, "Bearer a"},
		"another token":  {g, body(fields), id, "Bearer b"},
		"another key":    {gateways{path: other}, body(fields), id, "Bearer a"},
		"a changed id":   {g, body(fields), "B" + id[1:], "Bearer a"},
		"an id cut":      {g, body(fields), id[:len(id)-1], "Bearer a"},
		"no base64":      {g, body(fields), "?", "Bearer a"},
		"a long id":      {g, body(fields), strings.Repeat("A", resume.MaxIDLength+1), "Bearer a"},
		"no stream":      {g, strings.Replace(body(fields), "true", "false", 1), id, "Bearer a"},
		"another output": {g, body(`"n":2,` + fields), id, "Bearer a"},
	} {
		status, text := tc.g.call(t, path, tc.body, tc.id, "Authorization", tc.auth)
		require.Equal(t, http.StatusBadRequest, status, name)
		require.Contains(t, text, `"param":"Last-Event-ID"`, name)
	}
	status, text = g.call(t, "/v1/completions", body(`"prompt":["a","b"]`), "")
	require.Equal(t, http.StatusOK, status)
	require.NotContains(t, text, "id: ", "events of several prompts have none")
	status, text = g.call(t, "/v1/completions", body(`"prompt":["a","b"]`), id)
	require.Equal(t, http.StatusBadRequest, status, text)
}

// changed answers with an event changed.
func changed(change func(e *pb.GenerateResponse)) func(*pb.GenerateRequest, grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	return func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		return servertest.Answer(in, &changing{stream, change})
	}
}

type changing struct {
	grpc.ServerStreamingServer[pb.GenerateResponse]
	change func(e *pb.GenerateResponse)
}

func (c *changing) Send(e *pb.GenerateResponse) error {
	c.change(e)
	return c.ServerStreamingServer.Send(e)
}

func TestOtherTokensAreNoContinuation(t *testing.T) {
	const path, fields = "/v1/responses", `"input":"hi"`
	_, whole := start(t, &servertest.Server{}).call(t, path, body(fields), "")
	after := events(whole)[6] // two of its texts
	for name, change := range map[string]func(e *pb.GenerateResponse){
		"another model": func(e *pb.GenerateResponse) {
			if s := e.GetStarted(); s != nil {
				s.ModelDigest = "another"
			}
		},
		"another prompt": func(e *pb.GenerateResponse) {
			if s := e.GetStarted(); s != nil {
				s.PromptDigest = "another"
			}
		},
		"a longer text": func(e *pb.GenerateResponse) {
			if tokens := e.GetTokens(); tokens != nil {
				tokens.Text += "x"
			}
		},
		"a shorter text": func(e *pb.GenerateResponse) {
			if tokens := e.GetTokens(); tokens != nil {
				tokens.Text = ""
			}
		},
	} {
		_, text := start(t, &servertest.Server{OnGenerate: changed(change)}).call(t, path, body(fields), idOf(after))
		require.Contains(t, text, reason.ResumeMismatch, name)
		require.NotContains(t, text, "output_text.delta", name)
	}
	status, text := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		in.Stopping.MaxTokens = proto.Int32(1)
		return servertest.Answer(in, stream)
	}}).call(t, path, body(fields), idOf(after))
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, text, "fewer tokens")
}

func TestStreamOfTwoClassesIsNotContinued(t *testing.T) {
	const path, fields = "/v1/messages", `"max_tokens":9,"messages":[{"role":"user","content":"hi"}]`
	g := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		again := servertest.Started(in)
		again.GetStarted().Exact = proto.Bool(false)
		for _, e := range []*pb.GenerateResponse{servertest.Started(in), servertest.Token(in, 0, 0), again, servertest.Token(in, 0, 1)} {
			if err := stream.Send(e); err != nil {
				return err
			}
		}
		return nil
	}})
	_, whole := g.call(t, path, body(fields), "")
	all := events(whole)
	status, text := g.call(t, path, body(fields), idOf(all[4]))
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, text, reason.ResumeMismatch)
	_, text = g.call(t, path, body(fields), idOf(all[3]))
	_, later, _ := strings.Cut(all[4], "\n") // without its id
	require.Contains(t, text, later, "the client has only tokens of the first class")
}
