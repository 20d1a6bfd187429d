package monitor

import (
	"strings"
	"unicode/utf8"
)

// maxText bounds a label's value, in bytes: names that come from outside may be of any length. Names of models are no longer.
const maxText = 255

// Rest is the label value that stands for all names beyond a bound.
const Rest = "(other)"

// Text is a label value for any bytes: what is not UTF-8 is replaced, and what is longer than 255 bytes is cut.
func Text(s string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if len(s) <= maxText {
		return s
	}
	end := maxText - len("…")
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}
