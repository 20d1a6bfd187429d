package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
)

// errNothingLeft means that a stream to be continued is finished.
var errNothingLeft = errors.New("the stream is finished")

// received is the part of a stream that a client has, which is all that a server needs to continue it.
type received struct {
	started *pb.Started // nil: nothing has begun
	prompt  int         // tokens of the prompt whose events came
	outputs []*pb.Resume
}

// receivedBefore returns the part of a stream that a request resumes.
func receivedBefore(req *pb.GenerateRequest) *received {
	var r received
	for _, entry := range req.GetResume() {
		o := proto.CloneOf(entry)
		o.TextBytes = proto.Uint64(o.GetTextBytes())
		r.outputs = append(r.outputs, o)
	}
	return &r
}

// add takes one event. It returns an error if events are missing before it.
func (r *received) add(event *pb.GenerateResponse) error {
	switch e := event.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		r.started = e.Started
	case *pb.GenerateResponse_Prompt:
		r.prompt = int(e.Prompt.GetTokenIndex()) + max(len(e.Prompt.GetTokenIds()), len(e.Prompt.GetDetails()))
	case *pb.GenerateResponse_Tokens:
		o := r.output(e.Tokens.GetOutputIndex())
		if n := len(o.GetTokenIds()); n != int(e.Tokens.GetTokenIndex()) {
			return fmt.Errorf("token %d of output %d comes where token %d is next: lines are missing or of another stream",
				e.Tokens.GetTokenIndex(), e.Tokens.GetOutputIndex(), n)
		}
		o.TokenIds = append(o.TokenIds, e.Tokens.GetTokenIds()...)
		*o.TextBytes += uint64(len(e.Tokens.GetText()))
	case *pb.GenerateResponse_Finished:
		r.output(e.Finished.GetOutputIndex()).Finished = true
	}
	return nil
}

// lacksPrompt reports whether the stream broke off before all events of the prompt that req asks for.
// A request that resumes it cannot have the rest of them.
func (r *received) lacksPrompt(req *pb.GenerateRequest) bool {
	asked := req.GetResponse().GetEchoPrompt() || req.GetResponse() != nil && req.GetResponse().PromptLogprobs != nil
	return asked && len(req.GetResume()) == 0 && r.prompt < int(r.started.GetPromptTokens())
}

// output returns the entry of an output and creates it if it is missing.
func (r *received) output(index uint32) *pb.Resume {
	at := slices.IndexFunc(r.outputs, func(o *pb.Resume) bool { return o.GetOutputIndex() == index })
	if at < 0 {
		at = len(r.outputs)
		r.outputs = append(r.outputs, &pb.Resume{OutputIndex: index, TextBytes: proto.Uint64(0)})
	}
	return r.outputs[at]
}

// resume makes req continue the stream: with its seed and its length, and on nothing but the same model, prompt and class of worker, unless req
// expects something else already. With inexact any class may continue it.
func (r *received) resume(req *pb.GenerateRequest, inexact bool) {
	req.Resume = nil
	for _, o := range r.outputs {
		req.Resume = append(req.Resume, proto.CloneOf(o))
	}
	if len(req.GetResume()) == 0 { // it began, and no token came
		req.Resume = []*pb.Resume{{TextBytes: proto.Uint64(0)}}
	}
	if req.Sampling == nil {
		req.Sampling = &pb.Sampling{}
	}
	req.Sampling.Seed = proto.Uint64(r.started.GetSeed())
	limit(req, r.started)
	expect(&req.ExpectModelDigest, r.started.GetModelDigest())
	expect(&req.ExpectPromptDigest, r.started.GetPromptDigest())
	if !inexact {
		expect(&req.ExpectClassId, r.started.GetClassId())
	}
}

// limit gives a request the context of the stream that it continues, so that no worker with another one makes it longer or shorter. A
// server of an earlier version reported no length.
func limit(req *pb.GenerateRequest, started *pb.Started) {
	context := started.GetPromptTokens() + started.GetMaxTokens()
	if started.MaxTokens != nil && (req.ContextLength == nil || req.GetContextLength() > context) {
		req.ContextLength = &context
	}
}

// expect sets an expectation that the command line leaves open.
func expect(field **string, value string) {
	if *field == nil && value != "" {
		*field = &value
	}
}

// resumeFrom makes req continue the stream whose events a file has, as generate --json printed them. Several attempts one after
// another are one stream, and a last line that was cut is left out.
func resumeFrom(path string, req *pb.GenerateRequest, inexact bool) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return failure.Usagef("--resume: %w", err)
	}
	var got received
	for i, line := range bytes.SplitAfter(raw, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		event := &pb.GenerateResponse{}
		if err := protojson.Unmarshal(line, event); err != nil {
			if !bytes.HasSuffix(line, []byte("\n")) {
				break // the writer was stopped in the middle of it
			}
			return failure.Usagef("--resume: line %d of %s is no event of generate --json: %w", i+1, path, err)
		}
		if err := got.add(event); err != nil {
			return failure.Usagef("--resume: line %d of %s: %w", i+1, path, err)
		}
	}
	if got.started == nil {
		return failure.Usagef("--resume: %s has no `started` event: nothing was begun, so leave --resume out", path)
	}
	if got.lacksPrompt(req) {
		return failure.Usagef("--resume: %s ends before the last event of the prompt, and a resumed stream has none: leave --resume out, or "+
			"--prompt-logprobs and --echo-prompt", path)
	}
	if req.GetSampling().Seed != nil && req.GetSampling().GetSeed() != got.started.GetSeed() {
		return failure.Usagef("--seed %d: the stream in %s has the seed %d", req.GetSampling().GetSeed(), path, got.started.GetSeed())
	}
	want := max(1, int(req.GetSampling().GetNumSequences()))
	if ended := slices.DeleteFunc(slices.Clone(got.outputs), func(o *pb.Resume) bool { return !o.GetFinished() }); len(ended) == want {
		return errNothingLeft
	}
	got.resume(req, inexact)
	return nil
}
