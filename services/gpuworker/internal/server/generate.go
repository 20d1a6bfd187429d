package server

import (
	"context"
	"encoding/hex"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

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
	told := s.begin(ctx, in, arrived)
	defer func() { told.end(err) }()
	if err := invalid(checkGenerate(in)); err != nil {
		return err
	}
	if in.Guided != nil {
		return notBuilt("guided")
	}
	if err := s.admit(); err != nil {
		return err
	}
	inst, release, err := s.models.Acquire(in.GetModel())
	if err != nil {
		return statusOf(err)
	}
	defer release()
	told.model = inst.Name
	resumed := len(in.GetResume()) > 0
	defer func() { s.observer.Ended(inst.Name, status.Code(err), time.Since(arrived), resumed) }()
	ctx, leave := s.drain.join(ctx)
	defer leave()
	ctx, stop := beforeDeadline(ctx)
	defer stop()
	request, err := s.prepare(ctx, in, inst)
	if err != nil {
		return statusOf(err)
	}
	told.prepared(request)
	s.showPrompt(ctx, in)
	rpc.LetGo(ctx) // from here on there are its tokens, no more than a context, and its options
	to := &sink{stream: rpc.Bare(stream), response: in.GetResponse(), request: request, started: s.started(ctx, inst, request),
		finished: told.finished, meter: auth.MeterOf(ctx)}
	totals, err := generate.Run(ctx, inst.Loop, offerOf(inst).Decoders(), request, to)
	told.totals = totals
	rpc.Annotate(ctx, "prompt_tokens", len(request.Prompt))
	rpc.Annotate(ctx, "completion_tokens", totals.Generated)
	if err != nil {
		usage, _ := proto.Marshal(usageOf(request, totals.Resumed+totals.Generated, totals.Cached)) // numbers always marshal
		stream.SetTrailer(metadata.Pairs(rpc.UsageTrailer, string(usage)))
		return statusOf(err)
	}
	return nil
}

// usageOf is the usage of a request that has so many tokens, those resumed counted.
func usageOf(r generate.Request, completion, cached int) *pb.Usage {
	return &pb.Usage{PromptTokens: uint32(len(r.Prompt)), CompletionTokens: uint32(completion), CachedTokens: uint32(cached)}
}

// A call is ended before its deadline by a twentieth of its time, at most deadlineMargin: a trailer sent at the deadline
// itself never arrives, and one on a busy machine takes a while.
const deadlineMargin = 250 * time.Millisecond

// beforeDeadline ends a context a little before its deadline, so that status and usage arrive in time.
func beforeDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	margin := min(deadlineMargin, time.Until(deadline)/20)
	return context.WithDeadlineCause(ctx, deadline.Add(-margin), errDeadline)
}

// started is what is known of a generation before it begins.
func (s *Server) started(ctx context.Context, inst *model.Instance, r generate.Request) *pb.Started {
	return &pb.Started{
		ModelDigest: hex.EncodeToString(inst.Digest[:]), PromptDigest: r.Digest, ClassId: inst.ClassID,
		PromptTokens: uint32(len(r.Prompt)), Seed: r.Params.Seed, WorkerId: s.identity.WorkerID,
		Incarnation: s.identity.Incarnation, RequestId: rpc.RequestID(ctx), MaxTokens: proto.Uint32(uint32(r.MaxTokens)),
	}
}

// Embed implements InferenceService.
func (s *Server) Embed(context.Context, *pb.EmbedRequest) (*pb.EmbedResponse, error) {
	return nil, notBuilt("InferenceService.Embed")
}
