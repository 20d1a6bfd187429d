package calllog

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of the contract that the scan reads; a test ties them to it.
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

// scanned is what one pass over a GenerateResponse reads.
type scanned struct {
	event  protowire.Number // 0: none that this version knows
	body   []byte           // of the event
	output uint32           // output_index of tokens and finished
	index  uint32           // token_index of prompt and tokens
	count  int              // tokens that prompt and tokens bring; prefilled_tokens of progress
	ids    []byte           // of tokens, as packed varints
	text   int              // bytes of text of tokens
}

// scan reads a frame without decoding it. False: its bytes are not one event.
func scan(frame []byte) (s scanned, ok bool) {
	for len(frame) > 0 {
		f, n := readField(frame)
		if n < 0 {
			return s, false
		}
		frame = frame[n:]
		if f.num < eventStarted || f.num > eventFinished {
			continue // of a later version: what it means, the client may know
		}
		if s.event != 0 || f.typ != protowire.BytesType {
			return s, false
		}
		s.event, s.body = f.num, f.body
	}
	ok = true // `started` is decoded by whoever looks at it: it comes once
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

// numbers reads the one number that the log needs of progress and finished.
func (s *scanned) numbers() bool {
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

// promptTokens counts the tokens of a prompt event: it has the ids, the details or both.
func (s *scanned) promptTokens() bool {
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

// tokens reads a tokens event. Details are passed over.
func (s *scanned) tokens() bool {
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
				s.ids = f.body[:len(f.body):len(f.body)] // whatever is appended to it copies it first
			} else { // in several lists, which no encoder makes
				s.ids = append(s.ids, f.body...)
			}
		case f.num == tokensTokenIDs && f.typ == protowire.VarintType: // not packed, which encoders may do
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

// countVarints counts packed varints; false: the last has no end, or one is too long.
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

// field is one field of a message: value if it is a varint, body if it is length-delimited.
type field struct {
	num   protowire.Number
	typ   protowire.Type
	value uint64
	body  []byte
}

// readField reads the first field of b; n is its bytes, negative if they are none.
func readField(b []byte) (f field, n int) {
	var tag int
	if b[0] < 0x80 && b[0] >= 1<<3 { // every field that the scan looks for has a tag of one byte
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
