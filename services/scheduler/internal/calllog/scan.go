package calllog

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers that the scan reads. A test compares them with the contract.
const (
	eventStarted  = 1
	eventProgress = 2
	eventPrompt   = 3
	eventTokens   = 4
	eventFinished = 5

	progressPrefilled = 1

	promptTokenIDs   = 1
	promptDetails    = 2
	promptTokenIndex = 3

	tokensOutputIndex = 1
	tokensTokenIndex  = 2
	tokensTokenIDs    = 3
	tokensText        = 4

	finishedOutputIndex = 1
)

// eventFields are the fields of a GenerateResponse that the log needs.
type eventFields struct {
	event  protowire.Number // 0: no event of this version
	body   []byte           // of the event
	output uint32           // output_index of tokens and finished
	index  uint32           // token_index of prompt and tokens
	count  int              // tokens in prompt and tokens; prefilled_tokens of progress
	ids    []byte           // of tokens, as packed varints
	text   int              // bytes of text of tokens
}

// scan reads a frame in one pass without decoding it. It returns false if the bytes are not exactly
// one event.
func scan(frame []byte) (s eventFields, ok bool) {
	for len(frame) > 0 {
		f, n := readField(frame)
		if n < 0 {
			return s, false
		}
		frame = frame[n:]
		if f.num < eventStarted || f.num > eventFinished {
			continue // a field of a later version, which the client may understand
		}
		if s.event != 0 || f.typ != protowire.BytesType {
			return s, false
		}
		s.event, s.body = f.num, f.body
	}
	ok = true // `started` is not scanned: Record decodes it, once a call
	switch s.event {
	case eventProgress, eventFinished:
		ok = s.numbers()
	case eventPrompt:
		ok = s.promptTokens()
	case eventTokens:
		ok = s.tokens()
	}
	return s, ok
}

// numbers reads the one number that the log needs of progress and of finished.
func (s *eventFields) numbers() bool {
	for b := s.body; len(b) > 0; {
		f, n := readField(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		switch {
		case f.typ != protowire.VarintType:
		case s.event == eventProgress && f.num == progressPrefilled:
			s.count = int(uint32(f.value))
		case s.event == eventFinished && f.num == finishedOutputIndex:
			s.output = uint32(f.value)
		}
	}
	return true
}

// promptTokens counts the tokens of a prompt event, which has ids, details or both.
func (s *eventFields) promptTokens() bool {
	ids, details := 0, 0
	for b := s.body; len(b) > 0; {
		f, n := readField(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		switch {
		case f.num == promptTokenIDs && f.typ == protowire.BytesType:
			more, ok := countVarints(f.body)
			if !ok {
				return false
			}
			ids += more
		case f.num == promptTokenIDs && f.typ == protowire.VarintType:
			ids++
		case f.num == promptDetails && f.typ == protowire.BytesType:
			details++
		case f.num == promptTokenIndex && f.typ == protowire.VarintType:
			s.index = uint32(f.value)
		}
	}
	s.count = max(ids, details)
	return true
}

// tokens reads a tokens event. It skips details.
func (s *eventFields) tokens() bool {
	for b := s.body; len(b) > 0; {
		f, n := readField(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		switch {
		case f.num == tokensTokenIDs && f.typ == protowire.BytesType:
			more, ok := countVarints(f.body)
			if !ok {
				return false
			}
			if s.count += more; s.ids == nil {
				s.ids = f.body[:len(f.body):len(f.body)] // cap = len, so that an append copies and does not write into the frame
			} else { // several packed lists, which decoders must accept and no encoder writes
				s.ids = append(s.ids, f.body...)
			}
		case f.num == tokensTokenIDs && f.typ == protowire.VarintType: // unpacked, which encoders may write
			s.count++
			s.ids = protowire.AppendVarint(s.ids, f.value)
		case f.num == tokensText && f.typ == protowire.BytesType:
			s.text = len(f.body)
		case f.typ != protowire.VarintType:
		case f.num == tokensOutputIndex:
			s.output = uint32(f.value)
		case f.num == tokensTokenIndex:
			s.index = uint32(f.value)
		}
	}
	return true
}

// countVarints counts packed varints. It returns false if one is longer than 64 bits or the last
// one is truncated.
func countVarints(b []byte) (n int, ok bool) {
	length := 0
	for _, c := range b {
		length++
		switch {
		case length > 10 || length == 10 && c > 1: // 64 bits
			return n, false
		case c < 0x80:
			n, length = n+1, 0
		}
	}
	return n, length == 0
}

// field is one field of a message. A varint has value, a length-delimited field has body.
type field struct {
	num   protowire.Number
	typ   protowire.Type
	value uint64
	body  []byte
}

// readField reads the first field of b. n is its length in bytes; it is negative if b does not
// begin with a field.
func readField(b []byte) (f field, n int) {
	var tag int
	if b[0] < 0x80 && b[0] >= 1<<3 { // fast path: every field that the scan reads has a one-byte tag
		f.num, f.typ, tag = protowire.Number(b[0]>>3), protowire.Type(b[0]&7), 1
	} else if f.num, f.typ, tag = protowire.ConsumeTag(b); tag < 0 {
		return f, tag
	}
	rest := b[tag:]
	switch f.typ {
	case protowire.VarintType:
		f.value, n = protowire.ConsumeVarint(rest)
	case protowire.BytesType:
		f.body, n = protowire.ConsumeBytes(rest)
	default:
		n = protowire.ConsumeFieldValue(f.num, f.typ, rest)
	}
	if n < 0 {
		return f, n
	}
	return f, tag + n
}
