package workertest

import (
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// PromptTokens is how many tokens every prompt has.
const PromptTokens = 6

// drawn is the seed of requests without one.
const drawn = 4711

// Answer is a worker's answer to a request by the contract, including `resume`: one event for each
// token. Its id depends on the seed, the output and the index. Its text arrives with the next
// token.
type Answer struct {
	// Worker, Class and Digest are the values in `started`. An empty class means "class", an empty
	// digest that of Model.
	Worker, Class, Digest string
	// Context is the worker's context in tokens, of which every prompt takes PromptTokens. 0: no
	// stream is too long, and a request without max_tokens gets no tokens.
	Context int
	// Old makes it a worker of an earlier version: it reports no max_tokens and refuses
	// context_length as an unknown field.
	Old bool
	// Cached is the number of cached prompt tokens that the worker reports.
	Cached uint32
	// Pause is the time before each token.
	Pause time.Duration
	// Events is how many events are sent before Err ends the stream; negative: all, and Err is
	// ignored.
	Events int
	// Err ends the stream; nil: OK.
	Err error
	// Hold keeps the stream open after Events until it is cancelled or its worker is killed.
	Hold bool
	// Change may change every event before it is sent.
	Change func(*pb.GenerateResponse)
}

// Whole returns an answer without a break.
func Whole(worker string) Answer { return Answer{Worker: worker, Events: -1} }

// Generate streams the answer. It can be a Worker's OnGenerate.
func (a Answer) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	events, err := a.Of(in)
	if err != nil {
		return err
	}
	for i, e := range events {
		if i == a.Events {
			if a.Hold {
				<-stream.Context().Done()
			}
			return a.Err
		}
		if e.GetTokens() != nil && a.Pause > 0 {
			select {
			case <-time.After(a.Pause):
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
		if a.Change != nil {
			a.Change(e)
		}
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	if a.Events >= 0 {
		return a.Err
	}
	return nil
}

// Of returns all events of the answer, or the refusal of the request.
func (a Answer) Of(in *pb.GenerateRequest) ([]*pb.GenerateResponse, error) {
	started := &pb.Started{
		WorkerId: a.Worker, ClassId: a.Class, ModelDigest: a.Digest, PromptTokens: PromptTokens, PromptDigest: "digest of the prompt",
		CachedTokens: a.Cached, Seed: drawn,
	}
	if s := in.GetSampling(); s != nil && s.Seed != nil {
		started.Seed = s.GetSeed()
	}
	if started.ClassId == "" {
		started.ClassId = "class"
	}
	if started.ModelDigest == "" {
		started.ModelDigest = Model(in.GetModel()).GetModelDigest()
	}
	if err := expectations(in, started); err != nil {
		return nil, err
	}
	limit, err := a.fit(in)
	if err != nil {
		return nil, err
	}
	if !a.Old {
		started.MaxTokens = proto.Uint32(uint32(limit))
	}
	outputs := int(max(1, in.GetSampling().GetNumSequences()))
	had := make([]*pb.Resume, outputs)
	for _, r := range in.GetResume() {
		had[r.GetOutputIndex()] = r
	}
	for i, r := range had {
		if len(in.GetResume()) == 0 {
			break
		}
		started.ResumedTokens = append(started.ResumedTokens, uint32(len(r.GetTokenIds())))
		if err := received(started.GetSeed(), i, limit, r); err != nil {
			return nil, err
		}
	}
	var events []*pb.GenerateResponse
	if in.GetResponse().GetProgress() {
		for _, n := range []uint32{2, 4, PromptTokens} {
			events = append(events, &pb.GenerateResponse{Event: &pb.GenerateResponse_Progress{Progress: &pb.Progress{PrefilledTokens: n}}})
		}
	}
	events = append(events, &pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: started}})
	if in.GetResponse().GetEchoPrompt() && len(in.GetResume()) == 0 {
		for _, part := range [][]uint32{{0, 1}, {2, 3, 4}, {5}} {
			events = append(events, &pb.GenerateResponse{Event: &pb.GenerateResponse_Prompt{
				Prompt: &pb.PromptTokens{TokenIds: part, TokenIndex: part[0]}}})
		}
	}
	for k := range limit {
		for i := range outputs {
			if !had[i].GetFinished() && k >= len(had[i].GetTokenIds()) {
				events = append(events, token(started.GetSeed(), i, k, limit))
			}
		}
	}
	for i := range outputs {
		if !had[i].GetFinished() {
			events = append(events, &pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
				OutputIndex: uint32(i), Reason: pb.FinishReason_FINISH_REASON_LENGTH,
				Usage: &pb.Usage{PromptTokens: PromptTokens, CompletionTokens: uint32(limit), CachedTokens: a.Cached},
			}}})
		}
	}
	return events, nil
}

