package server

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Generate implements InferenceService.
func (s *Server) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) (err error) {
	ctx, arrived := stream.Context(), time.Now()
	if in.RequestId != nil {
		rpc.SetRequestID(ctx, in.GetRequestId())
	}
	rpc.Annotate(ctx, "model", in.GetModel())
	record := s.startRecord(ctx, in, arrived)
	defer func() { record.end(err) }()
	if err := invalid(checkGenerate(in)); err != nil {
		return err
	}
	if err := s.Admit(); err != nil {
		return err
	}
	inst, release, err := s.models.Acquire(in.GetModel())
	if err != nil {
		return statusOf(err)
	}
	defer release()
	if inst.Facts.Pooling == arch.PoolingRank {
		return statusOf(fmt.Errorf("%w: %q computes scores and no text: call Rerank", errRerankOnly, inst.Name))
	}
	if inst.Facts.WholeTexts {
		return statusOf(fmt.Errorf("%w: the layers of %q see later positions, so a new token would change all that is before it: call Embed",
			errVectorsOnly, inst.Name))
	}
	record.model = inst.Name
	resumed := len(in.GetResume()) > 0
	defer func() { s.cfg.Observer.Ended(inst.Name, status.Code(err), time.Since(arrived), resumed) }()
	ctx, leave := s.drain.deadline.join(ctx)
	defer leave()
	ctx, stop := BeforeDeadline(ctx)
	defer stop()
	request, err := s.prepare(ctx, in, inst)
	if err != nil {
		return statusOf(err)
	}
	record.submit(request)
	s.logPrompt(ctx, in)
	rpc.ReleaseRequest(ctx) // only its options and its tokens, at most one context, are held from here on
	out := &sink{stream: rpc.RawStream(stream), response: in.GetResponse(), request: request, started: s.started(ctx, inst, request),
		finished: record.finished, meter: auth.MeterOf(ctx)}
	totals, err := generate.Run(ctx, inst.Loop, offerOf(inst).Decoders(), request, out)
	record.totals = totals
	rpc.Annotate(ctx, "prompt_tokens", len(request.Prompt))
	rpc.Annotate(ctx, "completion_tokens", totals.Generated)
	if err != nil {
		usage, _ := proto.Marshal(usageOf(request, totals.Resumed+totals.Generated, totals.Cached)) // numbers always marshal
		stream.SetTrailer(metadata.Pairs(rpc.UsageTrailer, string(usage)))
		return statusOf(err)
	}
	return nil
}

// usageOf returns the usage of a request. completion includes the tokens that were resumed.
func usageOf(r generate.Request, completion, cached int) *pb.Usage {
	return &pb.Usage{PromptTokens: uint32(len(r.Prompt)), CompletionTokens: uint32(completion), CachedTokens: uint32(cached)}
}

// deadlineMargin bounds how long before its deadline a call ends, which is a twentieth of its time.
// A trailer that is sent at the deadline never arrives, and on a busy machine it takes a while.
const deadlineMargin = 250 * time.Millisecond

// BeforeDeadline returns a context that ends a little before ctx's deadline, so that status and
// usage arrive in time.
func BeforeDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	margin := min(deadlineMargin, time.Until(deadline)/20)
	return context.WithDeadlineCause(ctx, deadline.Add(-margin), errDeadline)
}

// started returns the event of a generation's start. The sink completes it.
func (s *Server) started(ctx context.Context, inst *model.Instance, r generate.Request) *pb.Started {
	return &pb.Started{
		ModelDigest: hex.EncodeToString(inst.Digest[:]), PromptDigest: r.Digest, ClassId: inst.ClassID,
		PromptTokens: uint32(len(r.Prompt)), Seed: r.Params.Seed, WorkerId: s.cfg.WorkerID,
		Incarnation: s.cfg.Incarnation, RequestId: rpc.RequestID(ctx), MaxTokens: proto.Uint32(uint32(r.MaxTokens)),
		GuidedIgnored: r.Grammar.Dropped(),
	}
}

// maxLoggedBytes bounds the text of a prompt in a log line, and maxLoggedIDs its token ids.
const (
	maxLoggedBytes = 4 << 10
	maxLoggedIDs   = 256
)

// logPrompt logs the prompt of a request that is about to run, with --log-prompts.
func (s *Server) logPrompt(ctx context.Context, in *pb.GenerateRequest) {
	if !s.cfg.LogPrompts {
		return
	}
	fields := []any{"request_id", rpc.RequestID(ctx), "model", in.GetModel()}
	text := func(t string) string { return strings.ToValidUTF8(t[:min(len(t), maxLoggedBytes)], "") }
	switch input := in.GetInput().(type) {
	case *pb.GenerateRequest_TokenIds:
		ids := input.TokenIds.GetIds()
		fields = append(fields, "ids", len(ids), "token_ids", ids[:min(len(ids), maxLoggedIDs)])
	case *pb.GenerateRequest_Chat:
		var all strings.Builder
		for _, m := range input.Chat.GetMessages() {
			all.WriteString(m.GetRole() + ": " + m.GetContent() + "\n")
		}
		fields = append(fields, "bytes", all.Len(), "chat", text(all.String()))
	default:
		fields = append(fields, "bytes", len(in.GetPrompt()), "prompt", text(in.GetPrompt()))
	}
	s.logger.Info("prompt", fields...)
}
