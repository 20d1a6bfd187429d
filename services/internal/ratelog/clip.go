package ratelog

import (
	"strings"
	"unicode/utf8"
)

// MaxText bounds, in bytes, a text from a caller that is logged, annotated, or put into a span or a
// metric's label. No model name is longer.
const MaxText = 255

// ellipsis ends a text that was cut.
const ellipsis = "…"

// Clip returns text as valid UTF-8 of at most MaxText bytes. It replaces bytes that are not UTF-8
// with U+FFFD, cuts between characters, and ends a cut text with an ellipsis. It reads at most
// MaxText bytes of text, and the result shares no memory with a text that it cuts.
func Clip(text string) string { return ClipAt(text, MaxText) }

// ClipAt is Clip with another bound, which must be at least 8 bytes.
func ClipAt(text string, most int) string {
	cut := len(text) > most
	if cut {
		text = wholeCharacters(text[:most])
	}
	text = strings.ToValidUTF8(text, "\ufffd") // may lengthen it: one bad byte becomes three
	if !cut && len(text) <= most {
		return text
	}
	if end := most - len(ellipsis); len(text) > end {
		text = wholeCharacters(text[:end])
	}
	return text + ellipsis
}

// wholeCharacters returns head without an incomplete character at its end.
func wholeCharacters(head string) string {
	for back := 1; back < utf8.UTFMax && back <= len(head); back++ {
		if start := len(head) - back; utf8.RuneStart(head[start]) {
			if !utf8.FullRuneInString(head[start:]) {
				return head[:start]
			}
			break
		}
	}
	return head
}
