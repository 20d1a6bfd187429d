package server

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/gpuworker/tools"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/auth"
)

// sink sends the events of a generation to its caller.
type sink struct {
	stream   grpc.ServerStream   // raw: it applies backpressure to small events when the caller is a slow consumer
	response *pb.ResponseOptions // of the request, whose other parts are released
	request  generate.Request
	started  *pb.Started // completed and sent by Started
	finished func(batch.Reason)
	meter    *auth.Meter
}

// Started implements generate.Sink. It sends the echoed prompt too, unless its scores will carry
// it. A request that resumes a stream has had its prompt.
func (s *sink) Started(g generate.Started) error {
	s.meter.Add(int64(len(s.request.Prompt)))
	for _, r := range s.request.Resume {
		if !r.Finished { // its tokens are computed again like the prompt
			s.meter.Add(int64(len(r.IDs)))
		}
	}
	s.started.CachedTokens = uint32(g.Cached)
	for _, n := range g.Resumed {
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

// maxEventBytes bounds one event of a generation. A message is sent whole, and a message that does
// not move for --send-stall ends the call: a small one moves even to a slow consumer. Messages
// below 64 KiB count in the part of the send budget that is for streams of tokens.
const maxEventBytes = 60 << 10

// Bytes on the wire, at most.
const (
	maxIDBytes        = 5
	maxCandidateBytes = 2 + 1 + 5 + 5 // tag and length, id, logprob
	maxDetailBytes    = 3 + 5 + 6 + 6 // without candidates: tag and length, logprob, rank, text_bytes
)

// maxPartBytes bounds the bytes of a part in an event: tags and numbers, the id of a call and the name of a tool.
const maxPartBytes = 24 + 40 + 132

// maxRowBytes bounds the bytes of a token in an event, without its text. detailed is whether it
// has a TokenDetail.
func maxRowBytes(detailed bool, candidates int) int {
	if !detailed {
		return maxIDBytes
	}
	return maxIDBytes + maxDetailBytes + candidates*maxCandidateBytes
}

// sendPrompt sends count prompt tokens from an index on, in events of at most maxEventBytes.
func (s *sink) sendPrompt(from int, details []*pb.TokenDetail, count int) error {
	most := maxEventBytes / maxRowBytes(details != nil, int(s.response.GetPromptLogprobs()))
	for ; count > most; count -= most {
		var head []*pb.TokenDetail
		if details != nil {
			head, details = details[:most], details[most:]
		}
		if err := s.sendPromptEvent(from, head, most); err != nil {
			return err
		}
		from += most
	}
	return s.sendPromptEvent(from, details, count)
}

func (s *sink) sendPromptEvent(from int, details []*pb.TokenDetail, count int) error {
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
	return s.sendTokens(t)
}

// sendTokens sends a run of tokens, in halves if its event may be larger than maxEventBytes.
func (s *sink) sendTokens(t generate.Tokens) error {
	r := s.response
	detailed := r.GetOutputLogprobs() || r.GetOutputCandidates() > 0
	if n := len(t.Rows); n > 1 && n*maxRowBytes(detailed, int(r.GetOutputCandidates()))+len(t.Text)+len(t.Parts)*maxPartBytes > maxEventBytes {
		return s.sendCut(t, n/2)
	}
	// A part begins an event, so that one who has some of its tokens knows whether it began.
	for _, p := range t.Parts {
		if p.Row > 0 {
			return s.sendCut(t, p.Row)
		}
	}
	out := &pb.Tokens{OutputIndex: uint32(t.OutputIndex), TokenIndex: uint32(t.TokenIndex), Text: t.Text}
	out.TokenIds = make([]uint32, len(t.Rows))
	for i := range t.Rows {
		out.TokenIds[i] = uint32(t.Rows[i].Token)
		if detailed {
			detail := detailOf(&t.Rows[i])
			detail.TextBytes = uint32(t.TextBytes[i])
			out.Details = append(out.Details, detail)
		}
	}
	for _, p := range t.Parts {
		out.Parts = append(out.Parts, s.partOf(t.OutputIndex, p))
	}
	return s.stream.SendMsg(&pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: out}})
}

// sendCut sends a run of tokens in two events.
func (s *sink) sendCut(t generate.Tokens, row int) error {
	head, rest := cut(t, row)
	if err := s.sendTokens(head); err != nil {
		return err
	}
	return s.sendTokens(rest)
}

// partKinds are the kinds of parts in the contract.
var partKinds = map[tools.Kind]pb.PartKind{
	tools.Content: pb.PartKind_PART_KIND_CONTENT, tools.Reasoning: pb.PartKind_PART_KIND_REASONING, tools.Call: pb.PartKind_PART_KIND_TOOL_CALL,
}

func (s *sink) partOf(output int, p generate.Part) *pb.Part {
	out := &pb.Part{Kind: partKinds[p.Kind], TextBytes: uint32(p.Bytes), CallIndex: uint32(p.Call)}
	if p.Name != "" {
		out.Call = &pb.CallStart{Id: s.request.CallID(s.request.Digest, s.request.Params.Seed, output, p.Call), Name: p.Name}
	}
	return out
}

// cut cuts a run of tokens in two before a row, each with the text and the parts of its tokens.
func cut(t generate.Tokens, row int) (head, rest generate.Tokens) {
	bytes := 0
	for _, n := range t.TextBytes[:row] {
		bytes += n
	}
	head, rest = t, t
	head.Rows, head.TextBytes, head.Text = t.Rows[:row], t.TextBytes[:row], t.Text[:bytes]
	rest.Rows, rest.TextBytes, rest.Text = t.Rows[row:], t.TextBytes[row:], t.Text[bytes:]
	rest.TokenIndex += row
	head.Parts, rest.Parts = nil, nil
	for _, p := range t.Parts {
		begun := p.Name == "" || p.Row < row
		if before := min(p.Bytes, bytes); begun && (before > 0 || p.Name != "") {
			first := p
			first.Bytes = before
			head.Parts = append(head.Parts, first)
			bytes -= before
			p.Bytes -= before
			p.Name = ""
		}
		if p.Bytes > 0 || p.Name != "" {
			p.Row = max(p.Row-row, 0)
			rest.Parts = append(rest.Parts, p)
		}
	}
	return head, rest
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
	out.Usage.ReasoningTokens = uint32(f.Reasoning)
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
