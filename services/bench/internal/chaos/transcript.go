package chaos

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// What a stream may do wrong, told while it comes.
var (
	errLost      = errors.New("tokens are lost")
	errRepeated  = errors.New("something came twice")
	errDifferent = errors.New("something else came than without a fault")
)

// Transcript is what a stream gave, however it was cut into events and attempts. The zero value is a stream of which nothing
// came yet.
type Transcript struct {
	started *pb.Started
	resumed bool // the next `started` is that of another attempt
	prompt  prompt
	outputs []output // by output_index
}

// prompt is what is told of a prompt, in runs of any length.
type prompt struct {
	tokens  int
	ids     []uint32
	details []uint32 // as those of an output
}

// output is one continuation.
type output struct {
	ids      []uint32
	text     []byte
	details  []uint32 // per token: bits of the logprob, rank, and of each candidate its id and bits
	finished *pb.Finished
}

// output is the continuation of that index, made if there is none. Indexes are those that a server sent.
func (t *Transcript) output(i uint32) *output {
	for len(t.outputs) <= int(i) {
		t.outputs = append(t.outputs, output{})
	}
	return &t.outputs[i]
}

// maxOutputs is the contract's bound of num_sequences.
const maxOutputs = 16

// Add takes the next event; its error wraps errLost, errRepeated or errDifferent.
func (t *Transcript) Add(event *pb.GenerateResponse) error {
	switch e := event.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		return t.start(e.Started)
	case *pb.GenerateResponse_Prompt:
		return t.tell(e.Prompt)
	case *pb.GenerateResponse_Tokens:
		return t.add(e.Tokens)
	case *pb.GenerateResponse_Finished:
		if e.Finished.GetOutputIndex() >= maxOutputs {
			return fmt.Errorf("%w: the end of output %d", errDifferent, e.Finished.GetOutputIndex())
		}
		o := t.output(e.Finished.GetOutputIndex())
		if o.finished != nil {
			return fmt.Errorf("%w: the end of output %d", errRepeated, e.Finished.GetOutputIndex())
		}
		o.finished = e.Finished
	}
	return nil
}

// start takes `started`: once, and once more of each attempt that the client itself made.
func (t *Transcript) start(s *pb.Started) error {
	switch {
	case t.started == nil:
	case s.Exact != nil && !s.GetExact():
		return fmt.Errorf("%w: the stream goes on inexactly, on worker %s of class %s", errDifferent, s.GetWorkerId(), s.GetClassId())
	case !t.resumed:
		return fmt.Errorf("%w: `started`, of worker %s and then of %s", errRepeated, t.started.GetWorkerId(), s.GetWorkerId())
	default:
		for i, n := range s.GetResumedTokens() {
			if i < maxOutputs && int(n) != len(t.output(uint32(i)).ids) {
				return fmt.Errorf("%w: output %d goes on behind %d tokens and has %d", errLost, i, n, len(t.output(uint32(i)).ids))
			}
		}
	}
	t.started, t.resumed = s, false
	return nil
}

// tell takes a run of the prompt.
func (t *Transcript) tell(run *pb.PromptTokens) error {
	p, at := &t.prompt, int(run.GetTokenIndex())
	switch {
	case at < p.tokens, len(t.tokens()) > 0:
		return fmt.Errorf("%w: the prompt from token %d on", errRepeated, at)
	case at > p.tokens:
		return fmt.Errorf("%w: of the prompt, token %d comes behind %d", errLost, at, p.tokens)
	}
	p.tokens += max(len(run.GetTokenIds()), len(run.GetDetails()))
	p.ids = append(p.ids, run.GetTokenIds()...)
	p.details = appendDetails(p.details, run.GetDetails())
	return nil
}

func (t *Transcript) add(tokens *pb.Tokens) error {
	i, at := tokens.GetOutputIndex(), int(tokens.GetTokenIndex())
	if t.started == nil {
		return fmt.Errorf("%w: tokens before `started`", errLost)
	}
	if i >= maxOutputs {
		return fmt.Errorf("%w: tokens of output %d", errDifferent, i)
	}
	o := t.output(i)
	switch {
	case o.finished != nil:
		return fmt.Errorf("%w: token %d of output %d behind its end", errDifferent, at, i)
	case at > len(o.ids):
		return fmt.Errorf("%w: token %d of output %d comes behind %d", errLost, at, i, len(o.ids))
	case at < len(o.ids):
		return fmt.Errorf("%w: token %d of output %d comes behind %d", errRepeated, at, i, len(o.ids))
	}
	o.ids = append(o.ids, tokens.GetTokenIds()...)
	o.text = append(o.text, tokens.GetText()...)
	o.details = appendDetails(o.details, tokens.GetDetails())
	return nil
}

func appendDetails(to []uint32, details []*pb.TokenDetail) []uint32 {
	for _, d := range details {
		to = append(to, math.Float32bits(d.GetLogprob()), d.GetRank(), uint32(len(d.GetCandidates())))
		for _, c := range d.GetCandidates() {
			to = append(to, c.GetTokenId(), math.Float32bits(c.GetLogprob()))
		}
	}
	return to
}

// tokens are the ids of all continuations, one behind the other.
func (t *Transcript) tokens() (all []uint32) {
	for i := range t.outputs {
		all = append(all, t.outputs[i].ids...)
	}
	return all
}

// resume asks for the rest of what a request has got so far; req is the request as it was first sent. A stream without a token
// is begun anew, and its transcript with it: what came of its prompt comes again.
func (t *Transcript) resume(req *pb.GenerateRequest) *pb.GenerateRequest {
	if len(t.tokens()) == 0 {
		*t = Transcript{}
		return req
	}
	t.resumed = true
	again := proto.CloneOf(req)
	again.ExpectModelDigest, again.ExpectPromptDigest = &t.started.ModelDigest, &t.started.PromptDigest
	again.ExpectClassId = &t.started.ClassId
	for i := range t.outputs {
		bytes := uint64(len(t.outputs[i].text))
		again.Resume = append(again.Resume, &pb.Resume{
			OutputIndex: uint32(i), TokenIds: t.outputs[i].ids, Finished: t.outputs[i].finished != nil, TextBytes: &bytes,
		})
	}
	return again
}
