package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// lexer splits a template into tokens and applies white space control: a minus in a tag removes all
// adjacent white space, trim_blocks the line break after a block or comment, lstrip_blocks the
// blanks before one that starts its line, and a plus keeps them.
type lexer struct {
	src    string
	pos    int
	line   int
	tokens []token
}

func lex(source string) []token {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(source, "\n"), line: 1}
	for l.pos < len(l.src) {
		l.data()
	}
	l.emit(tokenEnd, "")
	return l.tokens
}

func (l *lexer) emit(kind tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind, l.line, text})
}

// move advances to a position and counts the lines.
func (l *lexer) move(to int) {
	l.line += strings.Count(l.src[l.pos:to], "\n")
	l.pos = to
}

func (l *lexer) has(prefix string) bool { return strings.HasPrefix(l.src[l.pos:], prefix) }

// data reads text up to the next tag, and that tag.
func (l *lexer) data() {
	open := l.nextTag()
	if open < 0 {
		l.emit(tokenData, l.src[l.pos:])
		l.move(len(l.src))
		return
	}
	kind := l.src[open+1]
	body := open + 2
	var sign byte
	if body < len(l.src) && (l.src[body] == '-' || l.src[body] == '+') {
		sign = l.src[body]
		body++
	}
	l.text(open, sign, kind != '{')
	switch kind {
	case '#':
		l.move(body)
		l.comment()
	case '{':
		l.emit(tokenOpen, "")
		l.move(body)
		l.inside(tokenClose)
	default:
		if end := rawTagEnd(l.src, body); end >= 0 {
			l.move(end)
			l.raw()
			return
		}
		l.emit(tokenTagOpen, "")
		l.move(body)
		l.inside(tokenTagClose)
	}
}

func (l *lexer) nextTag() int {
	for i := l.pos; ; i++ {
		next := strings.IndexByte(l.src[i:], '{')
		if next < 0 || i+next+1 >= len(l.src) {
			return -1
		}
		i += next
		if c := l.src[i+1]; c == '{' || c == '%' || c == '#' {
			return i
		}
	}
}

// text emits the text before a tag, without the white space that the tag removes.
func (l *lexer) text(end int, sign byte, block bool) {
	text := l.src[l.pos:end]
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, isSpace)
	case sign != '+' && block:
		begin := strings.LastIndexByte(text, '\n') + 1
		startsLine := begin > 0 || l.pos == 0 || l.src[l.pos-1] == '\n'
		if startsLine && strings.TrimFunc(text[begin:], isSpace) == "" {
			text = text[:begin]
		}
	}
	if text != "" {
		l.emit(tokenData, text)
	}
	l.move(end)
}

// closing returns the length of a tag's end here, with the white space that it removes, or 0.
func (l *lexer) closing(mark string) int {
	rest := l.src[l.pos:]
	switch {
	case strings.HasPrefix(rest, "-"+mark):
		return len(rest) - len(strings.TrimLeftFunc(rest[1+len(mark):], isSpace))
	case mark != "}}" && strings.HasPrefix(rest, "+"+mark):
		return 1 + len(mark)
	case mark != "}}" && strings.HasPrefix(rest, mark+"\n"):
		return len(mark) + 1
	case strings.HasPrefix(rest, mark):
		return len(mark)
	}
	return 0
}

func (l *lexer) comment() {
	begin := l.pos
	end := strings.Index(l.src[begin:], "#}")
	if end < 0 && begin == len(l.src) {
		return // as in Jinja2
	}
	if end < 0 {
		failAt(l.line, "the comment has no end: #} is missing")
	}
	end += begin
	if end > begin && (l.src[end-1] == '-' || l.src[end-1] == '+') {
		end--
	}
	l.move(end)
	l.move(l.pos + l.closing("#}"))
}

// rawTagEnd returns the start of a raw block's text if the tag here opens one, or -1.
func rawTagEnd(src string, pos int) int {
	rest, ok := strings.CutPrefix(strings.TrimLeftFunc(src[pos:], isSpace), "raw")
	if !ok {
		return -1
	}
	rest = strings.TrimLeftFunc(rest, isSpace)
	if strings.HasPrefix(rest, "%}") {
		return len(src) - len(rest) + 2
	}
	if strings.HasPrefix(rest, "-%}") {
		return len(src) - len(strings.TrimLeftFunc(rest[3:], isSpace))
	}
	return -1
}

// raw emits everything up to the endraw tag as it stands.
func (l *lexer) raw() {
	for from := l.pos; from < len(l.src); {
		open := strings.Index(l.src[from:], "{%")
		if open < 0 {
			failAt(l.line, "the raw block has no end: {%% endraw %%} is missing")
		}
		open += from
		from = open + 2
		body, sign := l.src[from:], byte(0)
		if body != "" && (body[0] == '-' || body[0] == '+') {
			body, sign = body[1:], body[0]
		}
		body, ok := strings.CutPrefix(strings.TrimLeftFunc(body, isSpace), "endraw")
		if !ok {
			continue
		}
		end := lexer{src: l.src, pos: len(l.src) - len(strings.TrimLeftFunc(body, isSpace))}
		width := end.closing("%}")
		if width == 0 {
			continue
		}
		l.text(open, sign, true)
		l.move(end.pos + width)
		return
	}
}

// inside reads the tokens of a tag up to its end, which does not count within brackets.
func (l *lexer) inside(end tokenKind) {
	mark := map[tokenKind]string{tokenClose: "}}", tokenTagClose: "%}"}[end]
	begin := l.line
	var brackets []byte
	for l.pos < len(l.src) {
		if len(brackets) == 0 {
			if width := l.closing(mark); width > 0 {
				l.emit(end, "")
				l.move(l.pos + width)
				return
			}
		}
		r, width := utf8.DecodeRuneInString(l.src[l.pos:])
		switch {
		case isSpace(r):
			l.move(l.pos + width)
		case r >= '0' && r <= '9':
			l.number()
		case r == '_' || unicode.IsLetter(r):
			l.name()
		case r == '\'' || r == '"':
			l.literal(byte(r))
		default:
			brackets = l.operator(brackets)
		}
	}
	failAt(begin, "the tag has no end: %s is missing", mark)
}

func (l *lexer) name() {
	rest := l.src[l.pos:]
	end := strings.IndexFunc(rest, func(r rune) bool { return r != '_' && !unicode.In(r, unicode.L, unicode.N, unicode.M) })
	if end < 0 {
		end = len(rest)
	}
	l.emit(tokenName, rest[:end])
	l.pos += end
}

var operators = []string{
	"//", "**", "==", "!=", ">=", "<=",
	"+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";",
}

var partners = map[byte]byte{'(': ')', '[': ']', '{': '}'}

// operator reads one and keeps the brackets that are open.
func (l *lexer) operator(brackets []byte) []byte {
	for _, op := range operators {
		if !l.has(op) {
			continue
		}
		switch c := op[0]; c {
		case '(', '[', '{':
			brackets = append(brackets, partners[c])
		case ')', ']', '}':
			last := len(brackets) - 1
			if last < 0 {
				failAt(l.line, "'%c' closes nothing", c)
			}
			if brackets[last] != c {
				failAt(l.line, "'%c' stands where '%c' is expected", c, brackets[last])
			}
			brackets = brackets[:last]
		}
		l.emit(tokenOperator, op)
		l.pos += len(op)
		return brackets
	}
	r, _ := utf8.DecodeRuneInString(l.src[l.pos:])
	failAt(l.line, "unexpected character %q", r)
	return nil
}

// isSpace reports whether Python counts a character as white space.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
