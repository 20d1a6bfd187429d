package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
)

// Methods that make no text of the string get it as plain; those that do keep the origins.
var stringMethods = map[string]method[str]{
	"capitalize": does("capitalize", "", caseMethod(capitalized)),
	"casefold":   does("casefold", "", caseMethod(cases.Fold().String)),
	"center":     does("center", "width fillchar? /", padMethod('^')),
	"count": does("count", "sub start? end? /", func(r *run, s str, a []Value) Value {
		part, _ := r.part(s, a)
		return strings.Count(part, r.string(a[0], "count: what to count"))
	}),
	"endswith": does("endswith", "suffix start? end? /", affixMethod(strings.HasSuffix)),
	"find":     does("find", "sub start? end? /", searchMethod(strings.Index, false)),
	"format":   {call: func(r *run, s str, a *callArguments) Value { return r.format(s, a) }},
	"index":    does("index", "sub start? end? /", searchMethod(strings.Index, true)),
	"isalnum":  does("isalnum", "", allOf(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) })),
	"isalpha":  does("isalpha", "", allOf(unicode.IsLetter)),
	"isascii": does("isascii", "", func(_ *run, s str, _ []Value) Value {
		return strings.IndexFunc(s.text, func(c rune) bool { return c >= utf8.RuneSelf }) < 0
	}),
	"isdecimal": does("isdecimal", "", allOf(unicode.IsDigit)),
	"isdigit": does("isdigit", "", func(r *run, s str, _ []Value) Value {
		if strings.ContainsFunc(s.text, func(c rune) bool { return unicode.Is(unicode.No, c) }) {
			r.fail("isdigit of %q is not supported", s.text)
		}
		return allOf(unicode.IsDigit)(r, s, nil)
	}),
	"islower": does("islower", "", func(_ *run, s str, _ []Value) Value { return isCased(s.text, lowered) }),
	"isspace": does("isspace", "", allOf(isSpace)),
	"isupper": does("isupper", "", func(_ *run, s str, _ []Value) Value { return isCased(s.text, uppered) }),
	"join":    does("join", "iterable /", joinMethod),
	"ljust":   does("ljust", "width fillchar? /", padMethod('<')),
	"lower":   does("lower", "", caseMethod(lowered)),
	"lstrip":  does("lstrip", "chars? /", stripMethod(true, false)),
	"partition": does("partition", "sep /", func(r *run, s str, a []Value) Value {
		sep := r.separator(a[0])
		pos := strings.Index(s.text, sep.text)
		if pos < 0 {
			return newTuple(s, own(""), own(""))
		}
		return partitioned(s, sep, pos)
	}),
	"removeprefix": does("removeprefix", "prefix /", affixCut(true)),
	"removesuffix": does("removesuffix", "suffix /", affixCut(false)),
	"replace": does("replace", "old new count? /", func(r *run, s str, a []Value) Value {
		return r.replace(s, r.string(a[0], "replace: the old text"), r.str(a[1], "replace: the new text"), r.whole(a[2], -1))
	}),
	"rfind":  does("rfind", "sub start? end? /", searchMethod(strings.LastIndex, false)),
	"rindex": does("rindex", "sub start? end? /", searchMethod(strings.LastIndex, true)),
	"rjust":  does("rjust", "width fillchar? /", padMethod('>')),
	"rpartition": does("rpartition", "sep /", func(r *run, s str, a []Value) Value {
		sep := r.separator(a[0])
		pos := strings.LastIndex(s.text, sep.text)
		if pos < 0 {
			return newTuple(own(""), own(""), s)
		}
		return partitioned(s, sep, pos)
	}),
	"rsplit": does("rsplit", "sep? maxsplit?", splitMethod(splitTextRight)),
	"rstrip": does("rstrip", "chars? /", stripMethod(false, true)),
	"split":  does("split", "sep? maxsplit?", splitMethod(splitText)),
	"splitlines": does("splitlines", "keepends?", func(r *run, s str, a []Value) Value {
		return r.texts(s, lines(s.text, flag(a[0])))
	}),
	"startswith": does("startswith", "prefix start? end? /", affixMethod(strings.HasPrefix)),
	"strip":      does("strip", "chars? /", stripMethod(true, true)),
	"swapcase":   does("swapcase", "", caseMethod(swapped)),
	"title":      does("title", "", caseMethod(titleCase)),
	"upper":      does("upper", "", caseMethod(uppered)),
	"zfill":      does("zfill", "width /", zeroFill),
}

