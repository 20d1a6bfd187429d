package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// lexer cuts a template into tokens. White space around tags is settled here: a minus in a tag takes all of it, trim_blocks
// the line break after a block or comment, lstrip_blocks the blanks before one that begins its line, and a plus keeps it.
type lexer struct {
	src    string
	at     int
	line   int
	tokens []token
}

func lex(source string) []token {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(source, "\n"), line: 1}
	for l.at < len(l.src) {
		l.data()
	}
	l.emit(tokenEnd, "")
	return l.tokens
}

func (l *lexer) emit(kind tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind, l.line, text})
}

// move goes on to a place and counts the lines passed.
func (l *lexer) move(to int) {
	l.line += strings.Count(l.src[l.at:to], "\n")
	l.at = to
}

func (l *lexer) has(prefix string) bool { return strings.HasPrefix(l.src[l.at:], prefix) }

// data reads text up to the next tag, and that tag.
func (l *lexer) data() {
	open := l.nextTag()
	if open < 0 {
		l.emit(tokenData, l.src[l.at:])
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
	for i := l.at; ; i++ {
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

// text emits what stands before a tag, without the white space that the tag takes.
func (l *lexer) text(end int, sign byte, block bool) {
	text := l.src[l.at:end]
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, isSpace)
	case sign != '+' && block:
		begin := strings.LastIndexByte(text, '\n') + 1
		startsLine := begin > 0 || l.at == 0 || l.src[l.at-1] == '\n'
		if startsLine && strings.TrimFunc(text[begin:], isSpace) == "" {
			text = text[:begin]
		}
	}
	if text != "" {
		l.emit(tokenData, text)
	}
	l.move(end)
}

// closing returns the length of a tag's end at the place, with the white space that it takes, or 0.
func (l *lexer) closing(mark string) int {
	rest := l.src[l.at:]
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
	begin := l.at
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
	l.move(l.at + l.closing("#}"))
}

// rawTagEnd returns where the text of a raw block begins if the tag whose inside is at the place begins one, or -1.
func rawTagEnd(src string, at int) int {
	rest, ok := strings.CutPrefix(strings.TrimLeftFunc(src[at:], isSpace), "raw")
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
	for from := l.at; from < len(l.src); {
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
		end := lexer{src: l.src, at: len(l.src) - len(strings.TrimLeftFunc(body, isSpace))}
		width := end.closing("%}")
		if width == 0 {
			continue
		}
		l.text(open, sign, true)
		l.move(end.at + width)
		return
	}
}

// inside reads the tokens of a tag up to its end, which does not count within brackets.
func (l *lexer) inside(end tokenKind) {
	mark := map[tokenKind]string{tokenClose: "}}", tokenTagClose: "%}"}[end]
	begin := l.line
	var brackets []byte
	for l.at < len(l.src) {
		if len(brackets) == 0 {
			if width := l.closing(mark); width > 0 {
				l.emit(end, "")
				l.move(l.at + width)
				return
			}
		}
		r, width := utf8.DecodeRuneInString(l.src[l.at:])
		switch {
		case isSpace(r):
			l.move(l.at + width)
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
	rest := l.src[l.at:]
	end := strings.IndexFunc(rest, func(r rune) bool { return r != '_' && !unicode.In(r, unicode.L, unicode.N, unicode.M) })
	if end < 0 {
		end = len(rest)
	}
	l.emit(tokenName, rest[:end])
	l.at += end
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
		l.at += len(op)
		return brackets
	}
	r, _ := utf8.DecodeRuneInString(l.src[l.at:])
	failAt(l.line, "unexpected character %q", r)
	return nil
}

// isSpace tells what Python calls white space.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
