package resume_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
)

// calling are streams whose answer has reasoning, content and a call.
var calling = []struct{ path, fields string }{
	{"/v1/chat/completions", `"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}]`},
	{"/v1/responses", `"input":"hi","tools":[{"type":"function","name":"f"}]`},
	{"/v1/messages", `"max_tokens":9,"thinking":{"type":"enabled","budget_tokens":1024},"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"f","input_schema":{"type":"object"}}]`},
}

// early sends the beginning of a call with the token before its first text, as a token that completes the name does.
type early struct {
	grpc.ServerStreamingServer[pb.GenerateResponse]
	held *pb.GenerateResponse
}

func (s *early) Send(e *pb.GenerateResponse) error {
	if s.held != nil {
		held := s.held.GetTokens()
		if s.held = nil; len(e.GetTokens().GetParts()) > 0 {
			p := e.GetTokens().GetParts()[0]
			held.Parts = append(held.Parts, &pb.Part{Kind: p.GetKind(), Call: p.GetCall()})
			p.Call = nil
		}
		if err := s.ServerStreamingServer.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: held}}); err != nil {
			return err
		}
	}
	if e.GetTokens().GetText() == servertest.CallWords[1] {
		s.held = e
		return nil
	}
	return s.ServerStreamingServer.Send(e)
}

// callingServer sends up to n tokens in an event.
func callingServer(n int) *servertest.Server {
	return &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		return servertest.Answer(in, &early{ServerStreamingServer: &grouping{ServerStreamingServer: stream, n: n}})
	}}
}

// summary is what the deltas of a stream have together: each kind of text, and the beginnings of calls.
func summary(t *testing.T, stream string) string {
	t.Helper()
	var reasoning, content, calls string
	for _, event := range events(stream) {
		_, data, ok := strings.Cut(event, "data: ")
		if !ok || strings.HasPrefix(data, "[DONE]") {
			continue
		}
		var e struct {
			Type    string          `json:"type"`
			Delta   json.RawMessage `json:"delta"`
			Item    item            `json:"item"`
			Block   item            `json:"content_block"`
			Choices []struct{ Delta delta }
		}
		require.NoError(t, json.Unmarshal([]byte(data), &e), data)
		var d delta
		var text string
		if json.Unmarshal(e.Delta, &d) == nil {
			e.Choices = append(e.Choices, struct{ Delta delta }{d})
		} else if json.Unmarshal(e.Delta, &text) == nil {
			switch e.Type {
			case "response.reasoning_text.delta":
				reasoning += text
			case "response.output_text.delta":
				content += text
			default:
				calls += text
			}
		}
		if e.Type == "response.output_item.added" && e.Item.CallID != "" || e.Block.ID != "" {
			calls += "<" + e.Item.CallID + e.Block.ID + " " + e.Item.Name + e.Block.Name + ">"
		}
		for _, c := range e.Choices {
			reasoning, content, calls = reasoning+c.Delta.Reasoning+c.Delta.Thinking, content+c.Delta.Content+c.Delta.Text, calls+c.Delta.Partial
			for _, call := range c.Delta.Calls {
				if call.ID != "" {
					calls += "<" + call.ID + " " + call.Function.Name + ">"
				}
				calls += call.Function.Arguments
			}
		}
	}
	return reasoning + "|" + content + "|" + calls
}

type item struct {
	ID     string `json:"id"`
	CallID string `json:"call_id"`
	Name   string `json:"name"`
}

type delta struct {
	Content   string `json:"content"`
	Reasoning string `json:"reasoning_content"`
	Text      string `json:"text"`
	Thinking  string `json:"thinking"`
	Partial   string `json:"partial_json"`
	Calls     []struct {
		ID       string
		Function struct{ Name, Arguments string }
	} `json:"tool_calls"`
}

// A client that breaks off inside a call, or between the kinds of text of one token, gets what it lacks and no call twice, however
// the tokens come again.
func TestCallsContinueAfterAnyEvent(t *testing.T) {
	want := fmt.Sprintf("%s|%s|<%s f>%s", servertest.CallWords[0], servertest.CallWords[1], servertest.CallID, strings.Join(servertest.CallWords[2:], ""))
	var all []gateways
	for n := 1; n <= 5; n++ {
		all = append(all, start(t, callingServer(n)))
	}
	for before, first := range all {
		for _, r := range calling {
			status, whole := first.call(t, r.path, body(r.fields), "")
			require.Equal(t, http.StatusOK, status, whole)
			require.Equal(t, want, summary(t, whole))
			sent := events(whole)
			for after, second := range all {
				for i, event := range sent {
					if idOf(event) == "" {
						continue
					}
					status, rest := second.call(t, r.path, body(r.fields), idOf(event))
					require.Equal(t, http.StatusOK, status, rest)
					require.Equal(t, want, summary(t, strings.Join(sent[:i+1], "")+rest), "%s: tokens of %d, then of %d, after event %d\n%s\n%s", r.path, before+1, after+1, i, whole, rest)
				}
			}
		}
	}
}
