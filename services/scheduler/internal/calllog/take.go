package calllog

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// ErrViolation says that a worker sent what no stream of this request has at this place. What it sent is not forwarded, and what
// it sends further means nothing.
var ErrViolation = errors.New("the worker's stream breaks the contract")

// violation is an ErrViolation in words.
func violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrViolation}, args...)...)
}

// Verdict is what becomes of a frame. The zero value: it is sent as it came.
type Verdict struct {
	// Drop: nothing is sent, the client has it.
	Drop bool
	// Instead is sent in the frame's place, unless nil.
	Instead []byte
	// Tokens is how many the frame brings to the client.
	Tokens int64
}

// drop is the verdict on what the client has.
var drop = Verdict{Drop: true}

// Take judges the next frame of the attempt under way and counts it as delivered. An error is an ErrViolation. The frame is not
// kept.
func (l *Log) Take(frame []byte) (Verdict, error) {
	s, ok := scan(frame)
	if !ok {
		return Verdict{}, violation("a message of %d bytes is not one event", len(frame))
	}
	switch s.event {
	case eventTokens:
		return l.takeTokens(&s)
	case eventStarted:
		return l.takeStarted(&s)
	case eventProgress:
		return l.takeProgress(&s), nil
	case eventPrompt:
		return l.takePrompt(&s, frame)
	case eventFinished:
		return l.takeFinished(&s, frame)
	}
	return Verdict{}, nil // of a later version
}

// takeStarted takes what a worker says of the stream. The first is the client's; another must say the same, and is dropped. One
// of another class, where that is allowed, is told, since equality ends there.
func (l *Log) takeStarted(s *scanned) (Verdict, error) {
	told := &pb.Started{}
	if err := proto.Unmarshal(s.body, told); err != nil {
		return Verdict{}, violation("`started` cannot be decoded: %v", err)
	}
	if l.attempt.started {
		return Verdict{}, violation("`started` came twice")
	}
	inexact, err := l.agree(told)
	if err != nil {
		return Verdict{}, err
	}
	l.attempt.started = true
	if told.MaxTokens != nil {
		l.known.limit, l.known.limited = told.GetMaxTokens(), true
	}
	l.known = known{
		limit: l.known.limit, limited: l.known.limited,
		model: told.GetModelDigest(), class: told.GetClassId(), promptDigest: told.GetPromptDigest(),
		seed: told.GetSeed(), seeded: true, promptTokens: told.GetPromptTokens(),
	}
	switch {
	case !l.Started():
		l.started, l.cached = l.attempt.number, told.GetCachedTokens()
		return Verdict{}, nil
	case !inexact:
		return drop, nil
	}
	told.Exact = proto.Bool(false)
	return rewritten(&pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: told}})
}

// agree compares a `started` with what is known of the stream; inexact is whether the class alone differs, and may.
func (l *Log) agree(told *pb.Started) (inexact bool, err error) {
	k := &l.known
	differs := func(known, told string) bool { return known != "" && known != told }
	switch {
	case differs(k.model, told.GetModelDigest()):
		return false, violation("model digest %.64q, and the stream is from %q", told.GetModelDigest(), k.model)
	case differs(k.promptDigest, told.GetPromptDigest()), l.Started() && k.promptTokens != told.GetPromptTokens():
		return false, violation("a prompt of %d tokens with digest %.64q, and the stream's has %d with %q",
			told.GetPromptTokens(), told.GetPromptDigest(), k.promptTokens, k.promptDigest)
	case k.seeded && k.seed != told.GetSeed():
		return false, violation("seed %d, and the stream's is %d", told.GetSeed(), k.seed)
	case k.limited && told.MaxTokens != nil && k.limit != told.GetMaxTokens():
		return false, violation("at most %d tokens a continuation, and the stream may have %d", told.GetMaxTokens(), k.limit)
	case !l.confirms(told.GetResumedTokens()):
		return false, violation("it resumed behind %d tokens, and not behind those delivered", told.GetResumedTokens())
	case !differs(k.class, told.GetClassId()):
		return false, nil
	case !l.Started() || !l.attempt.inexact:
		return false, violation("class %.64q, and the stream is from %q", told.GetClassId(), k.class)
	}
	return true, nil
}

// confirms reports whether a worker has taken the tokens that it was given, by output.
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

// takeProgress lets it grow alone, and end with the first token.
func (l *Log) takeProgress(s *scanned) Verdict {
	told := uint32(s.count)
	if l.attempt.number > 1 && (told <= l.progress || l.tokens > 0) {
		return drop
	}
	l.progress = told
	return Verdict{}
}

// takePrompt drops what the client has of the prompt; a frame in which that ends is cut there.
func (l *Log) takePrompt(s *scanned, frame []byte) (Verdict, error) {
	from, end := uint64(s.index), uint64(s.index)+uint64(s.count)
	switch {
	case !l.attempt.started || l.attempt.resumes:
		return Verdict{}, violation("`prompt` where none is due")
	case end > uint64(l.known.promptTokens) || from > uint64(l.prompt):
		return Verdict{}, violation("prompt tokens [%d, %d) behind %d of %d", from, end, l.prompt, l.known.promptTokens)
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
	p, had := m.GetPrompt(), int(uint64(l.prompt)-from)
	p.TokenIds, p.Details = p.TokenIds[min(had, len(p.TokenIds)):], p.Details[min(had, len(p.Details)):]
	p.TokenIndex, l.prompt = l.prompt, uint32(end)
	return rewritten(m)
}

// takeTokens keeps the ids.
func (l *Log) takeTokens(s *scanned) (Verdict, error) {
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
		l.lost, l.attempt.brought = 0, true
	}
	return Verdict{Tokens: int64(s.count)}, nil
}

// takeFinished ends an output. It is made to tell of the whole call where another worker began it.
func (l *Log) takeFinished(s *scanned, frame []byte) (Verdict, error) {
	if err := l.due(s.output, "`finished`"); err != nil {
		return Verdict{}, err
	}
	var v Verdict
	if l.attempt.number > l.started {
		var err error
		if v, err = l.carry(frame); err != nil {
			return Verdict{}, err
		}
	}
	l.outputs[s.output].finished = true
	l.finished++
	l.lost, l.attempt.brought = 0, true
	return v, nil
}

// due refuses what comes for an output that cannot have it now.
func (l *Log) due(output uint32, what string) error {
	switch {
	case !l.attempt.started:
		return violation("%s before `started`", what)
	case int(output) >= len(l.outputs):
		return violation("%s of output %d, and %d were asked for", what, output, len(l.outputs))
	case l.outputs[output].finished:
		return violation("%s of output %d behind its end", what, output)
	case l.scores && l.prompt < l.known.promptTokens:
		return violation("%s before the prompt, of which %d of %d tokens have come", what, l.prompt, l.known.promptTokens)
	}
	return nil
}

// rewritten is the verdict that a message is sent instead.
func rewritten(m *pb.GenerateResponse) (Verdict, error) {
	raw, err := proto.Marshal(m)
	if err != nil {
		return Verdict{}, violation("an event cannot be encoded again: %v", err)
	}
	return Verdict{Instead: raw}, nil
}
