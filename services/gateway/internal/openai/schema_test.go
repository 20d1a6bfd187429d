package openai_test

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
	"github.com/millrace/millrace/services/internal/reason"
)

// schemaRequests is how many random requests are compared with schemas.
const schemaRequests = 200

// randomFields returns fields of a chat request, each with a probability of a third. wrong are refused.
func randomFields(r *rand.Rand) (fields []string, stream, wrong bool) {
	if stream = r.IntN(2) == 0; stream {
		fields = append(fields, `"stream":true`)
		if r.IntN(2) == 0 {
			fields = append(fields, `"stream_options":{"include_usage":true}`)
		}
	}
	for _, field := range []string{
		`"n":3`, `"max_tokens":2`, `"temperature":0.5`, `"top_p":0.25`, `"stop":["x"]`, `"service_tier":"flex"`, `"user":"someone"`,
		`"metadata":{"a":"b"}`, `"logit_bias":{"1":2}`, `"logprobs":true`, `"prompt_cache_key":"k"`, `"reasoning_effort":"low"`, `"tools":[]`,
	} {
		if r.IntN(3) == 0 {
			fields = append(fields, field)
		}
	}
	if len(fields) > 0 && strings.Contains(strings.Join(fields, ""), "logprobs") && r.IntN(2) == 0 {
		fields = append(fields, `"top_logprobs":2`)
	}
	if wrong = r.IntN(10) == 0; wrong {
		fields = append(fields, `"unknown":1`)
	}
	return fields, stream, wrong
}

// checkChats makes random requests, some of which fail in mid-stream, and checks every answer.
func checkChats(t *testing.T, schemas *servertest.Schemas, whole, chunk, failure string) {
	t.Helper()
	r, breaks := rand.New(rand.NewPCG(1, 2)), false
	g := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if !breaks {
			return servertest.Answer(in, stream)
		}
		if err := stream.Send(servertest.Started(in)); err != nil {
			return err
		}
		return servertest.Refusal(codes.Unavailable, reason.WorkerLost, "lost")
	}}, nil)
	events := 0
	for range schemaRequests {
		fields, stream, wrong := randomFields(r)
		breaks = r.IntN(10) == 0
		out, text := g.call(t, http.MethodPost, "/v1/chat/completions", chat(fields...))
		if out.StatusCode != http.StatusOK {
			require.True(t, wrong || breaks, text)
			schemas.Require(t, failure, text)
			continue
		}
		if !stream {
			schemas.Require(t, whole, text)
			continue
		}
		data := servertest.Data(text)
		if breaks {
			schemas.Require(t, failure, data[len(data)-1])
			data = data[:len(data)-1]
		}
		for _, event := range data {
			schemas.Require(t, chunk, event)
		}
		events += len(data)
	}
	t.Logf("%d requests with %d events", schemaRequests, events)
}

func TestChatsFitOurSchemas(t *testing.T) {
	checkChats(t, servertest.OpenSchemas(t, "testdata/schemas.json"), "chat", "chunk", "error")
}

func TestChatsFitThePublishedSchemas(t *testing.T) {
	checkChats(t, servertest.OpenPublishedSchemas(t, servertest.OpenAI), "CreateChatCompletionResponse", "CreateChatCompletionStreamResponse", "ErrorResponse")
}
