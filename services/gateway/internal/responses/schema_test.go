package responses_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
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

// formats are what an answer may be constrained to.
var formats = []string{`{"type":"text"}`, `{"type":"json_object"}`, `{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true}`}

// checkResponses makes random requests, some of which fail in mid-stream, and checks every answer.
func checkResponses(t *testing.T, schemas *servertest.Schemas, whole, event string, formats []string) {
	t.Helper()
	r, breaks := rand.New(rand.NewPCG(3, 4)), false
	g := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if !breaks {
			return servertest.Answer(in, stream)
		}
		if err := stream.Send(servertest.Started(in)); err != nil {
			return err
		}
		return servertest.Refusal(codes.ResourceExhausted, reason.Stopping, "lost")
	}}, nil)
	events := 0
	for range schemaRequests {
		var fields []string
		stream := r.IntN(2) == 0
		if breaks = stream && r.IntN(8) == 0; stream {
			fields = append(fields, `"stream":true`)
		}
		for _, field := range []string{
			`"instructions":"be kind"`, `"max_output_tokens":2`, `"temperature":0.5`, `"top_p":0.25`, `"metadata":{"a":"b"}`, `"user":"u"`,
			`"safety_identifier":"s"`, `"prompt_cache_key":"k"`, `"service_tier":"flex"`, `"reasoning":{"effort":"low"}`,
			`"text":{"format":` + formats[r.IntN(len(formats))] + `}`,
			`"tools":[{"type":"web_search"}]`, `"tool_choice":"none"`, `"truncation":"auto"`, `"store":false`, `"presence_penalty":1`, `"parallel_tool_calls":false`,
		} {
			if r.IntN(3) == 0 {
				fields = append(fields, field)
			}
		}
		out, text := g.Call(t, http.MethodPost, "/v1/responses", body(fields...))
		require.Equal(t, http.StatusOK, out.StatusCode, text)
		if !stream {
			schemas.Require(t, whole, text)
			continue
		}
		for i, data := range servertest.Data(text) {
			require.Contains(t, data, fmt.Sprintf(`"sequence_number":%d,`, i))
			schemas.Require(t, event, data)
			events++
		}
	}
	t.Logf("%d requests with %d events", schemaRequests, events)
}

func TestResponsesFitOurSchemas(t *testing.T) {
	checkResponses(t, servertest.OpenSchemas(t, "testdata/schemas.json"), "response", "event", formats)
}

func TestResponsesFitThePublishedSchemas(t *testing.T) {
	checkResponses(t, servertest.OpenPublishedSchemas(t, servertest.OpenAI), "Response", "ResponseStreamEvent", formats)
}

func TestResponsesFitOpenResponses(t *testing.T) {
	const events = "/paths/~1responses/post/responses/200/content/text~1event-stream/schema"
	// Its schema of a json_schema accepts only null as the schema, and OpenAI's only an object.
	checkResponses(t, servertest.OpenPublishedSchemas(t, servertest.OpenResponses), "ResponseResource", events, formats[:2])
}
