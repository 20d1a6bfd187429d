package tools

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/gpuworker/guide"
)

// gemmaFamily is that of Gemma 4. Keys are bare, in the order of their names, and <|"|> is around texts:
//
//	<|tool_call>call:NAME{city:<|"|>Oslo<|"|>,days:3}<tool_call|>
var gemmaFamily = &family{
	name: "gemma4", parallel: true, trigger: "<|tool_call>",
	machine: func(f Format, l Lexicon, calls bool) *machine {
		if !calls {
			return plainMachine(f, l, false)
		}
		m := taggedMachine(f, l, l.tag("<|tool_call>"),
			state{mode: skip, exits: []exit{{mark: "call:", to: ownStates + 1}}},
			state{mode: name, exits: []exit{{mark: "{", to: ownStates + 2, do: startPairs}}},
			state{mode: pairs, to: ownStates + 3},
			state{mode: skip, exits: []exit{{mark: l.tag("<tool_call|>"), to: ownStates + 4}}},
			state{mode: content, skipLead: true, trim: true, exits: []exit{{mark: l.tag("<|tool_call>"), to: ownStates}}},
		)
		m.quote = l.tag(`<|"|>`)
		return m
	},
	calls: func(l Lexicon, tools []indexed, parallel bool) (guide.Term, error) {
		all := make([]guide.Term, len(tools))
		for i, t := range tools {
			text, err := t.schema()
			if err != nil {
				return guide.Term{}, err
			}
			root, err := parseShape(text)
			if err != nil {
				return guide.Term{}, &Error{t.path, err.Error()}
			}
			g := &gemmaTerms{lexicon: l, root: root, tool: t}
			g.ignore(t.path, root.others(objectWords...))
			arguments := g.object(root, t.path, 0)
			if g.err != nil {
				return guide.Term{}, g.err
			}
			all[i] = seq(lit("call:"+t.Name), arguments)
		}
		one := seq(lit(l.tag("<|tool_call>")), union(all...), lit(l.tag("<tool_call|>")))
		return several(one, one, parallel), nil
	},
}

// gemmaTerms makes the terms of a tool's arguments.
type gemmaTerms struct {
	lexicon Lexicon
	root    *shape
	tool    indexed
	err     error
	count   int
}

const (
	// maxNested is how deep arguments nest. A value that its schema does not describe nests maxFree levels.
	maxNested = 16
	maxFree   = 3
	// maxTerms bounds the terms of one tool.
	maxTerms = 1 << 13
)

func (g *gemmaTerms) fail(path, format string, args ...any) guide.Term {
	if g.err == nil {
		g.err = &Error{path, fmt.Sprintf(format, args...)}
	}
	return guide.Term{}
}

// value is a value that a schema describes.
func (g *gemmaTerms) value(schema json.RawMessage, path string, depth int) guide.Term {
	if g.count++; g.count > maxTerms || depth > maxNested {
		return g.fail(path, "describes more than gemma4 can write: it is too large, or nests deeper than %d levels", maxNested)
	}
	if string(schema) == "false" {
		return union()
	}
	inner := g.root.of(schema)
	if values := append(inner.list("enum"), inner.list("const")...); values != nil {
		g.ignore(path, inner.others("enum", "const", "type"))
		all := make([]guide.Term, len(values))
		for i, v := range values {
			all[i] = lit(g.constant(v, path))
		}
		return union(all...)
	}
	if branches := inner.branches(); len(branches) > 0 {
		g.ignore(path, inner.others("anyOf", "oneOf"))
		all := make([]guide.Term, len(branches))
		for i, b := range branches {
			all[i] = g.value(b, path, depth+1)
		}
		return union(all...)
	}
	names := inner.types()
	if len(names) == 0 {
		if inner.fields["properties"] == nil {
			g.ignore(path, inner.others())
			return g.anything(maxFree)
		}
		names = []string{"object"}
	}
	honoured := []string{"type"}
	for _, name := range names {
		honoured = append(honoured, map[string][]string{"array": {"items"}, "object": objectWords, "integer": numberWords, "number": numberWords}[name]...)
	}
	g.ignore(path, inner.others(honoured...))
	all := make([]guide.Term, len(names))
	for i, name := range names {
		switch name {
		case "string":
			all[i] = g.text()
		case "array":
			items := g.anything(maxFree)
			if raw := inner.fields["items"]; raw != nil {
				items = g.value(raw, path+"/items", depth+1)
			}
			all[i] = list(items)
		case "object":
			all[i] = g.object(inner, path, depth+1)
		default:
			fields := map[string]any{"type": name}
			for _, word := range numberWords {
				if raw := inner.fields[word]; raw != nil && (name == "integer" || name == "number") {
					fields[word] = raw
				}
			}
			text, err := json.Marshal(fields)
			if err != nil {
				panic("tools: a part of a valid text is not JSON: " + err.Error())
			}
			all[i] = guide.Term{Op: guide.Nested, Source: &guide.Source{Kind: guide.JSONSchema, Text: string(text), Lenient: !g.tool.Strict}, Path: path}
		}
	}
	return union(all...)
}

