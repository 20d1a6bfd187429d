package calllog

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// maxOutputs is the most continuations that a request may ask for; a worker refuses one that asks for more.
const maxOutputs = 16

// Log is what is known of one Generate call.
type Log struct {
	request []byte // as the client sent it, and accepted_at
	resumed bool   // whether the client's request has `resume` itself
	scores  bool   // whether `prompt` events are due
	least   int32  // min_tokens of the request

	known   known    // of the stream: from the request, then from its first `started`
	started int      // the attempt whose `started` the client has; 0: it has none
	cached  uint32   // prompt tokens that were cached, as the client was told
	outputs []output // by output_index

	progress uint32 // as the client was told last
	prompt   uint32 // prompt tokens of which the client has the `prompt` event
	tokens   int64  // delivered by this log, over all outputs
	brought  int64  // of the client's own resume, of outputs that had not ended
	finished int    // outputs that have ended
	lost     int    // attempts in a row that were lost and had brought no token

	attempt attempt
	spent   Spent
}

// known are the facts that every worker of one stream must agree on. An empty string, or no seed, is any.
type known struct {
	model, class, promptDigest string
	seed                       uint64
	seeded                     bool
	promptTokens               uint32
	limit                      uint32 // most tokens of a continuation
	limited                    bool   // whether a worker has reported limit; those of earlier versions do not
}

// output is what the client has of one continuation.
type output struct {
	ids      []uint32
	text     uint64 // bytes of text delivered for ids
	untold   bool   // text is not known: the client's own resume did not tell it
	finished bool
}

// attempt is the state of the worker's stream under way.
type attempt struct {
	number  int  // from 1
	resumes bool // whether its request has `resume`
	inexact bool // whether it may be on another class
	started bool
	behind  bool // whether the client had a token when it began
	brought bool // whether it brought one, or an end
}

// Spent is where the time of earlier attempts went.
type Spent struct {
	Before time.Duration // from the call's arrival to its first token, or to now where there is none
	Behind time.Duration // from its first token to now
}

// New makes the log of a request: its bytes and the same decoded, of which nothing is kept. A conversation that does not say
// when it was accepted is given now: its template must come out alike on every worker.
func New(raw []byte, in *pb.GenerateRequest, now time.Time) *Log {
	accepted := []byte(nil)
	if in.GetChat() != nil && in.AcceptedAt == nil {
		accepted, _ = proto.Marshal(&pb.GenerateRequest{AcceptedAt: timestamppb.New(now)}) // numbers always marshal
	}
	l := &Log{
		request: append(append(make([]byte, 0, len(raw)+len(accepted)), raw...), accepted...),
		resumed: len(in.GetResume()) > 0, least: in.GetStopping().GetMinTokens(),
		known: known{
			model: in.GetExpectModelDigest(), class: in.GetExpectClassId(), promptDigest: in.GetExpectPromptDigest(),
		},
		outputs: make([]output, min(max(in.GetSampling().GetNumSequences(), 1), maxOutputs)),
	}
	if s := in.GetSampling(); s != nil && s.Seed != nil {
		l.known.seed, l.known.seeded = s.GetSeed(), true
	}
	r := in.GetResponse()
	l.scores = !l.resumed && (r.GetEchoPrompt() || r != nil && r.PromptLogprobs != nil)
	for _, r := range in.GetResume() {
		if int(r.GetOutputIndex()) >= len(l.outputs) {
			continue // the worker refuses it, and one that names an output twice
		}
		o := &l.outputs[r.GetOutputIndex()]
		*o = output{
			ids: append([]uint32(nil), r.GetTokenIds()...), text: r.GetTextBytes(), untold: r.TextBytes == nil, finished: r.GetFinished(),
		}
		if !o.finished {
			l.brought += int64(len(o.ids))
		}
	}
	for i := range l.outputs {
		if l.outputs[i].finished {
			l.finished++
		}
	}
	return l
}

// Started reports whether the client has `started`: from then on, another worker must give the rest of the same stream.
func (l *Log) Started() bool { return l.started > 0 }

// Complete reports whether the client has all that an OK stream has.
func (l *Log) Complete() bool { return l.Started() && l.finished == len(l.outputs) }

// Open is how many outputs have not ended: those that another attempt computes.
func (l *Log) Open() int { return len(l.outputs) - l.finished }

// Tokens is how many tokens the client was sent, without those that it resumed with.
func (l *Log) Tokens() int64 { return l.tokens }

// Brought is how many tokens of its answer the client sent with its request, to be computed again: those of outputs that had not ended.
func (l *Log) Brought() int64 { return l.brought }

// PromptTokens is how many tokens the prompt has; 0 before `started`.
func (l *Log) PromptTokens() uint32 { return l.known.promptTokens }

// Length returns how many tokens the prompt and a continuation together may have: a worker with a shorter context cannot go on with the
// stream. If its worker reported no limit, it returns how many were delivered of the longest continuation. 0 before `started`.
func (l *Log) Length() int64 {
	if !l.Started() {
		return 0
	}
	longest := int64(l.known.limit)
	if !l.known.limited {
		for i := range l.outputs {
			if o := &l.outputs[i]; !o.finished {
				longest = max(longest, int64(len(o.ids)))
			}
		}
	}
	return int64(l.known.promptTokens) + longest
}

// CachedTokens is how many of these the first worker had cached; 0 before `started`.
func (l *Log) CachedTokens() uint32 { return l.cached }

// Class is the class of worker on which the stream goes on exactly; empty: any.
func (l *Log) Class() string { return l.known.class }

// Digest is the digest of the model that the stream is from; empty: any.
func (l *Log) Digest() string { return l.known.model }

// Lost says that the attempt under way was lost, and returns how many in a row were that brought no token.
func (l *Log) Lost() int {
	if !l.attempt.brought {
		l.lost++
	}
	return l.lost
}

// Usage is the Usage so far over all continuations, as its message's bytes; nil before `started`.
func (l *Log) Usage() []byte {
	if !l.Started() {
		return nil
	}
	u := &pb.Usage{PromptTokens: l.known.promptTokens, CachedTokens: l.cached}
	for i := range l.outputs {
		u.CompletionTokens += uint32(len(l.outputs[i].ids))
	}
	raw, _ := proto.Marshal(u) // numbers always marshal
	return raw
}
