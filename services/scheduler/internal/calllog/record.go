package calllog

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// ErrViolation means that a worker sent a frame that no stream of this request has at this place.
// The frame must not be forwarded, and the attempt must end: later frames have no meaning either.
var ErrViolation = errors.New("the worker's stream breaks the contract")

// violation returns an ErrViolation with a message.
func violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrViolation}, args...)...)
}

// Verdict says how to treat a recorded frame. The zero value: send it unchanged.
type Verdict struct {
	// Drop means that the client has the content, so nothing is sent.
	Drop bool
	// Replacement is sent instead of the frame, unless it is nil.
	Replacement []byte
	// Tokens is how many new tokens the frame delivers.
	Tokens int64
}

// drop is the verdict on a frame whose content the client has.
var drop = Verdict{Drop: true}

// Record validates the next frame of the current attempt and records it as delivered. The error is
// an ErrViolation. Record keeps no reference to the frame, because the transport reuses its memory.
func (l *Log) Record(frame []byte) (Verdict, error) {
	s, ok := scan(frame)
	if !ok {
		return Verdict{}, violation("a message of %d bytes is not one event", len(frame))
	}
	switch s.event {
	case eventTokens:
		return l.recordTokens(&s)
	case eventStarted:
		return l.recordStarted(&s)
	case eventProgress:
		return l.recordProgress(&s), nil
	case eventPrompt:
		return l.recordPrompt(&s, frame)
	case eventFinished:
		return l.recordFinished(&s, frame)
	}
	return Verdict{}, nil // an event of a later version, which the client may understand
}

// recordStarted records the first `started` and forwards it. A later one must agree with it and is
// dropped. If a later one comes from another class, and that is allowed, it is forwarded with
// exact=false, because from there on the tokens may differ from those of the first class.
func (l *Log) recordStarted(s *eventFields) (Verdict, error) {
	started := &pb.Started{}
	if err := proto.Unmarshal(s.body, started); err != nil {
		return Verdict{}, violation("`started` cannot be decoded: %v", err)
	}
	if l.attempt.started {
		return Verdict{}, violation("`started` came twice")
	}
	inexact, err := l.compare(started)
	if err != nil {
		return Verdict{}, err
	}
	l.attempt.started = true
	if started.MaxTokens != nil {
		l.identity.limit, l.identity.limited = started.GetMaxTokens(), true
	}
	l.identity = identity{
		limit: l.identity.limit, limited: l.identity.limited,
		model: started.GetModelDigest(), class: started.GetClassId(), promptDigest: started.GetPromptDigest(),
		seed: started.GetSeed(), seeded: true, promptTokens: started.GetPromptTokens(),
	}
	switch {
	case !l.Started():
		l.started, l.cached = l.attempt.number, started.GetCachedTokens()
		return Verdict{}, nil
	case !inexact:
		return drop, nil
	}
	started.Exact = proto.Bool(false)
	return replace(&pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: started}})
}

// compare compares a `started` with the identity of the stream. inexact means that only the class
// differs, and that it may.
func (l *Log) compare(started *pb.Started) (inexact bool, err error) {
	want := &l.identity
	differs := func(want, got string) bool { return want != "" && want != got }
	switch {
	case differs(want.model, started.GetModelDigest()):
		return false, violation("model digest %.64q, and the stream is from %q", started.GetModelDigest(), want.model)
	case differs(want.promptDigest, started.GetPromptDigest()), l.Started() && want.promptTokens != started.GetPromptTokens():
		return false, violation("a prompt of %d tokens with digest %.64q, and the stream's has %d with %q",
			started.GetPromptTokens(), started.GetPromptDigest(), want.promptTokens, want.promptDigest)
	case want.seeded && want.seed != started.GetSeed():
		return false, violation("seed %d, and the stream's is %d", started.GetSeed(), want.seed)
	case want.limited && started.MaxTokens != nil && want.limit != started.GetMaxTokens():
		return false, violation("at most %d tokens a continuation, and the stream may have %d", started.GetMaxTokens(), want.limit)
	case !l.confirms(started.GetResumedTokens()):
		return false, violation("it resumed after %d tokens, and not after those delivered", started.GetResumedTokens())
	case !differs(want.class, started.GetClassId()):
		return false, nil
	case !l.Started() || !l.attempt.inexact:
		return false, violation("class %.64q, and the stream is from %q", started.GetClassId(), want.class)
	}
	return true, nil
}

// confirms reports whether a worker resumed each output after the tokens that the log has.
func (l *Log) confirms(resumed []uint32) bool {
	if !l.attempt.resumes {
		return len(resumed) == 0
	}
	if len(resumed) != len(l.outputs) {
		return false
	}
	for i := range l.outputs {
		if int(resumed[i]) != len(l.outputs[i].ids) {
			return false
		}
	}
	return true
}

// recordProgress drops progress of a later attempt that does not grow, or that comes after the
// first token: the client must not see its prefill start again.
func (l *Log) recordProgress(s *eventFields) Verdict {
	prefilled := uint32(s.count)
	if l.attempt.number > 1 && (prefilled <= l.progress || l.tokens > 0) {
		return drop
	}
	l.progress = prefilled
	return Verdict{}
}

