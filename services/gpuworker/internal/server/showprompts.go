package server

import (
	"context"
	"strings"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// shownBytes bounds what a line has of a prompt's text, and shownIDs of its token ids.
const (
	shownBytes = 4 << 10
	shownIDs   = 256
)

// ShowPrompts writes what callers ask for to the log, a line before each generation. Call it before the server serves. Without it no
// line has anything of a prompt.
func (s *Server) ShowPrompts() {
	s.shows = true
	s.logger.Warn("prompts are written to this log: whoever reads it reads what callers send", "flag", "--log-prompts")
}

// showPrompt writes a request that is about to run.
func (s *Server) showPrompt(ctx context.Context, in *pb.GenerateRequest) {
	if !s.shows {
		return
	}
	fields := []any{"request_id", rpc.RequestID(ctx), "model", in.GetModel()}
	text := func(t string) string { return strings.ToValidUTF8(t[:min(len(t), shownBytes)], "") }
	switch input := in.GetInput().(type) {
	case *pb.GenerateRequest_TokenIds:
		ids := input.TokenIds.GetIds()
		fields = append(fields, "ids", len(ids), "token_ids", ids[:min(len(ids), shownIDs)])
	case *pb.GenerateRequest_Chat:
		var all strings.Builder
		for _, m := range input.Chat.GetMessages() {
			all.WriteString(m.GetRole() + ": " + m.GetContent() + "\n")
		}
		fields = append(fields, "bytes", all.Len(), "chat", text(all.String()))
	default:
		fields = append(fields, "bytes", len(in.GetPrompt()), "prompt", text(in.GetPrompt()))
	}
	s.logger.Info("asked", fields...)
}
