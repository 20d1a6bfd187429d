package tools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/gpuworker/guide"
)

// shape is a JSON schema for formats whose arguments are not JSON. It knows types, members, items and enums.
type shape struct {
	fields map[string]json.RawMessage
	defs   map[string]json.RawMessage // $defs and definitions, by these two words
	// outside states whether a $ref in defs names something that is not there.
	outside bool
}

// member is a property of an object.
type member struct {
	name     string
	schema   json.RawMessage
	required bool
}

// parseShape returns the shape of a schema's text; empty: any object.
func parseShape(text string) (*shape, error) {
	s := &shape{fields: map[string]json.RawMessage{}, defs: map[string]json.RawMessage{}}
	if text == "" {
		return s, nil
	}
	if err := json.Unmarshal([]byte(text), &s.fields); err != nil {
		return nil, fmt.Errorf("is not a JSON object: %w", err)
	}
	for _, word := range []string{"$defs", "definitions"} {
		if raw := s.fields[word]; raw != nil {
			s.defs[word] = raw
			s.outside = s.outside || outside(raw)
		}
	}
	return s.of(json.RawMessage(text)), nil
}

// field returns a keyword's text without white space.
func (s *shape) field(word string) string {
	var b bytes.Buffer
	if s.fields[word] == nil || json.Compact(&b, s.fields[word]) != nil {
		return ""
	}
	return b.String()
}

// of returns the shape of a schema inside s. A $ref into the definitions is followed.
func (s *shape) of(schema json.RawMessage) *shape {
	inner := &shape{defs: s.defs, outside: s.outside}
	for range 8 {
		inner.fields = map[string]json.RawMessage{}
		_ = json.Unmarshal(schema, &inner.fields) // true and false have no fields
		var ref string
		if json.Unmarshal(inner.fields["$ref"], &ref) != nil {
			return inner
		}
		word, name, _ := strings.Cut(strings.TrimPrefix(ref, "#/"), "/")
		var defs map[string]json.RawMessage
		if json.Unmarshal(s.defs[word], &defs) != nil || defs[name] == nil {
			return inner
		}
		schema = defs[name]
	}
	return inner
}

// members returns the declared properties in their order.
func (s *shape) members() (all []member) {
	var required []string
	_ = json.Unmarshal(s.fields["required"], &required) // a list of another kind is the schema's problem, found elsewhere
	d := json.NewDecoder(bytes.NewReader(s.fields["properties"]))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return all
		}
		m := member{name: key.(string)}
		if err := d.Decode(&m.schema); err != nil {
			return all
		}
		m.required = slices.Contains(required, m.name)
		all = append(all, m)
	}
	return all
}

// types returns the types that a schema names; none: any.
func (s *shape) types() (names []string) {
	raw := s.fields["type"]
	var one string
	switch {
	case raw == nil:
	case json.Unmarshal(raw, &one) == nil:
		return []string{one}
	case json.Unmarshal(raw, &names) == nil:
		return names
	}
	for _, word := range []string{"enum", "const"} {
		if s.fields[word] == nil {
			continue
		}
		for _, v := range s.values(word) {
			names = append(names, typeOf(v))
		}
	}
	return names
}

// values returns the values of enum, or that of const.
func (s *shape) values(word string) (all []json.RawMessage) {
	if word == "const" {
		return []json.RawMessage{s.fields[word]}
	}
	_ = json.Unmarshal(s.fields[word], &all)
	return all
}

// typeOf is the type of a JSON value.
func typeOf(raw json.RawMessage) string {
	switch text := bytes.TrimSpace(raw); {
	case len(text) == 0:
		return ""
	case text[0] == '"':
		return "string"
	case text[0] == '{':
		return "object"
	case text[0] == '[':
		return "array"
	case text[0] == 't' || text[0] == 'f':
		return "boolean"
	case text[0] == 'n':
		return "null"
	}
	return "number"
}

// branches returns the schemas of anyOf or oneOf.
func (s *shape) branches() (all []json.RawMessage) {
	for _, word := range []string{"anyOf", "oneOf"} {
		var list []json.RawMessage
		_ = json.Unmarshal(s.fields[word], &list)
		all = append(all, list...)
	}
	return all
}

