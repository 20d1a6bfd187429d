package guide

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// schemaBuilder builds the terms of a JSON schema (draft 2020-12).
//
// A value must obey several schemas at once: those of allOf, of $ref and its neighbours, of a property
// that two of them describe. Such a list of schemas is a goal, and each goal is one rule, so that
// recursion through $ref ends.
//
// Numbers, strings and keys are written without needless escapes, properties in the order in which
// they are declared, then those that are required and not declared, then others, or, with anyOrder, in
// any order. White space is
// bounded: after { [ and , and before } and ] it may be one space, or a line break and up to 32 spaces
// or tabs; after : it may be one space.
type schemaBuilder struct {
	*builder
	root     *jsonValue
	lenient  bool
	anyOrder bool
	dropped  map[string]bool
	rules    map[string]int // by the key of a goal
	numbers  map[*jsonValue]int
	// negations and implications are schemas that the builder made.
	negations    map[*jsonValue]*jsonValue
	implications map[*jsonValue][]*jsonValue
	keys         map[*jsonValue]map[string]bool // by the first value of a list, see keysOf
	space        *node                          // after { [ , and before } ]
	colon        *node
	comma        *node
	free         *node // characters of a string without constraints, any number
	char         *node // one of them
	branch       int   // branches of anyOf and oneOf so far
}

const (
	maxGoals    = 1 << 13 // rules of a schema
	maxBranches = 1 << 13 // of anyOf and oneOf, in every combination
	maxIndent   = 32
)

// part is a schema of a goal. done has the applicators that the goal has dealt with.
type part struct {
	at   *jsonValue
	done applicators
}

type applicators uint8

const (
	doneAnyOf applicators = 1 << iota
	doneOneOf
	doneRefs // $ref and allOf
)

// schema builds rule root from the text of a schema, and returns the paths that it ignored.
func (b *builder) schema(source Source, root int) []string {
	s := &schemaBuilder{
		builder: b, lenient: source.Lenient, anyOrder: source.AnyOrder, dropped: map[string]bool{}, rules: map[string]int{}, numbers: map[*jsonValue]int{},
		keys: map[*jsonValue]map[string]bool{}, negations: map[*jsonValue]*jsonValue{}, implications: map[*jsonValue][]*jsonValue{},
	}
	if s.root = b.parseJSON(source.Text); s.root == nil {
		return nil
	}
	s.space = b.arena.space()
	s.colon = b.cat(b.one(':'), b.optional(b.one(' ')))
	s.comma = b.cat(b.one(','), s.space)
	s.char, s.free = b.automaton(shared().char, 0), b.automaton(shared().free, 0)
	b.bodies[root] = s.value([]part{{at: s.root}})
	var dropped []string
	for path := range s.dropped {
		dropped = append(dropped, path)
	}
	slices.Sort(dropped)
	return dropped
}

// freeChar is a character of a string that only its length constrains, with any of JSON's escapes.
func (b *builder) freeChar() *node {
	var direct []*node
	b.sequences(&direct, 0x20, '"'-1)
	b.sequences(&direct, '"'+1, '\\'-1)
	b.sequences(&direct, '\\'+1, 0x10ffff)
	digit := b.anyOf("0123456789abcdefABCDEF")
	d, eightToB, cToF := b.anyOf("dD"), b.anyOf("89abAB"), b.anyOf("cdefCDEF")
	notSurrogate := b.alt(
		b.cat(b.anyOf("0123456789abcefABCEF"), b.rep(digit, 3, 3)),
		b.seq(d, b.bytesOf('0', '7'), b.rep(digit, 2, 2)))
	pair := b.seq(d, eightToB, b.rep(digit, 2, 2), b.lit(`\u`), d, cToF, b.rep(digit, 2, 2))
	escape := b.cat(b.one('\\'), b.alt(b.anyOf(`"\/bfnrt`), b.cat(b.one('u'), b.alt(notSurrogate, pair))))
	return b.determinise(b.alt(append(direct, escape)...))
}

// value returns the rule of a goal as a term.
func (s *schemaBuilder) value(goal []part) *node {
	rule := s.valueRule(goal)
	if s.err != nil {
		return s.none
	}
	return s.call(rule)
}