var unsupportedString = []string{
	"encode", "expandtabs", "format_map", "isidentifier", "isnumeric", "isprintable", "istitle", "maketrans", "translate",
}

// safeMethods keep text that is marked as safe marked.
var safeMethods = map[string]bool{
	"strip": true, "lstrip": true, "rstrip": true, "upper": true, "lower": true, "title": true, "capitalize": true,
}

func caseMethod(change func(string) string) func(*run, str, []Value) Value {
	return func(r *run, s str, _ []Value) Value { return r.mapCase(s, change) }
}

func allOf(is func(rune) bool) func(*run, str, []Value) Value {
	return func(_ *run, s str, _ []Value) Value {
		return s.text != "" && strings.IndexFunc(s.text, func(c rune) bool { return !is(c) }) < 0
	}
}

func stripMethod(left, right bool) func(*run, str, []Value) Value {
	return func(r *run, s str, a []Value) Value { return r.strip(s, or(a[0], nil), left, right) }
}

// strip removes characters of a set, or white space, from the ends.
func (r *run) strip(s str, set Value, left, right bool) str {
	in := isSpace
	if set != nil {
		chars := r.string(set, "strip: the characters")
		in = func(c rune) bool { return strings.ContainsRune(chars, c) }
	}
	from, to := 0, len(s.text)
	if left {
		from = to - len(strings.TrimLeftFunc(s.text, in))
	}
	if right {
		to = from + len(strings.TrimRightFunc(s.text[from:], in))
	}
	return s.slice(from, to)
}

// part is s[start:end], for arguments that are what to look for, start and end, and how many
// characters it leaves out before.
func (r *run) part(s str, a []Value) (string, int) {
	start, end := or(a[1], nil), or(a[2], nil)
	if start == nil && end == nil {
		return s.text, 0
	}
	if sought, ok := plainOf(a[0]); ok && sought == "" {
		r.fail("looking for the empty string in a part of a string is not supported")
	}
	n, _ := length(s)
	skipped := 0
	if start != nil {
		if skipped = r.bound(start); skipped < 0 {
			skipped = max(skipped+n, 0)
		}
	}
	return r.cut(s, start, end, nil).(str).text, skipped
}

func affixMethod(has func(s, affix string) bool) func(*run, str, []Value) Value {
	return func(r *run, s str, a []Value) Value {
		affixes := []Value{a[0]}
		if t, ok := a[0].(*tuple); ok {
			affixes = t.items
		}
		for _, affix := range affixes {
			part, _ := r.part(s, []Value{affix, a[1], a[2]})
			if has(part, r.string(affix, "startswith and endswith: what to look for")) {
				return true
			}
		}
		return false
	}
}

// searchMethod returns the position of a part, in characters.
func searchMethod(search func(s, part string) int, must bool) func(*run, str, []Value) Value {
	return func(r *run, s str, a []Value) Value {
		within, skipped := r.part(s, a)
		pos := search(within, r.string(a[0], "what to look for"))
		if pos < 0 {
			if must {
				r.fail("substring not found")
			}
			return -1
		}
		return skipped + utf8.RuneCountInString(within[:pos])
	}
}

// affixCut removes a text from the start or the end.
func affixCut(first bool) func(*run, str, []Value) Value {
	return func(r *run, s str, a []Value) Value {
		affix := r.string(a[0], "what to remove")
		if first {
			return s.slice(len(s.text)-len(strings.TrimPrefix(s.text, affix)), len(s.text))
		}
		return s.slice(0, len(strings.TrimSuffix(s.text, affix)))
	}
}

func joinMethod(r *run, s str, a []Value) Value {
	out := r.buffer()
	next := r.iterate(a[0])
	for n := 0; ; n++ {
		item, ok := next()
		if !ok {
			return out.str()
		}
		r.step(1)
		if n > 0 {
			out.write(s)
		}
		text, ok := textOf(item)
		if !ok {
			r.fail("sequence item %d: expected str instance, %s found", n, typeName(item))
		}
		out.write(text)
	}
}

// replace puts a text in the place of up to count others, of all if count is negative.
func (r *run) replace(s str, old string, by str, count int) str {
	n := strings.Count(s.text, old)
	if count >= 0 {
		n = min(n, count)
	}
	if grows := len(by.text) - len(old); grows > 0 && n > 0 {
		if n > r.limits.Text/grows {
			r.room(-1)
		}
		r.room(len(s.text) + n*grows)
	}
	if n == 0 {
		return s
	}
	out := r.buffer()
	from := 0
	for i := range n {
		pos := from
		if old != "" {
			pos += strings.Index(s.text[from:], old)
		} else if i > 0 {
			pos = skip(s.text, from, 1)
		}
		out.write(s.slice(from, pos))
		out.write(by)
		from = pos + len(old)
	}
	out.write(s.slice(from, len(s.text)))
	return out.str()
}

