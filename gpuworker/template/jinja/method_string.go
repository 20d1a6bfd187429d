package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
)

var stringMethods = map[string]method[string]{
	"capitalize": does("capitalize", "", ofString(capitalized)),
	"casefold":   does("casefold", "", ofString(cases.Fold().String)),
	"center":     does("center", "width fillchar? /", padMethod('^')),
	"count": does("count", "sub start? end? /", func(r *run, s string, a []Value) Value {
		part, _ := r.part(s, a)
		return strings.Count(part, r.string(a[0], "count: what to count"))
	}),
	"endswith": does("endswith", "suffix start? end? /", affixMethod(strings.HasSuffix)),
	"find":     does("find", "sub start? end? /", searchMethod(strings.Index, false)),
	"format":   {call: func(r *run, s string, a *callArguments) Value { return r.format(s, a) }},
	"index":    does("index", "sub start? end? /", searchMethod(strings.Index, true)),
	"isalnum":  does("isalnum", "", allOf(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) })),
	"isalpha":  does("isalpha", "", allOf(unicode.IsLetter)),
	"isascii": does("isascii", "", func(_ *run, s string, _ []Value) Value {
		return strings.IndexFunc(s, func(c rune) bool { return c >= utf8.RuneSelf }) < 0
	}),
	"isdecimal": does("isdecimal", "", allOf(unicode.IsDigit)),
	"isdigit": does("isdigit", "", func(r *run, s string, _ []Value) Value {
		if strings.ContainsFunc(s, func(c rune) bool { return unicode.Is(unicode.No, c) }) {
			r.fail("isdigit of %q is not supported", s)
		}
		return allOf(unicode.IsDigit)(r, s, nil)
	}),
	"islower": does("islower", "", func(_ *run, s string, _ []Value) Value { return isCased(s, lowered) }),
	"isspace": does("isspace", "", allOf(isSpace)),
	"isupper": does("isupper", "", func(_ *run, s string, _ []Value) Value { return isCased(s, uppered) }),
	"join":    does("join", "iterable /", joinMethod),
	"ljust":   does("ljust", "width fillchar? /", padMethod('<')),
	"lower":   does("lower", "", ofString(lowered)),
	"lstrip":  does("lstrip", "chars? /", stripMethod(true, false)),
	"partition": does("partition", "sep /", func(r *run, s string, a []Value) Value {
		before, after, found := strings.Cut(s, r.separator(a[0]))
		if !found {
			return newTuple(s, "", "")
		}
		return newTuple(before, r.text(a[0]), after)
	}),
	"removeprefix": does("removeprefix", "prefix /", cutMethod(strings.TrimPrefix)),
	"removesuffix": does("removesuffix", "suffix /", cutMethod(strings.TrimSuffix)),
	"replace": does("replace", "old new count? /", func(r *run, s string, a []Value) Value {
		return r.replace(s, r.string(a[0], "replace: the old text"), r.string(a[1], "replace: the new text"), r.whole(a[2], -1))
	}),
	"rfind":  does("rfind", "sub start? end? /", searchMethod(strings.LastIndex, false)),
	"rindex": does("rindex", "sub start? end? /", searchMethod(strings.LastIndex, true)),
	"rjust":  does("rjust", "width fillchar? /", padMethod('>')),
	"rpartition": does("rpartition", "sep /", func(r *run, s string, a []Value) Value {
		sep := r.separator(a[0])
		at := strings.LastIndex(s, sep)
		if at < 0 {
			return newTuple("", "", s)
		}
		return newTuple(s[:at], sep, s[at+len(sep):])
	}),
	"rsplit": does("rsplit", "sep? maxsplit?", splitMethod(splitTextRight)),
	"rstrip": does("rstrip", "chars? /", stripMethod(false, true)),
	"split":  does("split", "sep? maxsplit?", splitMethod(splitText)),
	"splitlines": does("splitlines", "keepends?", func(r *run, s string, a []Value) Value {
		return r.texts(lines(s, flag(a[0])))
	}),
	"startswith": does("startswith", "prefix start? end? /", affixMethod(strings.HasPrefix)),
	"strip":      does("strip", "chars? /", stripMethod(true, true)),
	"swapcase":   does("swapcase", "", ofString(swapped)),
	"title":      does("title", "", ofString(titleCase)),
	"upper":      does("upper", "", ofString(uppered)),
	"zfill":      does("zfill", "width /", zeroFill),
}

var unsupportedString = []string{
	"encode", "expandtabs", "format_map", "isidentifier", "isnumeric", "isprintable", "istitle", "maketrans", "translate",
}

// safeMethods keep text marked as safe what it is.
var safeMethods = map[string]bool{
	"strip": true, "lstrip": true, "rstrip": true, "upper": true, "lower": true, "title": true, "capitalize": true,
}

func ofString(f func(string) string) func(*run, string, []Value) Value {
	return func(r *run, s string, _ []Value) Value {
		out := f(s)
		r.room(len(out))
		return out
	}
}

func allOf(is func(rune) bool) func(*run, string, []Value) Value {
	return func(_ *run, s string, _ []Value) Value {
		return s != "" && strings.IndexFunc(s, func(c rune) bool { return !is(c) }) < 0
	}
}

