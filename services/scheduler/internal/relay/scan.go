package relay

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of GenerateResponse and Tokens; a test ties them to the contract.
const (
	responseTokens   = 4
	responseFinished = 5
	tokensTokenIDs   = 3
)

// scan reads of one GenerateResponse how many tokens it brings and whether it ends a continuation, without decoding
// it. Bytes that are no message bring nothing.
func scan(frame []byte) (tokens int64, finished bool) {
	for len(frame) > 0 {
		num, body, size := field(frame)
		if size < 0 {
			return tokens, finished
		}
		frame = frame[size:]
		switch num {
		case responseFinished:
			finished = true
		case responseTokens:
			tokens += countTokens(body)
		}
	}
	return tokens, finished
}

// countTokens counts the ids in a Tokens message, packed or not.
func countTokens(m []byte) (n int64) {
	for len(m) > 0 {
		num, body, size := field(m)
		if size < 0 {
			return n
		}
		m = m[size:]
		switch {
		case num != tokensTokenIDs:
		case body == nil: // one id, not packed
			n++
		default:
			for _, b := range body {
				if b < 0x80 { // the last byte of a varint
					n++
				}
			}
		}
	}
	return n
}

// field reads one field: its number, its bytes if it is length-delimited, and its size with the tag, negative if the
// bytes are no field.
func field(b []byte) (num protowire.Number, body []byte, size int) {
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 {
		return 0, nil, n
	}
	if typ == protowire.BytesType {
		body, m := protowire.ConsumeBytes(b[n:])
		if m < 0 {
			return 0, nil, m
		}
		return num, body, n + m
	}
	m := protowire.ConsumeFieldValue(num, typ, b[n:])
	if m < 0 {
		return 0, nil, m
	}
	return num, nil, n + m
}