func (r *run) separator(v Value) str {
	sep := r.str(v, "a separator")
	if sep.text == "" {
		r.fail("empty separator")
	}
	return sep
}

// partitioned is a text cut at a separator that begins at a byte of it. The separator is the
// template's only if both the text and the argument are.
func partitioned(s, sep str, pos int) Value {
	end := pos + len(sep.text)
	middle := s.slice(pos, end)
	if !sep.pure() {
		middle.origin = nil
	}
	return newTuple(s.slice(0, pos), middle, s.slice(end, len(s.text)))
}

func splitMethod(split func(s, sep string, n int) []part) func(*run, str, []Value) Value {
	return func(r *run, s str, a []Value) Value {
		sep := ""
		if given(a[0]) && a[0] != nil {
			sep = r.separator(a[0]).text
		}
		r.step(min(strings.Count(s.text, sep), len(s.text))) // at least the cuts
		return r.texts(s, split(s.text, sep, r.whole(a[1], -1)))
	}
}

// texts are parts of a text.
func (r *run) texts(s str, parts []part) Value {
	r.step(len(parts))
	list := &List{make([]Value, len(parts))}
	for i, p := range parts {
		list.items[i] = s.slice(p.from, p.to)
	}
	return list
}

// splitText is Python's split: at most n splits from the left, any number if n < 0. An empty sep
// means white space.
func splitText(s, sep string, n int) []part {
	var out []part
	from := 0
	for {
		if sep == "" {
			if from = len(s) - len(strings.TrimLeftFunc(s[from:], isSpace)); from == len(s) {
				return out
			}
		}
		end := -1
		if n < 0 || len(out) < n {
			if end = strings.Index(s[from:], sep); sep == "" {
				end = strings.IndexFunc(s[from:], isSpace)
			}
		}
		if end < 0 {
			return append(out, part{from, len(s)})
		}
		out = append(out, part{from, from + end})
		from += end + len(sep)
	}
}

// splitTextRight is Python's rsplit.
func splitTextRight(s, sep string, n int) []part {
	if n < 0 {
		return splitText(s, sep, n)
	}
	var out []part
	for {
		if sep == "" {
			if s = strings.TrimRightFunc(s, isSpace); s == "" {
				break
			}
		}
		cut, width := strings.LastIndex(s, sep), len(sep)
		if sep == "" {
			if cut = strings.LastIndexFunc(s, isSpace); cut >= 0 {
				_, width = utf8.DecodeRuneInString(s[cut:])
			}
		}
		if cut < 0 || len(out) == n {
			out = append(out, part{0, len(s)})
			break
		}
		out, s = append(out, part{cut + width, len(s)}), s[:cut]
	}
	slices.Reverse(out)
	return out
}

func padMethod(align byte) func(*run, str, []Value) Value {
	return func(r *run, s str, a []Value) Value {
		fill := r.str(or(a[1], own(" ")), "the fill character")
		if utf8.RuneCountInString(fill.text) != 1 {
			r.fail("The fill character must be exactly one character long")
		}
		return r.pad(s, r.whole(a[0], 0), fill, align)
	}
}

// pad fills a text up to a width: '<' left, '>' right, '^' centred as by the method center.
func (r *run) pad(s str, width int, fill str, align byte) str {
	n := width - utf8.RuneCountInString(s.text)
	if n <= 0 {
		return s
	}
	left := 0
	switch align {
	case '>':
		left = n
	case '^':
		left = n/2 + n&width&1
	}
	return r.join(r.repeatText(fill, left), s, r.repeatText(fill, n-left))
}

func zeroFill(r *run, s str, a []Value) Value {
	sign := 0
	if s.text != "" && (s.text[0] == '-' || s.text[0] == '+') {
		sign = 1
	}
	return r.join(s.slice(0, sign), r.pad(s.slice(sign, len(s.text)), r.whole(a[0], 0)-sign, own("0"), '>'))
}

func swapped(s string) string {
	var out strings.Builder
	for _, c := range s {
		if unicode.IsUpper(c) {
			out.WriteString(lowered(string(c)))
		} else {
			out.WriteString(uppered(string(c)))
		}
	}
	return out.String()
}
