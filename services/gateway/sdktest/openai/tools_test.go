package openai_test

import (
	"encoding/json"
	"errors"
	"io"
	"testing"

	sdk "github.com/openai/openai-go/v3"
	community "github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
)

// weather is a tool whose answer is the city, and a request that offers it.
func toolParams() sdk.ChatCompletionNewParams {
	params := chatParams()
	params.Tools = []sdk.ChatCompletionToolUnionParam{sdk.ChatCompletionFunctionTool(sdk.FunctionDefinitionParam{
		Name: "weather", Description: sdk.String("Says it."), Parameters: sdk.FunctionParameters{
			"type": "object", "properties": map[string]any{"city": map[string]string{"type": "string"}}, "required": []string{"city"},
		},
	})}
	params.ToolChoice = sdk.ToolChoiceOptionFunctionToolChoice(sdk.ChatCompletionNamedToolChoiceFunctionParam{Name: "weather"})
	return params
}

// requireCall checks the call of an answer and returns its city.
func requireCall(t *testing.T, m sdk.ChatCompletionMessage) string {
	t.Helper()
	require.Equal(t, servertest.CallWords[1], m.Content)
	require.Len(t, m.ToolCalls, 1)
	require.Equal(t, servertest.CallID, m.ToolCalls[0].ID)
	require.Equal(t, "weather", m.ToolCalls[0].Function.Name)
	var arguments struct{ City string }
	require.NoError(t, json.Unmarshal([]byte(m.ToolCalls[0].Function.Arguments), &arguments))
	return arguments.City
}

// OpenAI's client calls a tool, whole and as a stream, and sends its answer back.
func TestOfficialClientCallsTools(t *testing.T) {
	g := start(t, &servertest.Server{})
	client := g.official()
	params := toolParams()
	whole, err := client.Chat.Completions.New(t.Context(), params)
	require.NoError(t, err)
	require.Equal(t, "tool_calls", whole.Choices[0].FinishReason)
	require.Equal(t, "Oslo", requireCall(t, whole.Choices[0].Message))
	in, _ := g.Last()
	require.Equal(t, pb.ToolMode_TOOL_MODE_REQUIRED, in.GetChat().GetToolChoice().GetMode())

	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	sum, finished := sdk.ChatCompletionAccumulator{}, false
	for stream.Next() {
		sum.AddChunk(stream.Current())
		if call, ok := sum.JustFinishedToolCall(); ok {
			finished = true
			require.Equal(t, "weather", call.Name)
		}
	}
	require.NoError(t, stream.Err())
	require.True(t, finished)
	require.Equal(t, "Oslo", requireCall(t, sum.Choices[0].Message))

	params.Messages = append(params.Messages, whole.Choices[0].Message.ToParam(), sdk.ToolMessage("sunny", servertest.CallID))
	last, err := client.Chat.Completions.New(t.Context(), params)
	require.NoError(t, err)
	require.Equal(t, "stop", last.Choices[0].FinishReason)
	in, _ = g.Last()
	messages := in.GetChat().GetMessages()
	require.Equal(t, `{"city": "Oslo"}`, messages[len(messages)-2].GetToolCalls()[0].GetArguments())
	require.Equal(t, servertest.CallID, messages[len(messages)-1].GetToolCallId())
}

// The community's client calls a tool, whole and as a stream, and sends its answer back.
func TestCommunityClientCallsTools(t *testing.T) {
	g := start(t, &servertest.Server{})
	config := community.DefaultConfig("token")
	config.BaseURL = g.URL + "/v1"
	client := community.NewClientWithConfig(config)
	request := community.ChatCompletionRequest{
		Model: servertest.Model, Messages: []community.ChatCompletionMessage{{Role: community.ChatMessageRoleUser, Content: "The weather?"}},
		Tools: []community.Tool{{Type: community.ToolTypeFunction, Function: &community.FunctionDefinition{
			Name: "weather", Parameters: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`),
		}}},
		ToolChoice: "required", ParallelToolCalls: false,
	}
	whole, err := client.CreateChatCompletion(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, community.FinishReasonToolCalls, whole.Choices[0].FinishReason)
	answer := whole.Choices[0].Message
	require.Equal(t, servertest.CallWords[0], answer.ReasoningContent)
	require.Len(t, answer.ToolCalls, 1)
	in, _ := g.Last()
	require.Equal(t, pb.ToolMode_TOOL_MODE_REQUIRED, in.GetChat().GetToolChoice().GetMode())
	require.False(t, in.GetChat().GetToolChoice().GetParallel())

	stream, err := client.CreateChatCompletionStream(t.Context(), request)
	require.NoError(t, err)
	var call community.ToolCall
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		for _, piece := range chunk.Choices[0].Delta.ToolCalls {
			require.Zero(t, *piece.Index)
			call.ID += piece.ID
			call.Function.Name += piece.Function.Name
			call.Function.Arguments += piece.Function.Arguments
		}
	}
	require.NoError(t, stream.Close())
	call.Type = community.ToolTypeFunction
	require.Equal(t, answer.ToolCalls[0], call, "the pieces of a stream are the whole")
	require.JSONEq(t, `{"city":"Oslo"}`, call.Function.Arguments)

	request.ToolChoice = nil
	request.Messages = append(request.Messages, answer, community.ChatCompletionMessage{Role: community.ChatMessageRoleTool, ToolCallID: call.ID, Content: "sunny"})
	last, err := client.CreateChatCompletion(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, community.FinishReasonStop, last.Choices[0].FinishReason)
	in, _ = g.Last()
	messages := in.GetChat().GetMessages()
	require.Equal(t, call.ID, messages[len(messages)-1].GetToolCallId())
	require.Equal(t, servertest.CallWords[0], messages[len(messages)-2].GetReasoning())
}
