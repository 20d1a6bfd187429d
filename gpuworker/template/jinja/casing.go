package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

func uppered(s string) string { return cases.Upper(language.Und).String(s) }

func lowered(s string) string {
	return cases.Lower(language.Und, cases.HandleFinalSigma(true)).String(s)
}

// titled is one character as the first of a word.
func titled(c rune) string { return cases.Title(language.Und, cases.NoLower).String(string(c)) }

// capitalized takes the first character's width from s: a byte that is not UTF-8 reads as U+FFFD, which is longer than itself.
func capitalized(s string) string {
	if s == "" {
		return s
	}
	first, width := utf8.DecodeRuneInString(s)
	return titled(first) + lowered(s[width:])
}

// cased reports whether a letter has a case. Python's title starts words between others.
func cased(c rune) bool { return unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c) }

// titleCase is Python's title of a string: every letter after none begins a word.
func titleCase(s string) string {
	var out strings.Builder
	within := false
	for _, c := range s {
		if within {
			out.WriteString(lowered(string(c)))
		} else {
			out.WriteString(titled(c))
		}
		within = cased(c)
	}
	return out.String()
}
