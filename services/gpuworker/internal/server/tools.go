package server

import (
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// refuseTools refuses the fields of tools and parts, which are in the contract and not built.
func refuseTools(chat *pb.Chat, response *pb.ResponseOptions) error {
	field := ""
	for _, m := range chat.GetMessages() {
		switch {
		case len(m.GetToolCalls()) > 0:
			field = "chat.messages.tool_calls"
		case m.ToolCallId != nil:
			field = "chat.messages.tool_call_id"
		case m.Reasoning != nil:
			field = "chat.messages.reasoning"
		}
	}
	switch {
	case len(chat.GetTools()) > 0:
		field = "chat.tools"
	case chat.GetToolChoice() != nil:
		field = "chat.tool_choice"
	case chat != nil && chat.ToolFormat != nil:
		field = "chat.tool_format"
	case response.GetParts():
		field = "response.parts"
	case field == "":
		return nil
	}
	return rpc.Error{Code: codes.Unimplemented, Domain: rpc.WorkerDomain, Reason: reason.NotBuilt, Message: field + " is not built: leave it out"}.Err()
}
