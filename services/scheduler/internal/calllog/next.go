package calllog

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of GenerateRequest, Sampling, Stopping and Resume. A test compares them with the
// contract.
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

// NextRequest begins the next attempt and returns its request. The message is original followed by
// resume; both belong to the log. inexact allows a worker of another class, which `started` then
// reports.
//
// Before `started`, the request is the client's own. After `started`, it asks for the rest of
// the same stream: it states the seed and the other values that the first worker drew, and lists
// the delivered tokens as `resume` entries.
//
// There is one exception. A worker sends no prompt to a request with `resume`, so a stream that
// broke between its `prompt` events is requested from the start with its seed, and Record drops the
// part that the client has.
func (l *Log) NextRequest(inexact bool, elapsed Elapsed) (original, resume []byte) {
	l.attempt = attempt{number: l.attempt.number + 1, resumes: l.resumed, inexact: inexact, afterToken: l.tokens > 0}
	l.elapsed = elapsed
	if !l.Started() {
		return l.request, nil
	}
	resume = l.appendIdentity(nil)
	if l.scores && l.prompt < l.identity.promptTokens {
		return l.request, resume
	}
	if l.resumed { // the log's entries contain the client's
		l.request, l.resumed = without(l.request, requestResume), false
	}
	l.attempt.resumes = true
	for i := range l.outputs {
		resume = l.outputs[i].append(resume, i)
	}
	return l.request, resume
}

// AppendContext appends context_length to the bytes of a request that has none.
func AppendContext(b []byte, context int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, requestContext, protowire.VarintType), uint64(context))
}

// appendIdentity appends the values that the first worker drew, and those that the next one must
// have. Appending is enough, because protobuf merges a message with an earlier one of the same
// field, and takes the last of several numbers or strings.
func (l *Log) appendIdentity(b []byte) []byte {
	seed := protowire.AppendVarint(protowire.AppendTag(nil, samplingSeed, protowire.VarintType), l.identity.seed)
	b = protowire.AppendBytes(protowire.AppendTag(b, requestSampling, protowire.BytesType), seed)
	if l.identity.limited {
		b = protowire.AppendBytes(protowire.AppendTag(b, requestStopping, protowire.BytesType), l.appendLimit(nil))
	}
	for _, expect := range []struct {
		num   protowire.Number
		value string
	}{{requestDigest, l.identity.model}, {requestPromptDigest, l.identity.promptDigest}, {requestClass, l.identity.class}} {
		if expect.value != "" && (expect.num != requestClass || !l.attempt.inexact) {
			b = protowire.AppendString(protowire.AppendTag(b, expect.num, protowire.BytesType), expect.value)
		}
	}
	return b
}

// appendLimit appends the length limit that resulted from the first worker's context. It also
// lowers min_tokens to that limit, because a worker refuses min_tokens above max_tokens.
func (l *Log) appendLimit(b []byte) []byte {
	b = protowire.AppendVarint(protowire.AppendTag(b, stoppingMaxTokens, protowire.VarintType), uint64(l.identity.limit))
	if int64(l.least) > int64(l.identity.limit) {
		b = protowire.AppendVarint(protowire.AppendTag(b, stoppingMinTokens, protowire.VarintType), uint64(l.identity.limit))
	}
	return b
}

// append appends the delivered part of an output as a `resume` entry.
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
	case !o.textUnknown:
		entry = protowire.AppendVarint(protowire.AppendTag(entry, resumeTextBytes, protowire.VarintType), o.text)
	}
	return protowire.AppendBytes(protowire.AppendTag(b, requestResume, protowire.BytesType), entry)
}

// without returns a well-formed message without a field. Appending cannot replace a repeated field,
// because its entries add up.
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
