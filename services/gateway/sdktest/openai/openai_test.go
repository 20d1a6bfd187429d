package openai_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	community "github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/openai"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// The answer to every request that is not cut short.
var whole = strings.Join(servertest.Words, "")

// gateway is a gateway in front of a fake server.
type gateway struct {
	*servertest.Server
	*servertest.Gateway
}

// start serves the dialect over a fake server.
func start(t testing.TB, s *servertest.Server) *gateway {
	t.Helper()
	return &gateway{s, servertest.Serve(t, openai.New(s.Start(t)), nil)}
}

// official returns OpenAI's own client.
func (g *gateway) official(options ...option.RequestOption) sdk.Client {
	return sdk.NewClient(append([]option.RequestOption{
		option.WithBaseURL(g.URL + "/v1"), option.WithAPIKey("token"), option.WithMaxRetries(0),
	}, options...)...)
}

func chatParams() sdk.ChatCompletionNewParams {
	return sdk.ChatCompletionNewParams{
		Model: servertest.Model, Seed: sdk.Int(7), Messages: []sdk.ChatCompletionMessageParamUnion{
			sdk.SystemMessage("be kind"), sdk.DeveloperMessage("be short"), sdk.UserMessage("hi"), sdk.AssistantMessage("hello"), sdk.UserMessage("go on"),
		},
	}
}

func TestOfficialClientChats(t *testing.T) {
	g := start(t, &servertest.Server{})
	client := g.official()
	params := chatParams()
	params.N, params.Logprobs, params.TopLogprobs = sdk.Int(2), sdk.Bool(true), sdk.Int(2)
	params.Temperature, params.Stop = sdk.Float(0.5), sdk.ChatCompletionNewParamsStopUnion{OfStringArray: []string{"x"}}
	params.SafetyIdentifier, params.Metadata = sdk.String("someone"), map[string]string{"a": "b"}
	out, err := client.Chat.Completions.New(t.Context(), params)
	require.NoError(t, err)
	require.Len(t, out.Choices, 2)
	require.Equal(t, whole, out.Choices[1].Message.Content)
	require.Equal(t, "stop", out.Choices[1].FinishReason)
	require.Len(t, out.Choices[0].Logprobs.Content, len(servertest.Words))
	require.Equal(t, " \"two\"\n", out.Choices[0].Logprobs.Content[1].TopLogprobs[0].Token)
	require.EqualValues(t, servertest.PromptTokens+2*len(servertest.Words), out.Usage.TotalTokens)
	require.EqualValues(t, servertest.CachedTokens, out.Usage.PromptTokensDetails.CachedTokens)
	require.Contains(t, out.JSON.ExtraFields["millrace"].Raw(), `"worker_id":"worker"`)
	in, md := g.Last()
	require.Equal(t, []string{"Bearer token"}, md.Get("authorization"))
	require.Equal(t, "someone", in.GetFairnessId())
	require.Equal(t, []string{"x"}, in.GetStopping().GetStop())
	require.EqualValues(t, 7, in.GetSampling().GetSeed())
	require.Equal(t, "system", in.GetChat().GetMessages()[1].GetRole())
}

func TestOfficialClientAccumulatesStreams(t *testing.T) {
	g := start(t, &servertest.Server{})
	client := g.official()
	params := chatParams()
	params.StreamOptions.IncludeUsage = sdk.Bool(true)
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	var all sdk.ChatCompletionAccumulator
	finished := false
	for stream.Next() {
		require.True(t, all.AddChunk(stream.Current()))
		if _, ok := all.JustFinishedContent(); ok {
			finished = true
		}
	}
	require.NoError(t, stream.Err())
	require.NoError(t, stream.Close())
	require.True(t, finished)
	require.Equal(t, whole, all.Choices[0].Message.Content)
	require.Equal(t, "assistant", string(all.Choices[0].Message.Role))
	require.EqualValues(t, len(servertest.Words), all.Usage.CompletionTokens)
}

func TestOfficialClientCompletes(t *testing.T) {
	g := start(t, &servertest.Server{})
	client := g.official()
	params := sdk.CompletionNewParams{
		Model: servertest.Model, Prompt: sdk.CompletionNewParamsPromptUnion{OfString: sdk.String("Once")}, Logprobs: sdk.Int(1), Echo: sdk.Bool(true),
	}
	out, err := client.Completions.New(t.Context(), params)
	require.NoError(t, err)
	require.Equal(t, "Once"+whole, out.Choices[0].Text)
	require.Len(t, out.Choices[0].Logprobs.Tokens, 3+len(servertest.Words))
	params.Prompt = sdk.CompletionNewParamsPromptUnion{OfArrayOfTokenArrays: [][]int64{{0, 1}, {1}}}
	params.Logprobs, params.Echo = sdk.Opt(int64(0)), sdk.Bool(false)
	stream := client.Completions.NewStreaming(t.Context(), params)
	texts := make([]string, 2)
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			texts[c.Index] += c.Text
		}
	}
	require.NoError(t, stream.Err())
	require.Equal(t, []string{whole, whole}, texts)
}

func TestOfficialClientListsModels(t *testing.T) {
	g := start(t, &servertest.Server{})
	client := g.official()
	page, err := client.Models.List(t.Context())
	require.NoError(t, err)
	require.Len(t, page.Data, 1)
	require.Equal(t, servertest.Model, page.Data[0].ID)
	one, err := client.Models.Get(t.Context(), servertest.Model)
	require.NoError(t, err)
	require.Equal(t, servertest.Model, one.ID)
	_, err = client.Models.Get(t.Context(), "none/at/all")
	var failed *sdk.Error
	require.ErrorAs(t, err, &failed)
	require.Equal(t, http.StatusNotFound, failed.StatusCode)
	require.Equal(t, reason.UnknownModel, failed.Code)
}

