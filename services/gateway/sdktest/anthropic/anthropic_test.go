package anthropic_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/anthropics/anthropic-sdk-go/v2/packages/param"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	dialect "github.com/millrace/millrace/services/gateway/internal/anthropic"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
	"github.com/millrace/millrace/services/gateway/sdktest"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// client returns Anthropic's own client of a gateway over a fake server.
func client(t testing.TB, s *servertest.Server, options ...option.RequestOption) *sdk.Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	c := sdk.NewClient(append([]option.RequestOption{
		option.WithBaseURL(servertest.Serve(t, dialect.New(s.Start(t)), nil).URL), option.WithAPIKey("key"), option.WithMaxRetries(0),
		option.WithHTTPClient(&http.Client{Transport: transport, Timeout: servertest.Hang}),
	}, options...)...)
	return &c
}

// params is a request with every parameter that is honoured.
func params() sdk.MessageNewParams {
	return sdk.MessageNewParams{
		Model: servertest.Model, MaxTokens: 100, Messages: []sdk.MessageParam{
			sdk.NewUserMessage(sdk.NewTextBlock("a")), sdk.NewAssistantMessage(sdk.NewTextBlock("b")), sdk.NewUserMessage(sdk.NewTextBlock("c"), sdk.NewTextBlock("d")),
		},
		System: []sdk.TextBlockParam{{Text: "be kind"}}, StopSequences: []string{"end"},
		Metadata: sdk.MetadataParam{UserID: param.NewOpt("user")}, ServiceTier: sdk.MessageNewParamsServiceTierStandardOnly,
	}
}

var text = strings.Join(servertest.Words, "")

func TestSDKGetsAMessage(t *testing.T) {
	s := &servertest.Server{}
	c := client(t, s)
	m, err := c.Messages.New(t.Context(), params(), option.WithJSONSet("temperature", 0.5), option.WithJSONSet("top_p", 0.25), option.WithJSONSet("top_k", 5))
	require.NoError(t, err)
	require.Len(t, m.Content, 1)
	require.Equal(t, text, m.Content[0].AsText().Text)
	require.Equal(t, sdk.StopReasonEndTurn, m.StopReason)
	require.EqualValues(t, servertest.PromptTokens-servertest.CachedTokens, m.Usage.InputTokens)
	require.EqualValues(t, servertest.CachedTokens, m.Usage.CacheReadInputTokens)
	require.EqualValues(t, len(servertest.Words), m.Usage.OutputTokens)
	in, _ := s.Last()
	require.Equal(t, "user", in.GetFairnessId())
	require.InDelta(t, 0.5, in.GetSampling().GetTemperature(), 0)
	require.InDelta(t, 0.25, in.GetSampling().GetTopP(), 0)
	require.EqualValues(t, 5, in.GetSampling().GetTopK())
	require.EqualValues(t, 100, in.GetStopping().GetMaxTokens())
	require.Equal(t, []string{"end"}, in.GetStopping().GetStop())
	var roles []string
	for _, m := range in.GetChat().GetMessages() {
		roles = append(roles, m.GetRole()+":"+m.GetContent())
	}
	require.Equal(t, []string{"system:be kind", "user:a", "assistant:b", "user:c\nd"}, roles)
	sdktest.RequireComplete(t, m, "millrace")
}

func TestSDKAccumulatesAStream(t *testing.T) {
	stream := client(t, &servertest.Server{}).Messages.NewStreaming(t.Context(), params())
	var m sdk.Message
	var events []string
	for stream.Next() {
		e := stream.Current()
		if e.Type != "content_block_delta" || events[len(events)-1] != e.Type {
			events = append(events, e.Type)
		}
		sdktest.RequireComplete(t, e.AsAny(), "millrace")
		require.NoError(t, m.Accumulate(e))
	}
	require.NoError(t, stream.Err())
	require.Equal(t, []string{"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"}, events)
	require.Equal(t, text, m.Content[0].AsText().Text)
	require.Equal(t, sdk.StopReasonEndTurn, m.StopReason)
	require.EqualValues(t, len(servertest.Words), m.Usage.OutputTokens)
}

func TestSDKCountsTokens(t *testing.T) {
	out, err := client(t, &servertest.Server{}).Messages.CountTokens(t.Context(), sdk.MessageCountTokensParams{
		Model: servertest.Model, Messages: params().Messages, System: sdk.MessageCountTokensParamsSystemUnion{OfString: param.NewOpt("be kind")},
	})
	require.NoError(t, err)
	require.EqualValues(t, 3, out.InputTokens)
}

func TestSDKReadsErrors(t *testing.T) {
	c := client(t, &servertest.Server{})
	in := params()
	in.Model = "other"
	_, err := c.Messages.New(t.Context(), in, option.WithHeader("X-Request-Id", "id"))
	var got *sdk.Error
	require.ErrorAs(t, err, &got)
	require.Equal(t, http.StatusNotFound, got.StatusCode)
	require.Equal(t, "id", got.RequestID)
	require.EqualValues(t, "not_found_error", got.Type())
	require.EqualValues(t, reason.UnknownModel, got.ErrorCode())
	stream := c.Messages.NewStreaming(t.Context(), in)
	require.False(t, stream.Next())
	require.ErrorAs(t, stream.Err(), &got)
}

func TestSDKReadsAnErrorInMidStream(t *testing.T) {
	s := &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := stream.Send(servertest.Started(in)); err != nil {
			return err
		}
		return servertest.Refusal(codes.Unavailable, reason.WorkerLost, "the worker was lost")
	}}
	stream := client(t, s).Messages.NewStreaming(t.Context(), params())
	for stream.Next() {
		require.NotEqual(t, "message_stop", stream.Current().Type)
	}
	require.ErrorContains(t, stream.Err(), "the worker was lost")
}

func TestSDKTriesAgainIfServersAreFull(t *testing.T) {
	calls := 0
	s := &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if calls++; calls == 1 {
			return rpc.Error{Code: codes.ResourceExhausted, Domain: rpc.SchedulerDomain, Reason: reason.TooManyBytesWaiting, Message: "full", RetryAfter: time.Millisecond}.Err()
		}
		return servertest.Answer(in, stream)
	}}
	m, err := client(t, s, option.WithMaxRetries(1)).Messages.New(t.Context(), params())
	require.NoError(t, err)
	require.Equal(t, text, m.Content[0].Text)
	require.Equal(t, 2, calls)
}

func TestSDKCancelsAGeneration(t *testing.T) {
	ended := make(chan struct{})
	s := &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		defer close(ended)
		if err := stream.Send(servertest.Started(in)); err != nil {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}}
	ctx, cancel := context.WithCancel(t.Context())
	stream := client(t, s).Messages.NewStreaming(ctx, params())
	require.True(t, stream.Next())
	cancel()
	<-ended
}