// valueRule returns the rule of a goal.
func (s *schemaBuilder) valueRule(goal []part) int {
	if s.err != nil {
		return 0
	}
	parts := s.expand(goal)
	if s.err != nil {
		return 0
	}
	key := s.key(parts)
	rule, known := s.rules[key]
	if !known {
		if rule = s.rule(); len(s.rules) >= maxGoals {
			s.fail(ErrLimit, "it describes more than %d kinds of values", maxGoals)
			return 0
		}
		s.rules[key] = rule
		s.spend(len(parts))
		path := s.path
		s.bodies[rule] = s.body(parts)
		s.path = path
	}
	return rule
}

func (s *schemaBuilder) key(parts []part) string {
	var key strings.Builder
	for _, p := range parts {
		id, ok := s.numbers[p.at]
		if !ok {
			id = len(s.numbers)
			s.numbers[p.at] = id
		}
		fmt.Fprintf(&key, "%d:%d ", id, p.done)
	}
	return key.String()
}

// expand follows $ref and allOf, and drops the schema true. It checks the keywords of each schema.
func (s *schemaBuilder) expand(goal []part) []part {
	var out []part
	var add func(p part, above []*jsonValue)
	add = func(p part, above []*jsonValue) {
		v := p.at
		s.path = v.path
		switch {
		case s.err != nil:
			return
		case v.kind == jsonBool && v.truth:
			return
		case v.kind == jsonBool:
		case v.kind != jsonObject:
			s.fail(ErrSyntax, "a schema is an object, true or false")
			return
		case slices.Contains(above, v):
			s.fail(ErrUnsupported, "$ref leads back to itself without a value between")
			return
		default:
			s.keywords(v)
		}
		s.spend(1 + len(above))
		if i := slices.IndexFunc(out, func(q part) bool { return q.at == v }); i >= 0 {
			if p.done == 0 && out[i].done&(doneAnyOf|doneOneOf) != 0 {
				s.fail(ErrUnsupported, "a branch of anyOf or oneOf leads back to it without a value between")
			}
			return
		}
		out = append(out, part{at: v, done: p.done | doneRefs})
		if p.done&doneRefs != 0 || v.kind != jsonObject {
			return
		}
		above = append(slices.Clip(above), v)
		if ref := v.fields["$ref"]; ref != nil {
			if target := s.resolve(ref); target != nil {
				add(part{at: target}, above)
			}
		}
		for _, each := range s.schemas(v, "allOf") {
			add(part{at: each}, above)
		}
		for _, each := range s.implied(v) {
			add(part{at: each}, above)
		}
	}
	for _, p := range goal {
		add(p, nil)
	}
	return out
}

// resolve returns the schema that a $ref names.
func (s *schemaBuilder) resolve(ref *jsonValue) *jsonValue {
	s.path = ref.path
	pointer, local := strings.CutPrefix(ref.text, "#")
	if ref.kind != jsonString || !local || pointer != "" && pointer[0] != '/' {
		s.fail(ErrUnsupported, "a $ref names a part of the same schema, as #/$defs/name does")
		return nil
	}
	pointer, err := url.PathUnescape(pointer)
	if err != nil {
		s.fail(ErrSyntax, "the $ref %.80q is no pointer: %v", ref.text, err)
		return nil
	}
	target := s.root.at(pointer)
	if target == nil {
		s.fail(ErrSyntax, "the $ref %.80q names nothing", ref.text)
		return nil
	}
	for i := 1; i < len(pointer); i++ {
		if pointer[i] == '/' && s.root.at(pointer[:i]).fields["$id"] != nil {
			s.fail(ErrUnsupported, "the $ref %.80q leads into a schema with an $id, which changes what a $ref names", ref.text)
			return nil
		}
	}
	return target
}

// schemas returns the schemas of a keyword that lists some.
func (s *schemaBuilder) schemas(v *jsonValue, keyword string) []*jsonValue {
	list := v.fields[keyword]
	if list == nil {
		return nil
	}
	if list.kind != jsonArray || len(list.items) == 0 {
		s.failAt(list.path, ErrSyntax, "%s is a list of schemas", keyword)
		return nil
	}
	return list.items
}

// body builds the values of an expanded goal: the union of its branches, if it has a choice, else of
// the types.
func (s *schemaBuilder) body(parts []part) *node {
	goals, choice := s.choices(parts)
	if !choice {
		return s.typed(parts)
	}
	kids := make([]*node, len(goals))
	for i, goal := range goals {
		kids[i] = s.value(goal)
	}
	return s.alt(kids...)
}