// numberWords are the keywords of numbers, which are JSON in Gemma's notation too.
var numberWords = []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}

// ignore adds keywords that are not honoured.
func (g *gemmaTerms) ignore(path string, words []string) {
	if err := g.tool.ignoreAll(path, "cannot be honoured by gemma4", words); err != nil && g.err == nil {
		g.err = err
	}
}

// list returns the values of a keyword.
func (s *shape) list(word string) []json.RawMessage {
	if s.fields[word] == nil {
		return nil
	}
	return s.values(word)
}

// text is a string.
func (g *gemmaTerms) text() guide.Term {
	quote := lit(g.lexicon.tag(`<|"|>`))
	return seq(quote, g.lexicon.free(`<|"|>`), quote)
}

// list is an array of a value.
func list(item guide.Term) guide.Term {
	return seq(lit("["), optional(seq(item, upTo(-1, seq(lit(","), item)))), lit("]"))
}

// anything is any value of so many levels.
func (g *gemmaTerms) anything(levels int) guide.Term {
	scalar := union(g.text(), regex(`-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?|true|false|null`))
	if levels == 0 {
		return scalar
	}
	item := g.anything(levels - 1)
	pair := seq(regex(bareKey), lit(":"), item)
	return union(scalar, list(item), seq(lit("{"), optional(seq(pair, upTo(-1, seq(lit(","), pair)))), lit("}")))
}

// bareKey is a key of an object that its schema does not name.
const bareKey = `[A-Za-z0-9_.$-]{1,64}`

// constant is a value of an enum.
func (g *gemmaTerms) constant(raw json.RawMessage, path string) string {
	var text string
	switch typeOf(raw) {
	case "string":
		_ = json.Unmarshal(raw, &text) // it is one
		quote := g.lexicon.tag(`<|"|>`)
		if strings.Contains(text, quote) {
			g.fail(path, "has a text with a quote of gemma4, which it cannot write")
		}
		return quote + text + quote
	case "object", "array":
		g.fail(path, "has a list or an object in enum or const, which gemma4 cannot write")
	}
	return strings.TrimSpace(string(raw))
}

// shared is a term that a constraint may have several times without being larger: an object has each of its members
// at most twice, but written out, a nest of objects would have 4^levels times the members of the innermost.
func shared(t guide.Term) guide.Term {
	if t.Op == guide.Literal || t.Op == guide.Nested {
		return t
	}
	return guide.Term{Op: guide.Nested, Source: &guide.Source{Kind: guide.Composed, Term: &t}}
}

// object is an object with the members that a schema declares, in the order of their names.
func (g *gemmaTerms) object(s *shape, path string, depth int) guide.Term {
	members := s.members()
	g.ignore(path, s.loose(members))
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	if len(members) == 0 {
		if s.field("additionalProperties") == "false" {
			return lit("{}")
		}
		pair := seq(regex(bareKey), lit(":"), g.anything(maxFree-1))
		return seq(lit("{"), optional(seq(pair, upTo(-1, seq(lit(","), pair)))), lit("}"))
	}
	// behind are the members from one on where another came, and first those where none did.
	behind, first := lit(""), lit("")
	for _, m := range slices.Backward(members) {
		at := guide.Pointer(path+"/properties", m.name)
		if strings.ContainsAny(m.name, ":,{}[]<> \n") {
			return g.fail(at, "has a name with a bracket, a colon, a comma or a space, which gemma4 cannot write")
		}
		pair := seq(lit(m.name+":"), shared(g.value(m.schema, at, depth+1)))
		if m.required {
			first = seq(pair, behind)
			behind = shared(seq(lit(","), pair, behind))
		} else {
			first = union(seq(pair, behind), first)
			behind = shared(seq(optional(seq(lit(","), pair)), behind))
		}
	}
	return seq(lit("{"), first, lit("}"))
}