// fit returns the most tokens of an output, or the refusal of a request that does not fit.
func (a Answer) fit(in *pb.GenerateRequest) (int, error) {
	own, wanted := a.Context, a.Context
	if own == 0 {
		own = math.MaxInt32
	}
	if in.GetStopping() != nil && in.GetStopping().MaxTokens != nil {
		wanted = int(in.GetStopping().GetMaxTokens())
	}
	context := own
	switch {
	case in.ContextLength != nil && a.Old:
		return 0, Refusal(codes.InvalidArgument, reason.UnknownField, "there is no context_length")
	case in.ContextLength != nil:
		context = int(in.GetContextLength())
	}
	room := context - PromptTokens
	limit := min(wanted, room)
	switch {
	case room < 0, room == 0 && wanted > 0:
		return 0, Refusal(codes.InvalidArgument, reason.PromptTooLong, fmt.Sprintf("the context has %d tokens", context))
	case PromptTokens+limit > own:
		return 0, Refusal(codes.FailedPrecondition, reason.ContextTooShort, fmt.Sprintf("the context has %d tokens here", own))
	}
	for _, r := range in.GetResume() {
		if len(r.GetTokenIds()) > limit {
			return 0, Refusal(codes.InvalidArgument, reason.ResumeTooLong, fmt.Sprintf("%d tokens at most", limit))
		}
	}
	return limit, nil
}

// expectations returns a refusal if the stream differs from the one that the request expects.
func expectations(in *pb.GenerateRequest, is *pb.Started) error {
	for _, want := range []struct {
		asked *string
		is    string
	}{{in.ExpectClassId, is.GetClassId()}, {in.ExpectModelDigest, is.GetModelDigest()}, {in.ExpectPromptDigest, is.GetPromptDigest()}} {
		if want.asked != nil && *want.asked != want.is {
			return Refusal(codes.FailedPrecondition, reason.ExpectationFailed, want.is+" is not "+*want.asked)
		}
	}
	return nil
}

// received returns a refusal if the resumed tokens were never sent.
func received(seed uint64, output, limit int, r *pb.Resume) error {
	var ids []uint32
	bytes := 0
	for k := range r.GetTokenIds() {
		sent := token(seed, output, k, limit).GetTokens()
		ids, bytes = append(ids, sent.GetTokenIds()...), bytes+len(sent.GetText())
	}
	if !slices.Equal(ids, r.GetTokenIds()) || !r.GetFinished() && r != nil && r.TextBytes != nil && int(r.GetTextBytes()) != bytes {
		return Refusal(codes.FailedPrecondition, reason.ResumeMismatch, "these tokens were never sent")
	}
	return nil
}

// token returns the event of the k-th token of an output. The text of a token is in the next event,
// that of the last one in its own.
func token(seed uint64, output, k, limit int) *pb.GenerateResponse {
	id := func(k int) uint32 { return uint32((seed+uint64(output)*1000+uint64(k)*17)%100_000) + 1 }
	words := []string{"", "a", " é", "漢", " the"}
	text := ""
	if k > 0 {
		text = words[id(k-1)%5]
	}
	if k == limit-1 {
		text += words[id(k)%5]
	}
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{
		OutputIndex: uint32(output), TokenIndex: uint32(k), TokenIds: []uint32{id(k)}, Text: text,
		Details: []*pb.TokenDetail{{Rank: proto.Uint32(uint32(k) + 1)}},
	}}}
}

// Refusal returns a worker's own status.
func Refusal(code codes.Code, why, message string) error {
	return rpc.Error{Code: code, Domain: rpc.WorkerDomain, Reason: why, Message: message}.Err()
}