// choices returns the goals of the branches of the first anyOf or oneOf of an expanded goal. choice is
// false if it has none.
func (s *schemaBuilder) choices(parts []part) (goals [][]part, choice bool) {
	for i, p := range parts {
		for _, c := range []struct {
			keyword string
			done    applicators
		}{{"anyOf", doneAnyOf}, {"oneOf", doneOneOf}} {
			if p.done&c.done != 0 || p.at.kind != jsonObject {
				continue
			}
			branches := s.schemas(p.at, c.keyword)
			if branches == nil {
				continue
			}
			rest := slices.Clone(parts)
			rest[i].done |= c.done
			var but [][]part // by branch: the other parts that it must obey
			if c.done == doneOneOf {
				but = s.checkDistinct(p.at.fields[c.keyword], branches, rest)
			}
			for i, branch := range branches {
				if s.branch++; s.branch > maxBranches {
					s.failAt(p.at.path, ErrLimit, "its alternatives combine to more than %d", maxBranches)
					return nil, true
				}
				goal := append(slices.Clip(rest), part{at: branch})
				if but != nil {
					goal = append(goal, but[i]...)
				}
				goals = append(goals, goal)
			}
			return goals, true
		}
	}
	return nil, false
}

// types are sets of JSON types.
type types uint8

const (
	typeNull types = 1 << iota
	typeBool
	typeInteger
	typeFraction // numbers with a fraction
	typeString
	typeArray
	typeObject

	typeNumber = typeInteger | typeFraction
	typeAny    = typeNull | typeBool | typeNumber | typeString | typeArray | typeObject
)

var typeNames = map[string]types{
	"null": typeNull, "boolean": typeBool, "integer": typeInteger, "number": typeNumber, "string": typeString,
	"array": typeArray, "object": typeObject,
}

// typesOf returns the types that a schema allows.
func (s *schemaBuilder) typesOf(v *jsonValue) types {
	if v.kind == jsonBool {
		if v.truth {
			return typeAny
		}
		return 0
	}
	t := v.fields["type"]
	if t == nil {
		return typeAny
	}
	names := []*jsonValue{t}
	if t.kind == jsonArray {
		names = t.items
	}
	var all types
	for _, name := range names {
		one := typeNames[name.text]
		if name.kind != jsonString || one == 0 {
			s.failAt(name.path, ErrSyntax, "%.40q is no type", name.text)
		}
		all |= one
	}
	return all
}

// listing returns the types of a goal, and its lists of values, of each of which a value is one.
func (s *schemaBuilder) listing(parts []part) (allowed types, enums []*jsonValue) {
	allowed = typeAny
	for _, p := range parts {
		allowed &= s.typesOf(p.at)
		if p.at.kind != jsonObject {
			continue
		}
		if c := p.at.fields["const"]; c != nil {
			enums = append(enums, &jsonValue{path: c.path, kind: jsonArray, items: []*jsonValue{c}})
		}
		if e := p.at.fields["enum"]; e != nil {
			if e.kind != jsonArray {
				s.failAt(e.path, ErrSyntax, "enum is a list of values")
				return 0, nil
			}
			enums = append(enums, e)
		}
	}
	return allowed, enums
}

// typed builds the values of a goal without choices.
func (s *schemaBuilder) typed(parts []part) *node {
	allowed, enums := s.listing(parts)
	if len(enums) > 0 {
		values := s.listed(parts, allowed, enums)
		kids := make([]*node, len(values))
		for i, v := range values {
			s.path = v.path
			kids[i] = s.literal(v)
		}
		return s.either(kids)
	}
	var kids []*node
	if allowed&typeNull != 0 {
		kids = append(kids, s.lit("null"))
	}
	if allowed&typeBool != 0 {
		kids = append(kids, s.lit("true"), s.lit("false"))
	}
	if allowed&typeInteger != 0 {
		kids = append(kids, s.numeric(parts, allowed&typeFraction == 0))
	}
	if allowed&typeString != 0 {
		kids = append(kids, s.str(parts))
	}
	if allowed&typeArray != 0 {
		kids = append(kids, s.array(parts))
	}
	if allowed&typeObject != 0 {
		kids = append(kids, s.object(parts))
	}
	return s.alt(kids...)
}
