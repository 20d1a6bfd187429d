package server

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/auth"
)

// sink sends the events of a generation, headers with the first.
type sink struct {
	stream   grpc.ServerStream   // bare: small events do not pile up before a reader that does not read
	response *pb.ResponseOptions // of the request, whose other parts are not held
	request  generate.Request
	started  *pb.Started // what is known of it before it begins
	finished func(batch.Reason)
	meter    *auth.Meter
}

// Started implements generate.Sink. It sends the echoed prompt too, where no scores will carry it. A request that is resumed
// has had its prompt.
func (s *sink) Started(is generate.Started) error {
	s.meter.Add(int64(len(s.request.Prompt)))
	for _, r := range s.request.Resume {
		if !r.Finished { // it is computed again as the prompt is
			s.meter.Add(int64(len(r.IDs)))
		}
	}
	s.started.CachedTokens = uint32(is.Cached)
	for _, n := range is.Resumed {
		s.started.ResumedTokens = append(s.started.ResumedTokens, uint32(n))
	}
	err := s.stream.SendMsg(&pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: s.started}})
	r := s.response
	switch {
	case err != nil || r == nil || s.request.Resumed():
		return err
	case r.PromptLogprobs != nil:
		// The first token has neither logprob nor rank.
		return s.sendPrompt(0, []*pb.TokenDetail{{}}, 1)
	case r.GetEchoPrompt():
		return s.sendPrompt(0, nil, len(s.request.Prompt))
	}
	return nil
}

func (s *sink) sendPrompt(from int, details []*pb.TokenDetail, count int) error {
	p := &pb.PromptTokens{TokenIndex: uint32(from), Details: details}
	if s.response.GetEchoPrompt() {
		for _, id := range s.request.Prompt[from : from+count] {
			p.TokenIds = append(p.TokenIds, uint32(id))
		}
	}
	return s.stream.SendMsg(&pb.GenerateResponse{Event: &pb.GenerateResponse_Prompt{Prompt: p}})
}

// Prefilled implements generate.Sink.
func (s *sink) Prefilled(n int) error {
	return s.stream.SendMsg(&pb.GenerateResponse{Event: &pb.GenerateResponse_Progress{
		Progress: &pb.Progress{PrefilledTokens: uint32(n)},
	}})
}

// Scored implements generate.Sink.
func (s *sink) Scored(from int, rows []engine.RowResult) error {
	details := make([]*pb.TokenDetail, len(rows))
	for i := range rows {
		details[i] = detailOf(&rows[i])
	}
	return s.sendPrompt(from, details, len(rows))
}

// Tokens implements generate.Sink.
func (s *sink) Tokens(t generate.Tokens) error {
	s.meter.Add(int64(len(t.Rows)))
	out := &pb.Tokens{OutputIndex: uint32(t.OutputIndex), TokenIndex: uint32(t.TokenIndex), Text: t.Text}
	out.TokenIds = make([]uint32, len(t.Rows))
	r := s.response
	for i := range t.Rows {
		out.TokenIds[i] = uint32(t.Rows[i].Token)
		if r.GetOutputLogprobs() || r.GetOutputCandidates() > 0 {
			detail := detailOf(&t.Rows[i])
			detail.TextBytes = uint32(t.TextBytes[i])
			out.Details = append(out.Details, detail)
		}
	}
	return s.stream.SendMsg(&pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: out}})
}

// Finished implements generate.Sink.
func (s *sink) Finished(f generate.Finished) error {
	out := &pb.Finished{
		OutputIndex: uint32(f.OutputIndex), Reason: pb.FinishReason_FINISH_REASON_LENGTH,
		Usage: usageOf(s.request, f.Generated, f.Cached),
		Timings: &pb.Timings{
			Queue: durationpb.New(f.Timings.Queue), Prefill: durationpb.New(f.Timings.Prefill),
			Decode: durationpb.New(f.Timings.Decode),
		},
	}
	if f.Reason == batch.Stop {
		out.Reason = pb.FinishReason_FINISH_REASON_STOP
		if f.Stop != "" {
			out.Matched = &pb.Finished_Stop{Stop: f.Stop}
		} else {
			out.Matched = &pb.Finished_StopTokenId{StopTokenId: uint32(f.StopID)}
		}
	}
	s.finished(f.Reason)
	return s.stream.SendMsg(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: out}})
}

func detailOf(row *engine.RowResult) *pb.TokenDetail {
	logprob, rank := row.Logprob, uint32(row.Rank)
	d := &pb.TokenDetail{Logprob: &logprob, Rank: &rank}
	for _, c := range row.Candidates {
		d.Candidates = append(d.Candidates, &pb.Candidate{TokenId: uint32(c.Token), Logprob: c.Logprob})
	}
	return d
}
