package calllog

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// maxOutputs is the largest num_sequences of a request. Workers refuse a larger one.
const maxOutputs = 16

// Log is the record of one Generate call.
type Log struct {
	request []byte // as the client sent it, plus accepted_at
	resumed bool   // whether request has `resume` entries of the client
	scores  bool   // whether `prompt` events are due
	least   int32  // min_tokens of the request

	identity identity // from the request at first, then from `started`
	started  int      // the attempt whose `started` the client has; 0: it has none
	cached   uint32   // cached prompt tokens in that `started`
	outputs  []output // by output_index

	progress uint32 // prefilled tokens in the last `progress` that the client has
	prompt   uint32 // prompt tokens that `prompt` events have delivered
	tokens   int64  // tokens delivered by this log, over all outputs
	restored int64  // tokens of the client's own resume, of outputs that had not ended
	finished int    // outputs that have ended
	lost     int    // attempts in a row that were lost before they made progress

	attempt attempt
	elapsed Elapsed
}

// identity is what every worker of one stream must agree on. An empty string matches any value.
type identity struct {
	model, class, promptDigest string
	seed                       uint64
	seeded                     bool // whether seed is set
	promptTokens               uint32
	limit                      uint32 // most tokens of an output
	limited                    bool   // whether limit is set; workers of earlier versions do not send it
}

// output is the part of one output that the client has.
type output struct {
	ids         []uint32
	text        uint64 // bytes of text delivered for ids
	textUnknown bool   // whether the client's own resume left out text_bytes
	finished    bool
}

// attempt is the state of the current worker's stream.
type attempt struct {
	number     int  // from 1
	resumes    bool // whether its request has `resume`
	inexact    bool // whether it may run on another class
	started    bool
	afterToken bool // whether the client had a token when the attempt began
	progressed bool // whether it delivered a token or an end
}

// Elapsed is the time that a call has taken before its current attempt.
type Elapsed struct {
	BeforeToken time.Duration // from the call's arrival to its first token, or to now if it has none
	SinceToken  time.Duration // from its first token to now
}

// New returns the log of a request, given as bytes and decoded. It keeps a copy of the bytes and
// nothing of the decoded message. If a conversation has no accepted_at, New adds now: a chat
// template may print the date, and the prompt must be the same on every worker.
func New(raw []byte, request *pb.GenerateRequest, now time.Time) *Log {
	accepted := []byte(nil)
	if request.GetChat() != nil && request.AcceptedAt == nil {
		accepted, _ = proto.Marshal(&pb.GenerateRequest{AcceptedAt: timestamppb.New(now)}) // numbers always marshal
	}
	l := &Log{
		request: append(append(make([]byte, 0, len(raw)+len(accepted)), raw...), accepted...),
		resumed: len(request.GetResume()) > 0, least: request.GetStopping().GetMinTokens(),
		identity: identity{
			model: request.GetExpectModelDigest(), class: request.GetExpectClassId(), promptDigest: request.GetExpectPromptDigest(),
		},
		outputs: make([]output, min(max(request.GetSampling().GetNumSequences(), 1), maxOutputs)),
	}
	if s := request.GetSampling(); s != nil && s.Seed != nil {
		l.identity.seed, l.identity.seeded = s.GetSeed(), true
	}
	r := request.GetResponse()
	l.scores = !l.resumed && (r.GetEchoPrompt() || r != nil && r.PromptLogprobs != nil)
	for _, r := range request.GetResume() {
		if int(r.GetOutputIndex()) >= len(l.outputs) {
			continue // the worker refuses such a request, and one that lists an output twice
		}
		o := &l.outputs[r.GetOutputIndex()]
		*o = output{
			ids: append([]uint32(nil), r.GetTokenIds()...), text: r.GetTextBytes(), textUnknown: r.TextBytes == nil, finished: r.GetFinished(),
		}
		if !o.finished {
			l.restored += int64(len(o.ids))
		}
	}
	for i := range l.outputs {
		if l.outputs[i].finished {
			l.finished++
		}
	}
	return l
}

// Started reports whether the client has `started`. From then on another worker must continue the
// same stream; before that it may begin a new one.
func (l *Log) Started() bool { return l.started > 0 }

// Complete reports whether the client has every event of a stream that ends with OK.
func (l *Log) Complete() bool { return l.Started() && l.finished == len(l.outputs) }

// OpenOutputs returns how many outputs have not ended: those that another attempt would compute.
func (l *Log) OpenOutputs() int { return len(l.outputs) - l.finished }

// Tokens returns how many tokens the client was sent, without those that it resumed with.
func (l *Log) Tokens() int64 { return l.tokens }

// ResumedTokens returns how many tokens the client itself resumed with, of outputs that had not
// ended. The worker computes them as part of the prompt.
func (l *Log) ResumedTokens() int64 { return l.restored }

// PromptTokens returns the length of the prompt; 0 before `started`.
func (l *Log) PromptTokens() uint32 { return l.identity.promptTokens }

// Length returns how many tokens the prompt and one output together may have; 0 before `started`. A
// worker with a shorter context cannot continue the stream. If the worker reported no limit, Length
// counts the tokens delivered of the longest output.
func (l *Log) Length() int64 {
	if !l.Started() {
		return 0
	}
	longest := int64(l.identity.limit)
	if !l.identity.limited {
		for i := range l.outputs {
			if o := &l.outputs[i]; !o.finished {
				longest = max(longest, int64(len(o.ids)))
			}
		}
	}
	return int64(l.identity.promptTokens) + longest
}

// CachedTokens returns how many prompt tokens were a prefix hit on the first worker; 0 before
// `started`.
func (l *Log) CachedTokens() uint32 { return l.cached }

// Class returns the class of workers that continue the stream exactly; empty: any.
func (l *Log) Class() string { return l.identity.class }

// Digest returns the digest of the stream's model; empty: any.
func (l *Log) Digest() string { return l.identity.model }

// AttemptLost records the loss of the current attempt. It returns how many attempts in a row were
// lost before they delivered a token or an end.
func (l *Log) AttemptLost() int {
	if !l.attempt.progressed {
		l.lost++
	}
	return l.lost
}

// Usage returns the encoded Usage of all outputs so far; nil before `started`.
func (l *Log) Usage() []byte {
	if !l.Started() {
		return nil
	}
	u := &pb.Usage{PromptTokens: l.identity.promptTokens, CachedTokens: l.cached}
	for i := range l.outputs {
		u.CompletionTokens += uint32(len(l.outputs[i].ids))
	}
	raw, _ := proto.Marshal(u) // numbers always marshal
	return raw
}
