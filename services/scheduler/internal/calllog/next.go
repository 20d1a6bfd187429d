package calllog

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of GenerateRequest, Sampling and Resume; a test ties them to the contract.
const (
	requestDigest       = 3
	requestSampling     = 7
	requestStopping     = 8
	requestResume       = 14
	requestPromptDigest = 15
	requestClass        = 17
	requestContext      = 19

	samplingSeed = 12

	stoppingMaxTokens = 1
	stoppingMinTokens = 2

	resumeOutputIndex = 1
	resumeTokenIDs    = 2
	resumeFinished    = 3
	resumeTextBytes   = 4
)

// Next begins the next attempt and is its request: two runs of bytes, which make the message one behind the other and are the
// log's. Before `started`, that is what the client asked for. Behind it, it asks for the rest of the same stream: what was
// drawn is stated, and what was delivered is given as `resume`.
//
// There is one case in which that is not enough. With `resume` nothing of the prompt is sent, so a stream that broke amid its
// `prompt` events is asked for anew, with its seed; Take then drops what comes again.
//
// inexact: it may be on another class of worker, which `started` then says.
func (l *Log) Next(inexact bool, spent Spent) (request, rest []byte) {
	l.attempt = attempt{number: l.attempt.number + 1, resumes: l.resumed, inexact: inexact, behind: l.tokens > 0}
	l.spent = spent
	if !l.Started() {
		return l.request, nil
	}
	rest = l.appendKnown(nil)
	if l.scores && l.prompt < l.known.promptTokens {
		return l.request, rest
	}
	if l.resumed { // its entries are the beginning of the log's
		l.request, l.resumed = without(l.request, requestResume), false
	}
	l.attempt.resumes = true
	for i := range l.outputs {
		rest = l.outputs[i].append(rest, i)
	}
	return l.request, rest
}

// AppendContext appends the context_length of a request that has none to its bytes.
func AppendContext(b []byte, context int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, requestContext, protowire.VarintType), uint64(context))
}

// appendKnown appends what was drawn, and what the next worker must be: a message in a message is merged with the one before,
// and of numbers and texts the last counts.
func (l *Log) appendKnown(b []byte) []byte {
	seed := protowire.AppendVarint(protowire.AppendTag(nil, samplingSeed, protowire.VarintType), l.known.seed)
	b = protowire.AppendBytes(protowire.AppendTag(b, requestSampling, protowire.BytesType), seed)
	if l.known.limited {
		b = protowire.AppendBytes(protowire.AppendTag(b, requestStopping, protowire.BytesType), l.appendLimit(nil))
	}
	for _, expect := range []struct {
		num   protowire.Number
		value string
	}{{requestDigest, l.known.model}, {requestPromptDigest, l.known.promptDigest}, {requestClass, l.known.class}} {
		if expect.value != "" && (expect.num != requestClass || !l.attempt.inexact) {
			b = protowire.AppendString(protowire.AppendTag(b, expect.num, protowire.BytesType), expect.value)
		}
	}
	return b
}

// appendLimit appends what the stream's context left of the request's lengths. More min_tokens than max_tokens would be refused.
func (l *Log) appendLimit(b []byte) []byte {
	b = protowire.AppendVarint(protowire.AppendTag(b, stoppingMaxTokens, protowire.VarintType), uint64(l.known.limit))
	if int64(l.least) > int64(l.known.limit) {
		b = protowire.AppendVarint(protowire.AppendTag(b, stoppingMinTokens, protowire.VarintType), uint64(l.known.limit))
	}
	return b
}

// append appends what was delivered of an output as an entry of `resume`.
func (o *output) append(b []byte, index int) []byte {
	ids := 0
	for _, id := range o.ids {
		ids += protowire.SizeVarint(uint64(id))
	}
	entry := make([]byte, 0, ids+32)
	if index > 0 {
		entry = protowire.AppendVarint(protowire.AppendTag(entry, resumeOutputIndex, protowire.VarintType), uint64(index))
	}
	if ids > 0 {
		entry = protowire.AppendTag(entry, resumeTokenIDs, protowire.BytesType)
		entry = protowire.AppendVarint(entry, uint64(ids))
		for _, id := range o.ids {
			entry = protowire.AppendVarint(entry, uint64(id))
		}
	}
	switch {
	case o.finished:
		entry = protowire.AppendVarint(protowire.AppendTag(entry, resumeFinished, protowire.VarintType), 1)
	case !o.untold:
		entry = protowire.AppendVarint(protowire.AppendTag(entry, resumeTextBytes, protowire.VarintType), o.text)
	}
	return protowire.AppendBytes(protowire.AppendTag(b, requestResume, protowire.BytesType), entry)
}

// without is a message without a field: entries of a repeated one would add up. The message is well-formed.
func without(message []byte, num protowire.Number) []byte {
	out := make([]byte, 0, len(message))
	for len(message) > 0 {
		got, _, n := protowire.ConsumeField(message)
		if n < 0 {
			return append(out, message...)
		}
		if got != num {
			out = append(out, message[:n]...)
		}
		message = message[n:]
	}
	return out
}
