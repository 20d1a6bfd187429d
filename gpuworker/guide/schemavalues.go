package guide

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// listed returns the values of enum and const that the rest of the goal allows too.
func (s *schemaBuilder) listed(parts []part, allowed types, enums []*jsonValue) (values []*jsonValue) {
next:
	for _, v := range enums[0].items {
		s.path = v.path
		for _, other := range enums[1:] {
			s.spend(1)
			if !s.keysOf(other.items)[v.key()] {
				continue next
			}
		}
		if s.err != nil {
			return nil
		}
		if s.spend(1); s.allows(parts, allowed, v) {
			values = append(values, v)
		}
	}
	return values
}

// keysOf returns the keys of a list of values, which it remembers.
func (s *schemaBuilder) keysOf(values []*jsonValue) map[string]bool {
	if len(values) == 0 {
		return nil
	}
	keys := s.keys[values[0]]
	if keys == nil {
		keys = make(map[string]bool, len(values))
		for _, v := range values {
			keys[v.key()] = true
		}
		s.keys[values[0]] = keys
		s.spend(len(values))
	}
	return keys
}

// allows reports whether the schemas of a goal, besides enum and const, allow a value. Of arrays and
// objects it decides by the type alone, and refuses schemas that say more.
func (s *schemaBuilder) allows(parts []part, allowed types, v *jsonValue) bool {
	switch v.kind {
	case jsonNull:
		return allowed&typeNull != 0
	case jsonBool:
		return allowed&typeBool != 0
	case jsonNumber:
		d, ok := parseDecimal(v.text)
		if !ok {
			s.fail(ErrUnsupported, "the number %.40s has too many digits", v.text)
		}
		if d.fraction != "" && allowed&typeFraction == 0 || allowed&typeInteger == 0 {
			return false
		}
		n := s.numericRange(parts)
		return n.contains(d)
	case jsonString:
		return allowed&typeString != 0 && s.matches(s.stringBody(parts), s.text(quoted, v.text))
	default: // an array or an object
	}
	of, keywords := typeArray, arrayKeywords
	if v.kind == jsonObject {
		of, keywords = typeObject, objectKeywords
	}
	if allowed&of == 0 {
		return false
	}
	for _, p := range parts {
		for _, k := range keywords {
			if p.at.kind == jsonObject && p.at.fields[k] != nil {
				s.refuse(p.at.fields[k], "%s beside an enum or const with such values", k)
			}
		}
	}
	return true
}

// matches reports whether a term without rules contains a literal.
func (s *schemaBuilder) matches(n, literal *node) bool {
	return s.determinise(s.and(n, literal)).kind != kindNone
}

// contains reports whether the range has a number.
func (n *numbers) contains(d decimal) bool {
	side := func(e bound, want int) bool {
		c := d.compare(e.at)
		return !e.set || c == want || c == 0 && !e.exclusive
	}
	if n.integer && d.fraction != "" {
		return false
	}
	if n.multiple > 1 {
		rest := 0
		for _, c := range d.integer {
			rest = (rest*10 + int(c-'0')) % n.multiple
		}
		if rest != 0 {
			return false
		}
	}
	return side(n.low, 1) && side(n.high, -1)
}

// literal is a value as it is, with the white space that any value may have.
func (s *schemaBuilder) literal(v *jsonValue) *node {
	switch v.kind {
	case jsonNull:
		return s.lit("null")
	case jsonBool:
		return s.lit(strconv.FormatBool(v.truth))
	case jsonNumber:
		if _, ok := parseDecimal(v.text); !ok {
			return s.failAt(v.path, ErrUnsupported, "the number %.40s has too many digits", v.text)
		}
		return s.lit(v.text)
	case jsonString:
		if n := s.text(quoted, v.text); n.kind != kindLit {
			return s.quote(n)
		}
		return s.lit(`"` + quotedText(v.text) + `"`)
	case jsonArray:
		kids := make([]*node, len(v.items))
		for i, item := range v.items {
			kids[i] = s.literal(item)
		}
		return s.enclosed('[', ']', s.joined(kids))
	default:
		kids := make([]*node, len(v.keys))
		for i, k := range v.keys {
			kids[i] = s.seq(s.quote(s.text(quoted, k)), s.colon, s.literal(v.fields[k]))
		}
		return s.enclosed('{', '}', s.joined(kids))
	}
}

func (s *schemaBuilder) quote(n *node) *node { return s.seq(s.one('"'), n, s.one('"')) }

// joined is terms with commas between.
func (s *schemaBuilder) joined(kids []*node) *node {
	n := s.empty
	for i, k := range slices.Backward(kids) {
		if n = s.cat(k, n); i > 0 {
			n = s.cat(s.comma, n)
		}
	}
	return n
}

