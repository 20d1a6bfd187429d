package flood

import (
	"strings"
	"unicode/utf8"
)

// MaxText is how many bytes of a text that a caller sent are logged, annotated, or put into a span or a metric's label. No name of a
// model is longer.
const MaxText = 255

// ellipsis ends a text that was cut.
const ellipsis = "…"

// Clip returns text as valid UTF-8 of at most MaxText bytes. It replaces bytes that are not UTF-8 with U+FFFD, cuts between
// characters, and ends a cut text with an ellipsis. It reads no more than MaxText bytes of text and keeps none of a text that it
// cuts.
func Clip(text string) string { return ClipAt(text, MaxText) }

// ClipAt is Clip with another bound, which must be at least 8 bytes.
func ClipAt(text string, most int) string {
	cut := len(text) > most
	if cut {
		text = whole(text[:most])
	}
	text = strings.ToValidUTF8(text, "\ufffd") // which may be longer: one bad byte becomes three
	if !cut && len(text) <= most {
		return text
	}
	if end := most - len(ellipsis); len(text) > end {
		text = whole(text[:end])
	}
	return text + ellipsis
}

// whole returns head without the character at its end that was cut in two, if there is one.
func whole(head string) string {
	for back := 1; back < utf8.UTFMax && back <= len(head); back++ {
		if at := len(head) - back; utf8.RuneStart(head[at]) {
			if !utf8.FullRuneInString(head[at:]) {
				return head[:at]
			}
			break
		}
	}
	return head
}
