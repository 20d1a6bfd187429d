package responses_test

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	dialect "github.com/millrace/millrace/services/gateway/internal/responses"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
	"github.com/millrace/millrace/services/gateway/sdktest"
	"github.com/millrace/millrace/services/internal/reason"
)

// client returns OpenAI's own client of a gateway over a fake server.
func client(t testing.TB, s *servertest.Server) *sdk.Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	c := sdk.NewClient(option.WithBaseURL(servertest.Serve(t, dialect.New(s.Start(t)), nil).URL+"/v1"), option.WithAPIKey("key"), option.WithMaxRetries(0),
		option.WithHTTPClient(&http.Client{Transport: transport, Timeout: servertest.Hang}))
	return &c
}

// extra are fields of answers that OpenAI's schema does not have: millrace and the reason of a
// failure are ours, name is that of function_call_arguments.done in OpenAI's reference, the others are Open Responses'.
var extra = []string{"millrace", "reason", "name", "store", "presence_penalty", "frequency_penalty"}

var text = strings.Join(servertest.Words, "")

// params returns a request.
func params() responses.ResponseNewParams {
	return responses.ResponseNewParams{Model: servertest.Model, Input: responses.ResponseNewParamsInputUnion{OfString: sdk.String("hi")}}
}

func TestSDKGetsAResponse(t *testing.T) {
	s := &servertest.Server{}
	in := params()
	in.Instructions, in.SafetyIdentifier, in.MaxOutputTokens = sdk.String("be kind"), sdk.String("user"), sdk.Int(100)
	out, err := client(t, s).Responses.New(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, text, out.OutputText())
	require.Equal(t, responses.ResponseStatusCompleted, out.Status)
	require.EqualValues(t, servertest.PromptTokens, out.Usage.InputTokens)
	require.EqualValues(t, servertest.CachedTokens, out.Usage.InputTokensDetails.CachedTokens)
	require.EqualValues(t, len(servertest.Words), out.Usage.OutputTokens)
	sdktest.RequireComplete(t, out, extra...)
	sent, _ := s.Last()
	require.Equal(t, "user", sent.GetFairnessId())
	require.EqualValues(t, 100, sent.GetStopping().GetMaxTokens())
}

func TestSDKReadsErrors(t *testing.T) {
	in := params()
	in.Model = "other"
	_, err := client(t, &servertest.Server{}).Responses.New(t.Context(), in)
	var got *sdk.Error
	require.ErrorAs(t, err, &got)
	require.Equal(t, http.StatusNotFound, got.StatusCode)
	require.Equal(t, reason.UnknownModel, got.Code)
	require.Equal(t, "model", got.Param)
}

// events reads a stream and checks each event. It returns the names of the events, of repeated ones
// one, the text of the deltas and the last response.
func events(t *testing.T, c *sdk.Client, in responses.ResponseNewParams) (names []string, deltas string, last responses.Response) {
	t.Helper()
	stream := c.Responses.NewStreaming(t.Context(), in)
	number := int64(0)
	for stream.Next() {
		e := stream.Current()
		require.Equal(t, number, e.SequenceNumber)
		number++
		sdktest.RequireComplete(t, e.AsAny(), extra...)
		if len(names) == 0 || names[len(names)-1] != e.Type {
			names = append(names, e.Type)
		}
		if e.Type == "response.output_text.delta" {
			deltas += e.Delta
		}
		if e.JSON.Response.Valid() {
			last = e.Response
		}
	}
	require.NoError(t, stream.Err())
	return names, deltas, last
}

// before are the events before the last.
var before = []string{
	"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
	"response.output_text.delta", "response.output_text.done", "response.content_part.done", "response.output_item.done",
}

func TestSDKReadsAStream(t *testing.T) {
	names, deltas, last := events(t, client(t, &servertest.Server{}), params())
	require.Equal(t, append(before[:len(before):len(before)], "response.completed"), names)
	require.Equal(t, text, deltas)
	require.Equal(t, text, last.OutputText())
	in := params()
	in.MaxOutputTokens = sdk.Int(1)
	names, _, last = events(t, client(t, &servertest.Server{}), in)
	require.Equal(t, append(before[:len(before):len(before)], "response.incomplete"), names)
	require.Equal(t, "max_output_tokens", last.IncompleteDetails.Reason)
}

func TestSDKReadsAFailedStream(t *testing.T) {
	names, _, last := events(t, client(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := stream.Send(servertest.Started(in)); err != nil {
			return err
		}
		return servertest.Refusal(codes.ResourceExhausted, reason.SlowReader, "too slow")
	}}), params())
	require.Equal(t, append(before[:2:2], "response.failed"), names)
	require.Equal(t, responses.ResponseStatusFailed, last.Status)
	require.Equal(t, responses.ResponseErrorCodeRateLimitExceeded, last.Error.Code)
}

func TestRandomRequestsHaveTheSchema(t *testing.T) {
	c := client(t, &servertest.Server{})
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		in := params()
		for _, set := range []func(){
			func() { in.Instructions = sdk.String("be kind") },
			func() { in.MaxOutputTokens = sdk.Int(1 + r.Int64N(8)) },
			func() { in.Temperature, in.TopP = sdk.Float(r.Float64()), sdk.Float(0.5) },
			func() { in.Metadata = shared.Metadata{"a": "b"} },
			func() { in.User, in.PromptCacheKey = sdk.String("u"), sdk.String("k") },
			func() { in.ServiceTier = responses.ResponseNewParamsServiceTierFlex },
			func() { in.Reasoning.Effort = shared.ReasoningEffortLow },
			func() { in.Store, in.Background = sdk.Bool(false), sdk.Bool(false) },
			func() {
				in.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
					responses.ResponseInputItemParamOfMessage("a", responses.EasyInputMessageRoleDeveloper),
					responses.ResponseInputItemParamOfMessage("b", responses.EasyInputMessageRoleUser),
				}}
			},
		} {
			if r.IntN(2) == 0 {
				set()
			}
		}
		if r.IntN(2) == 0 {
			names, _, _ := events(t, c, in)
			require.Len(t, names, len(before)+1)
			continue
		}
		out, err := c.Responses.New(t.Context(), in)
		require.NoError(t, err)
		sdktest.RequireComplete(t, out, extra...)
	}
}