// enclosed is the inside of an array or object between brackets, none of which is empty unless inside
// is or may be.
func (s *schemaBuilder) enclosed(open, end byte, inside *node) *node {
	if inside.kind == kindEmpty {
		return s.lit(string([]byte{open, end}))
	}
	return s.seq(s.one(open), s.space, inside, s.space, s.one(end))
}

// numeric builds the numbers of a goal.
func (s *schemaBuilder) numeric(parts []part, integer bool) *node {
	n := s.numericRange(parts)
	n.integer = n.integer || integer
	return s.number(n)
}

// numericRange reads minimum, maximum, exclusiveMinimum, exclusiveMaximum and multipleOf.
func (s *schemaBuilder) numericRange(parts []part) numbers {
	var n numbers
	for _, p := range parts {
		if p.at.kind != jsonObject {
			continue
		}
		for _, k := range []struct {
			keyword   string
			end       *bound
			exclusive bool
			side      int
		}{
			{"minimum", &n.low, false, 1}, {"exclusiveMinimum", &n.low, true, 1},
			{"maximum", &n.high, false, -1}, {"exclusiveMaximum", &n.high, true, -1},
		} {
			v := p.at.fields[k.keyword]
			if v == nil {
				continue
			}
			d, ok := parseDecimal(v.text)
			if v.kind != jsonNumber || !ok {
				s.failAt(v.path, ErrUnsupported, "%s is a number of at most 64 digits", k.keyword)
				continue
			}
			c := d.compare(k.end.at)
			if !k.end.set || c == k.side || c == 0 && k.exclusive {
				*k.end = bound{set: true, at: d, exclusive: k.exclusive}
			}
		}
		n.multiple = s.multiple(p.at.fields["multipleOf"], n.multiple)
	}
	n.integer = n.multiple > 0
	return n
}

// maxMultiple bounds multipleOf, because the automaton has so many states for each of its others.
const maxMultiple = 1000

func (s *schemaBuilder) multiple(v *jsonValue, before int) int {
	if v == nil {
		return before
	}
	d, ok := parseDecimal(v.text)
	if v.kind != jsonNumber || !ok || d.negative || d == (decimal{}) {
		s.failAt(v.path, ErrSyntax, "multipleOf is a number above 0")
		return before
	}
	n, err := strconv.Atoi(d.integer)
	if d.fraction != "" || err != nil || n > maxMultiple {
		s.refuse(v, "multipleOf is honoured from 1 to %d, as an integer", maxMultiple)
		return before
	}
	before = max(before, 1)
	gcd, rest := before, n
	for rest != 0 {
		gcd, rest = rest, gcd%rest
	}
	if n = before / gcd * n; n > maxMultiple {
		s.refuse(v, "the common multiple is above %d", maxMultiple)
		return before
	}
	return n
}

// str builds the strings of a goal.
func (s *schemaBuilder) str(parts []part) *node { return s.quote(s.stringBody(parts)) }

// stringBody is the text between the quotes.
func (s *schemaBuilder) stringBody(parts []part) *node {
	low, high := 0, unbounded
	var all []*node
	for _, p := range parts {
		if p.at.kind != jsonObject {
			continue
		}
		low, high = s.limits(p.at, "minLength", "maxLength", low, high)
		if v := p.at.fields["pattern"]; v != nil {
			if v.kind != jsonString {
				return s.failAt(v.path, ErrSyntax, "pattern is a string")
			}
			s.path = v.path
			if n := s.leniently(v, func() *node { return s.pattern(quoted, v.text, false) }); n != nil {
				all = append(all, n)
			}
		}
		if v := p.at.fields[notPattern]; v != nil {
			s.path = v.path
			all = append(all, s.but(s.pattern(quoted, v.text, false)))
		}
		if v := p.at.fields[notEnum]; v != nil {
			kids := make([]*node, len(v.items))
			for i, item := range v.items {
				kids[i] = s.text(quoted, item.text)
			}
			all = append(all, s.but(s.alt(kids...)))
		}
		if v := p.at.fields["format"]; v != nil {
			if expression, ok := formats[v.text]; ok && v.kind == jsonString {
				all = append(all, s.pattern(quoted, expression, true))
			} else {
				s.refuse(v, "the format %.40q is not among those that are honoured", v.text)
			}
		}
	}
	switch {
	case high != unbounded && low > high:
		return s.none
	case len(all) == 0 && low == 0 && high == unbounded:
		return s.free
	case len(all) == 0:
		return s.count(s.char, low, high)
	}
	for _, n := range all { // bounds that follow are not intersected, which multiplies states
		if low == 1 && !n.nullable {
			low = 0
		}
		if most := longest(n); high != unbounded && most != unbounded && most <= high {
			high = unbounded
		}
	}
	if low > 0 || high != unbounded {
		all = append(all, s.count(s.anyChar(quoted), low, high))
	}
	if len(all) == 1 {
		return all[0]
	}
	return s.determinise(s.and(all...))
}