func stripMethod(left, right bool) func(*run, string, []Value) Value {
	return func(r *run, s string, a []Value) Value { return r.strip(s, or(a[0], nil), left, right) }
}

// strip takes characters of a set, or white space, from the ends.
func (r *run) strip(s string, set Value, left, right bool) string {
	in := isSpace
	if set != nil {
		chars := r.string(set, "strip: the characters")
		in = func(c rune) bool { return strings.ContainsRune(chars, c) }
	}
	if left {
		s = strings.TrimLeftFunc(s, in)
	}
	if right {
		s = strings.TrimRightFunc(s, in)
	}
	return s
}

// part is s[start:end], for arguments that are what to look for, start and end, and how many characters it leaves out
// before.
func (r *run) part(s string, a []Value) (string, int) {
	start, end := or(a[1], nil), or(a[2], nil)
	if start == nil && end == nil {
		return s, 0
	}
	if sought, ok := textOf(a[0]); ok && sought == "" {
		r.fail("looking for the empty string in a part of a string is not supported")
	}
	n, _ := length(s)
	skipped := 0
	if start != nil {
		if skipped = r.bound(start); skipped < 0 {
			skipped = max(skipped+n, 0)
		}
	}
	return r.cut(s, start, end, nil).(string), skipped
}

func affixMethod(has func(s, affix string) bool) func(*run, string, []Value) Value {
	return func(r *run, s string, a []Value) Value {
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

// searchMethod gives the place of a part, in characters.
func searchMethod(search func(s, part string) int, must bool) func(*run, string, []Value) Value {
	return func(r *run, s string, a []Value) Value {
		within, skipped := r.part(s, a)
		at := search(within, r.string(a[0], "what to look for"))
		if at < 0 {
			if must {
				r.fail("substring not found")
			}
			return -1
		}
		return skipped + utf8.RuneCountInString(within[:at])
	}
}

func cutMethod(cut func(s, affix string) string) func(*run, string, []Value) Value {
	return func(r *run, s string, a []Value) Value { return cut(s, r.string(a[0], "what to remove")) }
}

func joinMethod(r *run, s string, a []Value) Value {
	out := r.buffer()
	next := r.iterate(a[0])
	for n := 0; ; n++ {
		item, ok := next()
		if !ok {
			return out.String()
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
func (r *run) replace(s, old, by string, count int) string {
	n := strings.Count(s, old)
	if count >= 0 {
		n = min(n, count)
	}
	if grows := len(by) - len(old); grows > 0 && n > 0 {
		if n > r.limits.Text/grows {
			r.room(-1)
		}
		r.room(len(s) + n*grows)
	}
	return strings.Replace(s, old, by, n)
}

func (r *run) separator(v Value) string {
	sep := r.string(v, "a separator")
	if sep == "" {
		r.fail("empty separator")
	}
	return sep
}

func splitMethod(split func(s, sep string, n int) []string) func(*run, string, []Value) Value {
	return func(r *run, s string, a []Value) Value {
		sep := ""
		if given(a[0]) && a[0] != nil {
			sep = r.separator(a[0])
		}
		r.step(min(strings.Count(s, sep), len(s))) // at least the cuts
		return r.texts(split(s, sep, r.whole(a[1], -1)))
	}
}

func (r *run) texts(texts []string) Value {
	r.step(len(texts))
	list := &List{make([]Value, len(texts))}
	for i, t := range texts {
		list.items[i] = t
	}
	return list
}

// splitText is Python's split: at most n cuts from the left, any number if n < 0; an empty sep stands for white space.
func splitText(s, sep string, n int) []string {
	if sep != "" {
		if n >= 0 {
			n++
		}
		return strings.SplitN(s, sep, n)
	}
	var out []string
	for s = strings.TrimLeftFunc(s, isSpace); s != ""; s = strings.TrimLeftFunc(s, isSpace) {
		end := strings.IndexFunc(s, isSpace)
		if end < 0 || n >= 0 && len(out) == n {
			return append(out, s)
		}
		out, s = append(out, s[:end]), s[end:]
	}
	return out
}

// splitTextRight is Python's rsplit.
func splitTextRight(s, sep string, n int) []string {
	if n < 0 {
		return splitText(s, sep, n)
	}
	var out []string
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
			out = append(out, s)
			break
		}
		out, s = append(out, s[cut+width:]), s[:cut]
	}
	slices.Reverse(out)
	return out
}

func padMethod(align byte) func(*run, string, []Value) Value {
	return func(r *run, s string, a []Value) Value {
		fill := r.string(or(a[1], " "), "the fill character")
		if utf8.RuneCountInString(fill) != 1 {
			r.fail("The fill character must be exactly one character long")
		}
		return r.pad(s, r.whole(a[0], 0), fill, align)
	}
}

// pad fills a text up to a width: '<' puts it left, '>' right and '^' in the middle as the method center does.
func (r *run) pad(s string, width int, fill string, align byte) string {
	n := width - utf8.RuneCountInString(s)
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
	return r.join([]string{r.repeatText(fill, left), s, r.repeatText(fill, n-left)})
}

func zeroFill(r *run, s string, a []Value) Value {
	sign := ""
	if s != "" && (s[0] == '-' || s[0] == '+') {
		sign = s[:1]
	}
	return sign + r.pad(s[len(sign):], r.whole(a[0], 0)-len(sign), "0", '>')
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
