package faults

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// What can be wrong with a stream.
var (
	errLost      = errors.New("tokens are lost")
	errRepeated  = errors.New("something came twice")
	errDifferent = errors.New("something else came than without a fault")
)

// Transcript is the content of a stream, independent of how it was cut into events and attempts.
// The zero value is a stream without events.
type Transcript struct {
	started *pb.Started
	resumed bool // the client sent the call again: one more `started` is due
	prompt  prompt
	outputs []output // by output_index
}

// prompt is the prompt as the server reports it, in runs of any length.
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

// output returns the continuation of index i, which a server sent, and creates it if there is none.
func (t *Transcript) output(i uint32) *output {
	for len(t.outputs) <= int(i) {
		t.outputs = append(t.outputs, output{})
	}
	return &t.outputs[i]
}

// maxOutputs is the contract's bound of num_sequences.
const maxOutputs = 16

// Add appends the next event. Its error wraps errLost, errRepeated or errDifferent.
func (t *Transcript) Add(event *pb.GenerateResponse) error {
	switch e := event.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		return t.start(e.Started)
	case *pb.GenerateResponse_Prompt:
		return t.addPrompt(e.Prompt)
	case *pb.GenerateResponse_Tokens:
		return t.addTokens(e.Tokens)
	case *pb.GenerateResponse_Finished:
		i := e.Finished.GetOutputIndex()
		if i >= maxOutputs {
			return fmt.Errorf("%w: the end of output %d", errDifferent, i)
		}
		o := t.output(i)
		if o.finished != nil {
			return fmt.Errorf("%w: the end of output %d", errRepeated, i)
		}
		o.finished = e.Finished
	}
	return nil
}

// start accepts `started` once, and once more for each time that the client sent the call again.
func (t *Transcript) start(s *pb.Started) error {
	switch {
	case s.Exact != nil && !s.GetExact():
		return fmt.Errorf("%w: the stream continues inexactly, on worker %s of class %s", errDifferent, s.GetWorkerId(), s.GetClassId())
	case t.started == nil:
	case !t.resumed:
		return fmt.Errorf("%w: `started`, of worker %s and then of %s", errRepeated, t.started.GetWorkerId(), s.GetWorkerId())
	default:
		for i, n := range s.GetResumedTokens() {
			if i < maxOutputs && int(n) != len(t.output(uint32(i)).ids) {
				return fmt.Errorf("%w: output %d continues after %d tokens and has %d", errLost, i, n, len(t.output(uint32(i)).ids))
			}
		}
	}
	t.started, t.resumed = s, false
	return nil
}

func (t *Transcript) addPrompt(run *pb.PromptTokens) error {
	p, first := &t.prompt, int(run.GetTokenIndex())
	switch {
	case first < p.tokens, t.length() > 0:
		return fmt.Errorf("%w: the prompt from token %d on", errRepeated, first)
	case first > p.tokens:
		return fmt.Errorf("%w: of the prompt, token %d comes after %d", errLost, first, p.tokens)
	}
	p.tokens += max(len(run.GetTokenIds()), len(run.GetDetails()))
	p.ids = append(p.ids, run.GetTokenIds()...)
	p.details = appendDetails(p.details, run.GetDetails())
	return nil
}

func (t *Transcript) addTokens(tokens *pb.Tokens) error {
	i, first := tokens.GetOutputIndex(), int(tokens.GetTokenIndex())
	if t.started == nil {
		return fmt.Errorf("%w: tokens before `started`", errLost)
	}
	if i >= maxOutputs {
		return fmt.Errorf("%w: tokens of output %d", errDifferent, i)
	}
	o := t.output(i)
	switch {
	case o.finished != nil:
		return fmt.Errorf("%w: token %d of output %d after its end", errDifferent, first, i)
	case first > len(o.ids):
		return fmt.Errorf("%w: token %d of output %d comes after %d", errLost, first, i, len(o.ids))
	case first < len(o.ids):
		return fmt.Errorf("%w: token %d of output %d comes after %d", errRepeated, first, i, len(o.ids))
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

// length returns the number of tokens of all continuations.
func (t *Transcript) length() (n int) {
	for i := range t.outputs {
		n += len(t.outputs[i].ids)
	}
	return n
}

// Same compares a stream that ended with status OK with the undisturbed one of its request. The
// error wraps errLost if the stream is shorter, else errDifferent. Worker, request id, cached
// tokens and times may differ.
func (t *Transcript) Same(want *Transcript) error {
	a, b := t.started, want.started
	if a == nil || b == nil {
		return fmt.Errorf("%w: `started`", errLost)
	}
	if a.GetModelDigest() != b.GetModelDigest() || a.GetPromptDigest() != b.GetPromptDigest() || a.GetClassId() != b.GetClassId() ||
		a.GetPromptTokens() != b.GetPromptTokens() || a.GetSeed() != b.GetSeed() {
		return fmt.Errorf("%w: `started` is %v instead of %v", errDifferent, a, b)
	}
	if !slices.Equal(t.prompt.ids, want.prompt.ids) || !slices.Equal(t.prompt.details, want.prompt.details) {
		return fmt.Errorf("%w: the ids or logprobs of the prompt", errDifferent)
	}
	if len(t.outputs) != len(want.outputs) {
		return fmt.Errorf("%w: %d continuations instead of %d", errLost, len(t.outputs), len(want.outputs))
	}
	for i := range t.outputs {
		if err := t.outputs[i].same(&want.outputs[i]); err != nil {
			return fmt.Errorf("output %d: %w", i, err)
		}
	}
	return nil
}

func (o *output) same(want *output) error {
	for k := range min(len(o.ids), len(want.ids)) {
		if o.ids[k] != want.ids[k] {
			return fmt.Errorf("%w: token %d is %d instead of %d", errDifferent, k, o.ids[k], want.ids[k])
		}
	}
	switch {
	case o.finished == nil:
		return fmt.Errorf("%w: no end after %d tokens of %d", errLost, len(o.ids), len(want.ids))
	case len(o.ids) < len(want.ids):
		return fmt.Errorf("%w: %d instead of %d", errLost, len(o.ids), len(want.ids))
	case len(o.ids) > len(want.ids):
		return fmt.Errorf("%w: %d tokens instead of %d", errDifferent, len(o.ids), len(want.ids))
	case !bytes.Equal(o.text, want.text):
		return fmt.Errorf("%w: %d bytes of text instead of %d, or others: %.80q instead of %.80q",
			errDifferent, len(o.text), len(want.text), o.text, want.text)
	case !slices.Equal(o.details, want.details):
		return fmt.Errorf("%w: the bits of logprobs, ranks or candidates", errDifferent)
	case !proto.Equal(ending(o.finished), ending(want.finished)):
		return fmt.Errorf("%w: ended by %v instead of %v", errDifferent, ending(o.finished), ending(want.finished))
	}
	return nil
}

// ending returns the fields of an end that must not differ.
func ending(f *pb.Finished) *pb.Finished {
	return &pb.Finished{
		OutputIndex: f.GetOutputIndex(), Reason: f.GetReason(), Matched: f.GetMatched(),
		Usage: &pb.Usage{PromptTokens: f.GetUsage().GetPromptTokens(), CompletionTokens: f.GetUsage().GetCompletionTokens()},
	}
}