// recordPrompt drops the part of the prompt that the client has. A frame that only begins with that
// part is cut.
func (l *Log) recordPrompt(s *eventFields, frame []byte) (Verdict, error) {
	from, end := uint64(s.index), uint64(s.index)+uint64(s.count)
	switch {
	case !l.attempt.started || l.attempt.resumes:
		return Verdict{}, violation("`prompt` where none is due")
	case end > uint64(l.identity.promptTokens) || from > uint64(l.prompt):
		return Verdict{}, violation("prompt tokens [%d, %d) after %d of %d", from, end, l.prompt, l.identity.promptTokens)
	case end <= uint64(l.prompt):
		return drop, nil
	case from == uint64(l.prompt):
		l.prompt = uint32(end)
		return Verdict{}, nil
	}
	m := &pb.GenerateResponse{}
	if err := proto.Unmarshal(frame, m); err != nil {
		return Verdict{}, violation("`prompt` cannot be decoded: %v", err)
	}
	p, delivered := m.GetPrompt(), int(uint64(l.prompt)-from)
	p.TokenIds, p.Details = p.TokenIds[min(delivered, len(p.TokenIds)):], p.Details[min(delivered, len(p.Details)):]
	p.TokenIndex, l.prompt = l.prompt, uint32(end)
	return replace(m)
}

// recordTokens records token ids.
func (l *Log) recordTokens(s *eventFields) (Verdict, error) {
	if err := l.due(s.output, "tokens"); err != nil {
		return Verdict{}, err
	}
	o := &l.outputs[s.output]
	if int(s.index) != len(o.ids) {
		return Verdict{}, violation("tokens of output %d from %d on, and it has %d", s.output, s.index, len(o.ids))
	}
	for b := s.ids; len(b) > 0; {
		id, n := protowire.ConsumeVarint(b)
		o.ids, b = append(o.ids, uint32(id)), b[n:]
	}
	o.text += uint64(s.text)
	l.tokens += int64(s.count)
	if s.count > 0 {
		l.lost, l.attempt.progressed = 0, true
	}
	return Verdict{Tokens: int64(s.count)}, nil
}

// recordFinished ends an output. If another worker began the stream, the event is replaced by one
// that covers all attempts.
func (l *Log) recordFinished(s *eventFields, frame []byte) (Verdict, error) {
	if err := l.due(s.output, "`finished`"); err != nil {
		return Verdict{}, err
	}
	var v Verdict
	if l.attempt.number > l.started {
		var err error
		if v, err = l.totalFinished(frame); err != nil {
			return Verdict{}, err
		}
	}
	l.outputs[s.output].finished = true
	l.finished++
	l.lost, l.attempt.progressed = 0, true
	return v, nil
}

// totalFinished replaces a `finished`, which covers the last attempt, by one that covers the call.
//
// Cached tokens are those of the `started` that the client has. The time of earlier attempts counts
// as queue time if they delivered no token. If they did, only the lost workers could divide the
// time before the first token into queue and prefill, so all of it counts as prefill, and all time
// after the first token counts as decode.
func (l *Log) totalFinished(frame []byte) (Verdict, error) {
	m := &pb.GenerateResponse{}
	if err := proto.Unmarshal(frame, m); err != nil {
		return Verdict{}, violation("`finished` cannot be decoded: %v", err)
	}
	f := m.GetFinished()
	if f.Usage != nil {
		f.Usage.CachedTokens = l.cached
	}
	if t := f.Timings; t != nil {
		queue, prefill, decode := t.GetQueue().AsDuration(), t.GetPrefill().AsDuration(), t.GetDecode().AsDuration()
		if l.attempt.afterToken {
			queue, prefill, decode = 0, l.elapsed.BeforeToken, l.elapsed.SinceToken+queue+prefill+decode
		} else {
			queue += l.elapsed.BeforeToken
		}
		f.Timings = &pb.Timings{Queue: durationpb.New(queue), Prefill: durationpb.New(prefill), Decode: durationpb.New(decode)}
	}
	return replace(m)
}

// due returns a violation if an output cannot have the event now.
func (l *Log) due(output uint32, event string) error {
	switch {
	case !l.attempt.started:
		return violation("%s before `started`", event)
	case int(output) >= len(l.outputs):
		return violation("%s of output %d, and %d were requested", event, output, len(l.outputs))
	case l.outputs[output].finished:
		return violation("%s of output %d after its end", event, output)
	case l.scores && l.prompt < l.identity.promptTokens:
		return violation("%s before the prompt, of which %d of %d tokens have come", event, l.prompt, l.identity.promptTokens)
	}
	return nil
}

// replace returns the verdict to send a message instead of the frame.
func replace(m *pb.GenerateResponse) (Verdict, error) {
	raw, err := proto.Marshal(m)
	if err != nil {
		return Verdict{}, violation("an event cannot be encoded again: %v", err)
	}
	return Verdict{Replacement: raw}, nil
}
