package responses_test

import (
	"encoding/json"
	"testing"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
	"github.com/millrace/millrace/services/gateway/sdktest"
)

// requireCall checks an answer with reasoning, a message and a call, and returns them as items of the next input.
func requireCall(t *testing.T, r *responses.Response) (items responses.ResponseInputParam) {
	t.Helper()
	require.Equal(t, responses.ResponseStatusCompleted, r.Status)
	require.Len(t, r.Output, 3)
	require.Equal(t, servertest.CallWords[0], r.Output[0].AsReasoning().Content[0].Text)
	require.Equal(t, servertest.CallWords[1], r.OutputText())
	call := r.Output[2].AsFunctionCall()
	require.Equal(t, servertest.CallID, call.CallID)
	require.Equal(t, "weather", call.Name)
	require.JSONEq(t, `{"city":"Oslo"}`, call.Arguments)
	for _, o := range r.Output {
		items = append(items, param.Override[responses.ResponseInputItemUnionParam](json.RawMessage(o.RawJSON())))
	}
	return items
}

// OpenAI's client of responses calls a tool, whole and as a stream, and sends its result back.
func TestSDKCallsTools(t *testing.T) {
	s := &servertest.Server{}
	c := client(t, s)
	in := params()
	in.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("weather", map[string]any{
		"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}, "required": []string{"city"}, "additionalProperties": false,
	}, true)}
	in.ToolChoice = responses.ResponseNewParamsToolChoiceUnion{OfFunctionTool: &responses.ToolChoiceFunctionParam{Name: "weather"}}
	whole, err := c.Responses.New(t.Context(), in)
	require.NoError(t, err)
	sdktest.RequireComplete(t, whole, extra...)
	items := requireCall(t, whole)
	sent, _ := s.Last()
	require.Equal(t, "weather", sent.GetChat().GetToolChoice().GetName())
	require.True(t, sent.GetChat().GetTools()[0].GetStrict())

	names, _, last := events(t, c, in)
	require.Contains(t, names, "response.reasoning_text.delta")
	require.Contains(t, names, "response.function_call_arguments.delta")
	require.Contains(t, names, "response.function_call_arguments.done")
	require.Len(t, requireCall(t, &last), len(items))

	result := responses.ResponseInputItemParamOfFunctionCallOutput("sunny")
	result.OfFunctionCallOutput.CallID = sdk.String(servertest.CallID)
	in.ToolChoice = responses.ResponseNewParamsToolChoiceUnion{}
	in.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: append(append(responses.ResponseInputParam{
		responses.ResponseInputItemParamOfMessage("The weather?", responses.EasyInputMessageRoleUser),
	}, items...), result)}
	names, deltas, last := events(t, c, in)
	require.Equal(t, "response.completed", names[len(names)-1])
	require.Equal(t, text, deltas)
	require.Equal(t, text, last.OutputText())
	sent, _ = s.Last()
	messages := sent.GetChat().GetMessages()
	require.Equal(t, "sunny", messages[len(messages)-1].GetContent())
	require.Equal(t, servertest.CallID, messages[len(messages)-1].GetToolCallId())
	var calls []*pb.ToolCall
	for _, m := range messages {
		calls = append(calls, m.GetToolCalls()...)
	}
	require.Len(t, calls, 1)
	require.JSONEq(t, `{"city":"Oslo"}`, calls[0].GetArguments())
	require.Equal(t, servertest.CallWords[0], messages[1].GetReasoning())
}
