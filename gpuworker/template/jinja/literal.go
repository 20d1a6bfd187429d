package jinja

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

var (
	floatPattern   = regexp.MustCompile(`^(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?[eE][+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)`)
	integerPattern = regexp.MustCompile(`^(?:0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[\da-fA-F])+|` +
		`[1-9](?:_?\d)*|0(?:_?0)*)`)
)

// maxDigits is how long a number in the source may be.
const maxDigits = 1000

func (l *lexer) number() {
	rest := l.src[l.pos:]
	kind, text := tokenFloat, floatPattern.FindString(rest)
	if text == "" || l.pos > 0 && l.src[l.pos-1] == '.' {
		kind, text = tokenInteger, integerPattern.FindString(rest)
	}
	if len(text) > maxDigits {
		failAt(l.line, "a number has more than %d digits", maxDigits)
	}
	l.emit(kind, strings.ReplaceAll(text, "_", ""))
	l.pos += len(text)
}

// numberOf is the value of a number token.
func numberOf(t token) Value {
	if t.kind == tokenFloat {
		f, _ := strconv.ParseFloat(t.text, 64) // out of range is infinite, as in Python
		return f
	}
	n, ok := new(big.Int).SetString(t.text, 0)
	if !ok {
		n, _ = new(big.Int).SetString(t.text, 10) // zeros only
	}
	return whole(n)
}

// literal reads a string.
func (l *lexer) literal(quote byte) {
	body := l.src[l.pos+1:]
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '\\':
			i++
		case quote:
			l.emit(tokenString, l.unescape(body[:i]))
			l.move(l.pos + i + 2)
			return
		}
	}
	failAt(l.line, "the string has no end: %c is missing", quote)
}

var escapes = map[byte]string{
	'\n': "", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

// unescape replaces backslash escapes; like Python it keeps unknown ones.
func (l *lexer) unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			out.WriteByte(s[i])
			i++
			continue
		}
		c := s[i+1] // the string's end is not escaped
		digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		text, plain := escapes[c]
		switch {
		case plain:
			out.WriteString(text)
			i += 2
		case digits > 0:
			out.WriteRune(l.codePoint(s[i:min(len(s), i+2+digits)], digits))
			i += 2 + digits
		case c >= '0' && c <= '7':
			n := 1
			for n < 3 && i+1+n < len(s) && s[i+1+n] >= '0' && s[i+1+n] <= '7' {
				n++
			}
			code, _ := strconv.ParseUint(s[i+1:i+1+n], 8, 16)
			out.WriteRune(rune(code))
			i += 1 + n
		case c == 'N':
			failAt(l.line, `the escape \N{...} is not supported`)
		case c >= utf8.RuneSelf:
			// Jinja2 writes the character as an escape of its own, whose backslash this one
			// escapes.
			r, width := utf8.DecodeRuneInString(s[i+1:])
			out.WriteString(escapeRune(r))
			i += 1 + width
		default:
			out.WriteByte('\\')
			i++
		}
	}
	return out.String()
}

func (l *lexer) codePoint(escape string, digits int) rune {
	code, err := strconv.ParseUint(escape[2:], 16, 32)
	if err != nil || len(escape) != 2+digits || code > utf8.MaxRune {
		failAt(l.line, "the escape %q is not one of a character", escape)
	}
	if !utf8.ValidRune(rune(code)) {
		failAt(l.line, "the escape %s is half a character, which is not supported", escape)
	}
	return rune(code)
}

// escapeRune writes a character as Python's escape for it.
func escapeRune(r rune) string {
	switch {
	case r < 0x100:
		return fmt.Sprintf(`\x%02x`, r)
	case r < 0x10000:
		return fmt.Sprintf(`\u%04x`, r)
	}
	return fmt.Sprintf(`\U%08x`, r)
}