func TestOfficialClientGetsEmbeddings(t *testing.T) {
	client := start(t, &servertest.Server{}).official()
	_, err := client.Embeddings.New(t.Context(), sdk.EmbeddingNewParams{
		Model: servertest.Model, Input: sdk.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a"}},
	})
	var failed *sdk.Error
	require.ErrorAs(t, err, &failed)
	require.Equal(t, reason.NotBuilt, failed.Code)
	client = start(t, &servertest.Server{OnEmbed: func(*pb.EmbedRequest) (*pb.EmbedResponse, error) {
		return &pb.EmbedResponse{Embeddings: []*pb.Embedding{{Values: []float32{0.5}}}}, nil
	}}).official()
	out, err := client.Embeddings.New(t.Context(), sdk.EmbeddingNewParams{
		Model: servertest.Model, Input: sdk.EmbeddingNewParamsInputUnion{OfString: sdk.String("a")},
	})
	require.NoError(t, err)
	require.Equal(t, []float64{0.5}, out.Data[0].Embedding)
}

func TestOfficialClientReadsErrors(t *testing.T) {
	g := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := stream.Send(servertest.Started(in)); err != nil {
			return err
		}
		if err := stream.Send(servertest.Token(in, 0, 0)); err != nil {
			return err
		}
		return servertest.Refusal(codes.Unavailable, reason.WorkerLost, "the worker was lost")
	}})
	client := g.official()
	params := chatParams()
	params.Store = sdk.Bool(true)
	_, err := client.Chat.Completions.New(t.Context(), params)
	var failed *sdk.Error
	require.ErrorAs(t, err, &failed)
	require.Equal(t, http.StatusBadRequest, failed.StatusCode)
	require.Equal(t, []string{"UNIMPLEMENTED", "store", "invalid_request_error"}, []string{failed.Code, failed.Param, failed.Type})

	_, err = client.Chat.Completions.New(t.Context(), chatParams())
	require.ErrorAs(t, err, &failed)
	require.Equal(t, http.StatusServiceUnavailable, failed.StatusCode, "a whole answer that fails is an error response")

	stream := client.Chat.Completions.NewStreaming(t.Context(), chatParams())
	text := ""
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			text += c.Delta.Content
		}
	}
	require.Equal(t, servertest.Words[0], text)
	require.ErrorContains(t, stream.Err(), reason.WorkerLost, "an error in the middle of a stream is an event")
}

func TestOfficialClientRetriesWhenTold(t *testing.T) {
	var calls atomic.Int32
	g := start(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if calls.Add(1) == 1 {
			return rpc.Error{Code: codes.ResourceExhausted, Domain: rpc.SchedulerDomain, Reason: reason.WorkersFull, Message: "full", RetryAfter: time.Millisecond}.Err()
		}
		return servertest.Answer(in, stream)
	}})
	client := g.official(option.WithMaxRetries(1))
	out, err := client.Chat.Completions.New(t.Context(), chatParams())
	require.NoError(t, err)
	require.Equal(t, whole, out.Choices[0].Message.Content)
	require.EqualValues(t, 2, calls.Load())
}

// endless sends a first token, and then nothing until the call ends, which it reports.
func endless(ended chan<- error) *servertest.Server {
	return &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := errors.Join(stream.Send(servertest.Started(in)), stream.Send(servertest.Token(in, 0, 0))); err != nil {
			return err
		}
		<-stream.Context().Done()
		ended <- context.Cause(stream.Context())
		return stream.Context().Err()
	}}
}

func TestOfficialClientCancels(t *testing.T) {
	ended := make(chan error, 1)
	client := start(t, endless(ended)).official()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := client.Chat.Completions.NewStreaming(ctx, chatParams())
	require.True(t, stream.Next())
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled, "the generation ends with its client")
	for stream.Next() {
		continue // the events in flight
	}
	require.Error(t, stream.Err())
}

func TestDeadlineEndsTheStream(t *testing.T) {
	ended := make(chan error, 1)
	g := start(t, endless(ended))
	client := g.official(option.WithHeader("X-Request-Timeout", "0.05"))
	stream := client.Chat.Completions.NewStreaming(t.Context(), chatParams())
	for stream.Next() {
		continue
	}
	require.ErrorContains(t, stream.Err(), "DEADLINE_EXCEEDED")
	require.Error(t, <-ended)
}

func TestCommunityClientStreams(t *testing.T) {
	g := start(t, &servertest.Server{})
	config := community.DefaultConfig("token")
	config.BaseURL = g.URL + "/v1"
	client := community.NewClientWithConfig(config)
	request := community.ChatCompletionRequest{
		Model: servertest.Model, MaxCompletionTokens: 10, Temperature: 0.5, User: "u",
		Messages: []community.ChatCompletionMessage{{Role: community.ChatMessageRoleUser, Content: "hi"}},
	}
	out, err := client.CreateChatCompletion(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, whole, out.Choices[0].Message.Content)
	stream, err := client.CreateChatCompletionStream(t.Context(), request)
	require.NoError(t, err)
	text := ""
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		text += chunk.Choices[0].Delta.Content
	}
	require.NoError(t, stream.Close())
	require.Equal(t, whole, text)
	request.Model = "other"
	_, err = client.CreateChatCompletion(t.Context(), request)
	var failed *community.APIError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, reason.UnknownModel, failed.Code)
	models, err := client.ListModels(t.Context())
	require.NoError(t, err)
	require.Equal(t, servertest.Model, models.Models[0].ID)
	completed, err := client.CreateCompletion(t.Context(), community.CompletionRequest{Model: servertest.Model, Prompt: []string{"a", "b"}})
	require.NoError(t, err)
	require.Len(t, completed.Choices, 2)
}
