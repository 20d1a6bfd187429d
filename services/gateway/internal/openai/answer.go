package openai

import (
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

const invalidArgument = codes.InvalidArgument

// usage counts tokens.
type usage struct {
	PromptTokens     uint32       `json:"prompt_tokens"`
	CompletionTokens uint32       `json:"completion_tokens"`
	TotalTokens      uint32       `json:"total_tokens"`
	PromptDetails    tokenDetails `json:"prompt_tokens_details"`
	// CompletionDetails is there if some tokens were reasoning.
	CompletionDetails *completionDetails `json:"completion_tokens_details,omitempty"`
}

type completionDetails struct {
	ReasoningTokens uint32 `json:"reasoning_tokens"`
}

type tokenDetails struct {
	CachedTokens uint32 `json:"cached_tokens"`
}

func usageOf(u *pb.Usage) *usage {
	out := &usage{
		PromptTokens: u.GetPromptTokens(), CompletionTokens: u.GetCompletionTokens(),
		TotalTokens:   u.GetPromptTokens() + u.GetCompletionTokens(),
		PromptDetails: tokenDetails{u.GetCachedTokens()},
	}
	if u.GetReasoningTokens() > 0 {
		out.CompletionDetails = &completionDetails{u.GetReasoningTokens()}
	}
	return out
}

// finishReason returns the name of the reason for which an output ended.
func finishReason(f *pb.Finished) string {
	if f.GetReason() == pb.FinishReason_FINISH_REASON_STOP {
		return "stop"
	}
	return "length"
}

// chatFinishReason is finishReason of a chat's output. called states whether it has calls.
func chatFinishReason(f *pb.Finished, called bool) string {
	if reason := finishReason(f); reason != "stop" || !called {
		return reason
	}
	return "tool_calls"
}
