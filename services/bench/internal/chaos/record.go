package chaos

import (
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// arrival is one event that brought tokens, or the end of a continuation.
type arrival struct {
	at     time.Duration // since the stage began
	output uint32
	tokens uint32
	text   uint32 // bytes
	end    bool
}

// record is one stream as its client saw it.
type record struct {
	request      int    // of the mix
	via          int    // the scheduler that it was first sent to
	worker       string // that the first token came from; empty before
	transcript   Transcript
	arrivals     []arrival
	began, ended time.Duration
	again        []int // for each time that the client sent it to the other scheduler, how many arrivals there were
	err          error // why it failed, or what was wrong with it
}

// add takes an event that came at a time.
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

// before is how many arrivals there were until a time.
func (r *record) before(at time.Duration) int {
	n := 0
	for n < len(r.arrivals) && r.arrivals[n].at <= at {
		n++
	}
	return n
}

// resumeBehind asks for what came behind the first n arrivals; req is the request as it was first sent.
func (r *record) resumeBehind(n int, req *pb.GenerateRequest) *pb.GenerateRequest {
	again := proto.CloneOf(req)
	again.Resume = make([]*pb.Resume, len(r.transcript.outputs))
	counts := make([]int, len(again.GetResume()))
	for i := range again.GetResume() {
		again.Resume[i] = &pb.Resume{OutputIndex: uint32(i), TextBytes: ptr(uint64(0))}
	}
	for _, a := range r.arrivals[:n] {
		out := again.GetResume()[a.output]
		*out.TextBytes += uint64(a.text)
		out.Finished = out.GetFinished() || a.end
		counts[a.output] += int(a.tokens)
	}
	for i, n := range counts {
		again.Resume[i].TokenIds = r.transcript.outputs[i].ids[:n]
	}
	return again
}
