package anthropic_test

import (
	"encoding/json"
	"testing"

	sdk "github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/packages/param"
	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
	"github.com/millrace/millrace/services/gateway/sdktest"
)

func toolParams() sdk.MessageNewParams {
	p := params()
	p.Tools = []sdk.ToolUnionParam{{OfTool: &sdk.ToolParam{
		Name: "weather", Description: param.NewOpt("Says it."),
		InputSchema: sdk.ToolInputSchemaParam{Properties: map[string]any{"city": map[string]string{"type": "string"}}, Required: []string{"city"}},
	}}}
	p.ToolChoice = sdk.ToolChoiceUnionParam{OfAny: &sdk.ToolChoiceAnyParam{}}
	p.Thinking = sdk.ThinkingConfigParamOfEnabled(1024)
	return p
}

// requireUse checks an answer with thinking, a text and a call.
func requireUse(t *testing.T, m *sdk.Message) {
	t.Helper()
	require.Equal(t, sdk.StopReasonToolUse, m.StopReason)
	require.Len(t, m.Content, 3)
	require.Equal(t, servertest.CallWords[0], m.Content[0].AsThinking().Thinking)
	require.Equal(t, servertest.CallWords[1], m.Content[1].AsText().Text)
	use := m.Content[2].AsToolUse()
	require.Equal(t, servertest.CallID, use.ID)
	require.Equal(t, "weather", use.Name)
	var input struct{ City string }
	require.NoError(t, json.Unmarshal([]byte(use.JSON.Input.Raw()), &input))
	require.Equal(t, "Oslo", input.City)
}

// Anthropic's client calls a tool, whole and as a stream, and sends its result back.
func TestSDKCallsTools(t *testing.T) {
	s := &servertest.Server{}
	c := client(t, s)
	p := toolParams()
	whole, err := c.Messages.New(t.Context(), p)
	require.NoError(t, err)
	requireUse(t, whole)
	sdktest.RequireComplete(t, whole, "millrace")
	in, _ := s.Last()
	require.Equal(t, pb.ToolMode_TOOL_MODE_REQUIRED, in.GetChat().GetToolChoice().GetMode())

	stream := c.Messages.NewStreaming(t.Context(), p)
	var m sdk.Message
	for stream.Next() {
		require.NoError(t, m.Accumulate(stream.Current()))
	}
	require.NoError(t, stream.Err())
	requireUse(t, &m)

	p.Messages = append(p.Messages, m.ToParam(), sdk.NewUserMessage(sdk.NewToolResultBlock(servertest.CallID, "sunny", false)))
	last, err := c.Messages.New(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, sdk.StopReasonEndTurn, last.StopReason)
	in, _ = s.Last()
	messages := in.GetChat().GetMessages()
	require.Equal(t, "sunny", messages[len(messages)-1].GetContent())
	require.JSONEq(t, `{"city":"Oslo"}`, messages[len(messages)-2].GetToolCalls()[0].GetArguments())
	require.Equal(t, servertest.CallWords[0], messages[len(messages)-2].GetReasoning())
}
