package guide

import (
	"strconv"
	"strings"
	"sync"
)

// Automata that every schema needs. They do not depend on the schema, are built once, and count for none.
var shared = sync.OnceValue(func() (s struct{ key, free, char *dfa }) {
	b := newBuilder()
	s.key = b.determinise(b.rep(b.anyChar(quoted), 0, unbounded)).dfa
	char := b.freeChar()
	s.char, s.free = char.dfa, b.determinise(b.rep(char, 0, unbounded)).dfa
	return s
})

// keyText is the texts of keys: without needless escapes. State 0 is the first.
func keyText() *dfa { return shared().key }

// quotedText is a text as it is written in a JSON string without needless escapes.
func quotedText(s string) string {
	if strings.IndexFunc(s, func(c rune) bool { return c <= 0x1f || c == '"' || c == '\\' }) < 0 {
		return s
	}
	var out strings.Builder
	for _, c := range s {
		switch letter, short := shortEscapes[c]; {
		case short:
			out.WriteByte('\\')
			out.WriteByte(letter)
		case c <= 0x1f:
			out.WriteString(`\u00` + strconv.FormatInt(int64(c>>4), 16) + strconv.FormatInt(int64(c&15), 16))
		default:
			out.WriteRune(c)
		}
	}
	return out.String()
}
