package anthropic_test

import (
	"context"
	"encoding/json"
	"testing"

	sdk "github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/packages/param"
	"github.com/anthropics/anthropic-sdk-go/v2/toolrunner"
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

type place struct {
	City string `json:"city" jsonschema:"required,description=Where."`
}

// Anthropic's tool runner calls a tool and sends its result, whole and as a stream, until the answer is a text.
func TestSDKRunsTools(t *testing.T) {
	for name, run := range map[string]func(*sdk.BetaMessageService, []sdk.BetaTool, sdk.BetaToolRunnerParams) (*sdk.BetaMessage, error){
		"whole": func(s *sdk.BetaMessageService, tools []sdk.BetaTool, p sdk.BetaToolRunnerParams) (*sdk.BetaMessage, error) {
			return s.NewToolRunner(tools, p).RunToCompletion(t.Context())
		},
		"streaming": func(s *sdk.BetaMessageService, tools []sdk.BetaTool, p sdk.BetaToolRunnerParams) (*sdk.BetaMessage, error) {
			runner := s.NewToolRunnerStreaming(tools, p)
			for events, err := range runner.AllStreaming(t.Context()) {
				if err != nil {
					return nil, err
				}
				for _, err := range events {
					if err != nil {
						return nil, err
					}
				}
			}
			return runner.LastMessage(), runner.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, asked := &servertest.Server{}, ""
			tool, err := toolrunner.NewBetaToolFromJSONSchema("weather", "Says it.", func(_ context.Context, in place) (sdk.BetaToolResultBlockParamContentUnion, error) {
				asked = in.City
				return sdk.BetaToolResultBlockParamContentUnion{OfText: &sdk.BetaTextBlockParam{Text: "sunny"}}, nil
			})
			require.NoError(t, err)
			c := client(t, s)
			last, err := run(&c.Beta.Messages, []sdk.BetaTool{tool}, sdk.BetaToolRunnerParams{
				MaxIterations: 5,
				BetaMessageNewParams: sdk.BetaMessageNewParams{
					Model: servertest.Model, MaxTokens: 100, Messages: []sdk.BetaMessageParam{sdk.NewBetaUserMessage(sdk.NewBetaTextBlock("The weather?"))},
				},
			})
			require.NoError(t, err)
			require.Equal(t, "Oslo", asked)
			require.Equal(t, sdk.BetaStopReasonEndTurn, last.StopReason)
			require.Equal(t, text, last.Content[0].AsText().Text)
			in, _ := s.Last()
			messages := in.GetChat().GetMessages()
			require.Equal(t, "sunny", messages[len(messages)-1].GetContent())
			require.Equal(t, servertest.CallID, messages[len(messages)-1].GetToolCallId())
			require.Equal(t, servertest.CallID, messages[len(messages)-2].GetToolCalls()[0].GetId())
			require.JSONEq(t, `["city"]`, field(t, in.GetChat().GetTools()[0].GetParameters(), "required"))
		})
	}
}

// field is a field of an object.
func field(t *testing.T, object, name string) string {
	t.Helper()
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(object), &fields))
	return string(fields[name])
}