// kindOf returns how the raw text of a value becomes JSON.
func (s *shape) kindOf(schema json.RawMessage) valueKind { return s.kindWithin(schema, 8) }

func (s *shape) kindWithin(schema json.RawMessage, depth int) valueKind {
	inner := s.of(schema)
	if s.refersOutside(schema) {
		return mixedValue
	}
	kinds := map[valueKind]bool{}
	for _, name := range inner.types() {
		if name == "string" {
			kinds[textValue] = true
		} else {
			kinds[jsonValue] = true
		}
	}
	if len(kinds) == 0 && depth > 0 {
		for _, b := range inner.branches() {
			kinds[s.kindWithin(b, depth-1)] = true
		}
	}
	if len(kinds) != 1 {
		return mixedValue
	}
	for kind := range kinds {
		return kind
	}
	return mixedValue
}

// refersOutside reports whether a $ref in a schema names something that standalone leaves out, such as the root.
func (s *shape) refersOutside(schema json.RawMessage) bool {
	if !bytes.Contains(schema, []byte(`"$ref"`)) {
		return false
	}
	return s.outside || outside(schema)
}

func outside(schema json.RawMessage) bool {
	var v any
	return json.Unmarshal(schema, &v) == nil && refersOutside(v)
}

func refersOutside(v any) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, refersOutside)
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok && !strings.HasPrefix(ref, "#/$defs/") && !strings.HasPrefix(ref, "#/definitions/") {
			return true
		}
		for _, field := range v {
			if refersOutside(field) {
				return true
			}
		}
	}
	return false
}

// textOptions returns the texts of an enum of strings, as terms. It returns nil if there is none, or if one of them
// contains the end of a value.
func (s *shape) textOptions(schema json.RawMessage, end string) (all []guide.Term) {
	inner := s.of(schema)
	for _, word := range []string{"const", "enum"} {
		if inner.fields[word] == nil {
			continue
		}
		for _, raw := range inner.values(word) {
			var text string
			if json.Unmarshal(raw, &text) != nil || strings.Contains(text, end) || strings.Contains(text, guide.Control) {
				return nil
			}
			all = append(all, lit(text))
		}
		return all
	}
	return nil
}

// assertions are the keywords by which a schema refuses values.
var assertions = []string{
	"$dynamicRef", "$ref", "additionalProperties", "allOf", "anyOf", "const", "contains", "dependencies", "dependentRequired", "dependentSchemas",
	"enum", "exclusiveMaximum", "exclusiveMinimum", "format", "if", "items", "maxItems", "maxLength", "maxProperties", "maximum", "minItems",
	"minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern", "patternProperties", "prefixItems", "properties",
	"propertyNames", "required", "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
}

// others returns the assertions of a schema but for those honoured.
func (s *shape) others(honoured ...string) (words []string) {
	for _, word := range assertions {
		if s.fields[word] != nil && !slices.Contains(honoured, word) {
			words = append(words, word)
		}
	}
	return words
}

// objectWords are the keywords of objects that formats honour which write declared members alone.
var objectWords = []string{"type", "properties", "required", "additionalProperties"}

// loose returns those of objectWords that such a format does not honour after all: a required name that is not declared
// may be missing, and members of an object that declares none may have any value.
func (s *shape) loose(members []member) (words []string) {
	var required []string
	_ = json.Unmarshal(s.fields["required"], &required) // see members
	declared := func(name string) bool {
		return slices.ContainsFunc(members, func(m member) bool { return m.name == name })
	}
	if slices.ContainsFunc(required, func(name string) bool { return !declared(name) }) {
		words = append(words, "required")
	}
	if more := s.field("additionalProperties"); len(members) == 0 && len(more) > len("false") {
		words = append(words, "additionalProperties")
	}
	return words
}

// standalone returns a schema inside s as a text of its own, with the definitions that it may refer to.
func (s *shape) standalone(schema json.RawMessage) string {
	var fields map[string]json.RawMessage
	if len(s.defs) == 0 || json.Unmarshal(schema, &fields) != nil || fields == nil {
		return string(schema)
	}
	out := maps.Clone(s.defs)
	maps.Copy(out, fields)
	text, err := json.Marshal(out)
	if err != nil {
		return string(schema)
	}
	return string(text)
}
