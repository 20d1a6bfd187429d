package httpapi

import (
	"bytes"
	"net/http"
)

// EventStream is the content type of server-sent events.
const EventStream = "text/event-stream"

// Stream is a response in pieces.
type Stream struct{ x *Exchange }

// Stream begins a response of the given content type in pieces. Nothing is sent before the first
// Write, so that an error before it is a response of its own.
func (x *Exchange) Stream(contentType string) *Stream {
	head := x.out.Header()
	head.Set("Cache-Control", "no-store")
	head.Set("X-Accel-Buffering", "no") // nginx would collect the events
	x.begin(http.StatusOK, contentType)
	return &Stream{x}
}

// Write sends a piece at once. It returns an error if the client has left or does not read; the
// handler must return it. The caller may use p again.
func (s *Stream) Write(p []byte) error { return s.x.out.write(p) }

// AppendEvent appends a server-sent event with data of any lines. An event without a name is a
// message.
func AppendEvent(to []byte, name string, data []byte) []byte {
	if name != "" {
		to = append(append(append(to, "event: "...), name...), '\n')
	}
	for {
		line, rest, more := bytes.Cut(data, []byte{'\n'})
		to = append(append(append(to, "data: "...), line...), '\n')
		if !more {
			return append(to, '\n')
		}
		data = rest
	}
}

// hexDigits are the digits of escapes.
const hexDigits = "0123456789abcdef"

// AppendString appends a text as a JSON string. The text must be valid UTF-8, as texts of the
// contract are.
func AppendString(to []byte, text string) []byte {
	to = append(to, '"')
	from := 0
	for i := range len(text) {
		c := text[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		to = append(to, text[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			to = append(to, '\\', c)
		case '\n':
			to = append(to, '\\', 'n')
		case '\r':
			to = append(to, '\\', 'r')
		case '\t':
			to = append(to, '\\', 't')
		default:
			to = append(to, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(append(to, text[from:]...), '"')
}
