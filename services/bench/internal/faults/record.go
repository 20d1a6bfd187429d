package faults

import (
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// arrival is an event that brought tokens, or the end of a continuation.
type arrival struct {
	at     time.Duration // since the stage began
	output uint32
	tokens uint32
	text   uint32 // bytes
	end    bool
}

// move is one time that a client left a scheduler for the next one.
type move struct {
	from     string // scheduler
	arrivals int    // of the stream until then
	err      error  // the reason
}

// record is one stream as its client saw it.
type record struct {
	request      int    // index
	via          int    // the scheduler that it was first sent to
	worker       string // that sent the first `started`; a scheduler does not report later ones
	transcript   Transcript
	arrivals     []arrival
	moves        []move
	began, ended time.Duration
	err          error // failure, or the first wrong event
}

// add appends an event that arrived at a time.
func (r *record) add(event *pb.GenerateResponse, at time.Duration) error {
	if err := r.transcript.Add(event); err != nil {
		return err
	}
	switch e := event.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		if r.worker == "" {
			r.worker = e.Started.GetWorkerId()
		}
	case *pb.GenerateResponse_Tokens:
		r.arrivals = append(r.arrivals, arrival{
			at: at, output: e.Tokens.GetOutputIndex(), tokens: uint32(len(e.Tokens.GetTokenIds())), text: uint32(len(e.Tokens.GetText())),
		})
	case *pb.GenerateResponse_Finished:
		r.arrivals = append(r.arrivals, arrival{at: at, output: e.Finished.GetOutputIndex(), end: true})
	}
	return nil
}

// before returns the number of arrivals until a time.
func (r *record) before(at time.Duration) int {
	n := 0
	for n < len(r.arrivals) && r.arrivals[n].at <= at {
		n++
	}
	return n
}

// longest returns the longest pause between two arrivals.
func (r *record) longest() (pause time.Duration) {
	for k := 1; k < len(r.arrivals); k++ {
		pause = max(pause, r.arrivals[k].at-r.arrivals[k-1].at)
	}
	return pause
}

// resumeAfter returns the request for the rest of the stream after its first n arrivals.
func (r *record) resumeAfter(n int, whole *pb.GenerateRequest) *pb.GenerateRequest {
	in := proto.CloneOf(whole)
	in.Resume = make([]*pb.Resume, len(r.transcript.outputs))
	counts := make([]int, len(in.GetResume()))
	for i := range in.GetResume() {
		in.Resume[i] = &pb.Resume{OutputIndex: uint32(i), TextBytes: ptr(uint64(0))}
	}
	for _, a := range r.arrivals[:n] {
		out := in.GetResume()[a.output]
		*out.TextBytes += uint64(a.text)
		out.Finished = out.GetFinished() || a.end
		counts[a.output] += int(a.tokens)
	}
	for i, n := range counts {
		in.Resume[i].TokenIds = r.transcript.outputs[i].ids[:n]
	}
	return in
}

// again returns the request to send to another scheduler: the rest of the stream, or the whole
// request if no token arrived. In that case the record is reset, because the prompt is reported
// again too.
func (r *record) again(whole *pb.GenerateRequest) *pb.GenerateRequest {
	if r.transcript.length() == 0 {
		r.transcript, r.arrivals, r.worker = Transcript{}, nil, ""
		return whole
	}
	r.transcript.resumed = true
	in, s := r.resumeAfter(len(r.arrivals), whole), r.transcript.started
	in.ExpectModelDigest, in.ExpectPromptDigest, in.ExpectClassId = &s.ModelDigest, &s.PromptDigest, &s.ClassId
	if s.MaxTokens != nil {
		in.ContextLength = ptr(s.GetPromptTokens() + s.GetMaxTokens())
	}
	return in
}
