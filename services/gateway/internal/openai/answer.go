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
}

type tokenDetails struct {
	CachedTokens uint32 `json:"cached_tokens"`
}

func usageOf(u *pb.Usage) *usage {
	return &usage{
		PromptTokens: u.GetPromptTokens(), CompletionTokens: u.GetCompletionTokens(),
		TotalTokens:   u.GetPromptTokens() + u.GetCompletionTokens(),
		PromptDetails: tokenDetails{u.GetCachedTokens()},
	}
}

// finishReason returns the name of the reason for which an output ended.
func finishReason(f *pb.Finished) string {
	if f.GetReason() == pb.FinishReason_FINISH_REASON_STOP {
		return "stop"
	}
	return "length"
}