// but is every text without needless escapes that is not in n.
func (s *schemaBuilder) but(n *node) *node {
	return s.determinise(s.and(s.automaton(keyText(), 0), s.not(n)))
}

// limits reads two counts and returns the narrower range.
func (s *schemaBuilder) limits(v *jsonValue, least, most string, low, high int) (newLow, newHigh int) {
	if n, ok := s.natural(v, least); ok {
		low = max(low, n)
	}
	if n, ok := s.natural(v, most); ok && (high == unbounded || n < high) {
		high = n
	}
	return low, high
}

// natural reads a count.
func (s *schemaBuilder) natural(v *jsonValue, keyword string) (n int, ok bool) {
	field := v.fields[keyword]
	if field == nil {
		return 0, false
	}
	d, ok := parseDecimal(field.text)
	n, err := strconv.Atoi("0" + d.integer)
	if field.kind != jsonNumber || !ok || d.negative || d.fraction != "" {
		s.failAt(field.path, ErrSyntax, "%s is a count", keyword)
		return 0, false
	}
	if err != nil || n > maxCount {
		s.refuse(field, "%s is honoured up to %d", keyword, maxCount)
		return 0, false
	}
	return n, true
}

// refuse reports a keyword that is not honoured: as an error, or, if the caller is lenient, among
// those that were ignored.
func (s *schemaBuilder) refuse(v *jsonValue, format string, args ...any) {
	if s.lenient {
		s.dropped[v.path] = true
		return
	}
	s.failAt(v.path, ErrUnsupported, format, args...)
}

// leniently builds a term for a keyword. If the caller is lenient, a term that cannot be built is nil
// and the keyword is ignored.
func (s *schemaBuilder) leniently(v *jsonValue, build func() *node) *node {
	before := s.err
	n := build()
	if s.lenient && before == nil && s.err != nil && errors.Is(s.err, ErrUnsupported) {
		s.err = nil
		s.dropped[v.path] = true
		return nil
	}
	return n
}

const (
	datePart = `(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])))`
	timePart = `(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]))`
	octet    = `(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])`
	label    = `[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,30}` // without "--", which has a meaning in labels of IDNA
	host     = label + `(?:\.` + label + `){0,3}`
	pchar    = `(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})`
	behind   = `(?:\?(?:` + pchar + `|[/?])*)?(?:#(?:` + pchar + `|[/?])*)?`
	uri      = `[a-zA-Z][a-zA-Z0-9+.-]*:(?://(?:` + host + `(?::[1-9][0-9]{0,3})?)?(?:/` + pchar + `*)*|` + pchar + `+(?:/` + pchar + `*)*)` + behind
	hex4     = `[0-9a-fA-F]{1,4}`
	pointer  = `(?:/(?:[^~/]|~[01])*)*`
)

// formats are the expressions of formats. A text that matches is of the format; some of the format do
// not match: 29 February, leap seconds, comments in addresses of e-mail.
var formats = map[string]string{
	"date":          datePart,
	"time":          timePart,
	"date-time":     datePart + "T" + timePart,
	"duration":      `P(?:[0-9]{1,9}W|(?:[0-9]{1,9}D)(?:T[0-9]{1,9}H)?|T[0-9]{1,9}[HMS]|[0-9]{1,9}Y(?:[0-9]{1,9}M)?)`,
	"uuid":          `[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}`,
	"ipv4":          strings.Repeat(octet+`\.`, 3) + octet,
	"hostname":      host,
	"email":         `[a-zA-Z0-9_+-]{1,32}(?:\.[a-zA-Z0-9_+-]{1,16}){0,1}@` + label + `(?:\.` + label + `){1,2}`,
	"uri":           uri,
	"uri-reference": uri + `|(?:(?:[a-zA-Z0-9._~!$&'()*+,;=@-]|%[0-9a-fA-F]{2})+(?:/` + pchar + `*)*|/(?:` + pchar + `+(?:/` + pchar + `*)*)?)?` + behind,
	"ipv6": strings.NewReplacer("h", hex4).Replace(`(?:h:){7}h|(?:h:){1,7}:|(?:h:){1,6}:h|(?:h:){1,5}(?::h){1,2}|(?:h:){1,4}(?::h){1,3}|` +
		`(?:h:){1,3}(?::h){1,4}|(?:h:){1,2}(?::h){1,5}|h:(?::h){1,6}|:(?:(?::h){1,7}|:)`),
	"json-pointer":          pointer,
	"relative-json-pointer": `(?:0|[1-9][0-9]{0,8})(?:#|` + pointer + `)`,
}
