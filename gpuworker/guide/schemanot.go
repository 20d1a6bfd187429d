package guide

import (
	"slices"
	"strconv"
)

// Keywords that the builder adds to schemas that it makes. No source has them, because they are not UTF-8.
const (
	notPattern = "\xffnot pattern" // the pattern that a string must not match
	notEnum    = "\xffnot enum"    // the strings that it must not be
)

// annotations are keywords of the standard that say nothing about a value.
var annotations = map[string]bool{
	"title": true, "description": true, "$comment": true, "default": true, "examples": true, "deprecated": true, "readOnly": true,
	"writeOnly": true, "$defs": true, "definitions": true, "$schema": true, "contentEncoding": true,
	"contentMediaType": true, "contentSchema": true,
}

// schemaOf makes a schema of one keyword and more, at the path of v.
func schemaOf(v *jsonValue, fields map[string]*jsonValue) *jsonValue {
	out := &jsonValue{path: v.path, kind: jsonObject, fields: fields}
	for k := range fields {
		out.keys = append(out.keys, k)
	}
	slices.Sort(out.keys)
	return out
}

func listOf(v *jsonValue, items ...*jsonValue) *jsonValue {
	return &jsonValue{path: v.path, kind: jsonArray, items: items}
}

func textOf(v *jsonValue, text string) *jsonValue {
	return &jsonValue{path: v.path, kind: jsonString, text: text}
}

func truthOf(v *jsonValue, truth bool) *jsonValue {
	return &jsonValue{path: v.path, kind: jsonBool, truth: truth}
}

func numberOf(v *jsonValue, n int) *jsonValue {
	return &jsonValue{path: v.path, kind: jsonNumber, text: strconv.Itoa(n)}
}

// lacking is a schema of what has not a property: other types, and objects without it.
func lacking(v *jsonValue, name string) *jsonValue {
	properties := schemaOf(v, map[string]*jsonValue{name: truthOf(v, false)})
	return schemaOf(v, map[string]*jsonValue{"properties": properties})
}

// negation returns a schema of the values that another schema does not accept, or nil if no schema that
// can be built says it. A schema is the conjunction of its keywords, so its negation is the union of
// theirs. It remembers the result, so that a goal has one number.
func (s *schemaBuilder) negation(v *jsonValue) *jsonValue {
	if out, known := s.negations[v]; known {
		return out
	}
	s.negations[v] = nil // while it is made: a recursive schema has none
	out := s.negate(v)
	s.negations[v] = out
	return out
}

func (s *schemaBuilder) negate(v *jsonValue) *jsonValue {
	if s.spend(1); v.kind == jsonBool {
		return truthOf(v, !v.truth)
	}
	if v.kind != jsonObject {
		return nil
	}
	var union []*jsonValue
	for _, k := range v.keys {
		if annotations[k] || !s.says(k) {
			continue
		}
		parts := s.negateKeyword(k, v.fields[k])
		if slices.Contains(arrayKeywords, k) && parts == nil {
			parts = s.negateItems(k, v)
		}
		if parts == nil {
			return nil
		}
		union = append(union, parts...)
	}
	switch len(union) {
	case 0:
		return truthOf(v, false)
	case 1:
		return union[0]
	}
	return schemaOf(v, map[string]*jsonValue{"anyOf": listOf(v, union...)})
}

// says reports whether a keyword says something about a value, as far as this package knows keywords.
func (s *schemaBuilder) says(k string) bool {
	return negatable[k] || notHonoured[k] || slices.Contains(arrayKeywords, k) || slices.Contains(objectKeywords, k) ||
		slices.Contains([]string{
			"oneOf", "format", "multipleOf", "if", "dependentRequired", "dependentSchemas", "dependencies", "$id", notPattern, notEnum,
		}, k)
}

var negatable = map[string]bool{
	"type": true, "enum": true, "const": true, "required": true, "properties": true, "pattern": true, "anyOf": true, "allOf": true,
	"$ref": true, "not": true, "minLength": true, "maxLength": true, "minItems": true, "maxItems": true, "minimum": true,
	"maximum": true, "exclusiveMinimum": true, "exclusiveMaximum": true,
}

// negateKeyword returns schemas of which one accepts what a keyword does not; nil if it cannot.
func (s *schemaBuilder) negateKeyword(k string, v *jsonValue) []*jsonValue {
	one := func(fields map[string]*jsonValue) []*jsonValue { return []*jsonValue{schemaOf(v, fields)} }
	typed := func(name, keyword string, value *jsonValue) []*jsonValue {
		return one(map[string]*jsonValue{"type": textOf(v, name), keyword: value})
	}
	each := func(list *jsonValue) (out []*jsonValue) {
		for _, item := range list.items {
			n := s.negation(item)
			if n == nil {
				return nil
			}
			out = append(out, n)
		}
		return out
	}
	switch k {
	case "not":
		return []*jsonValue{v}
	case "anyOf":
		if all := each(v); all != nil {
			return one(map[string]*jsonValue{"allOf": listOf(v, all...)})
		}
	case "allOf":
		return each(v)
	case "$ref":
		if target := s.resolve(v); target != nil {
			if n := s.negation(target); n != nil {
				return []*jsonValue{n}
			}
		}
	case "type":
		return s.negateType(v)
	case "enum":
		return s.negateValues(v)
	case "const":
		return s.negateValues(listOf(v, v))
	case "pattern":
		return typed("string", notPattern, v)
	case "required":
		var out []*jsonValue
		for _, name := range v.items {
			out = append(out, schemaOf(v, map[string]*jsonValue{
				"type": textOf(v, "object"), "properties": lacking(v, name.text).fields["properties"],
			}))
		}
		if out == nil {
			out = []*jsonValue{truthOf(v, false)}
		}
		return out
	case "properties":
		out := []*jsonValue{truthOf(v, false)}
		for _, name := range v.keys {
			n := s.negation(v.fields[name])
			if n == nil {
				return nil
			}
			out = append(out, schemaOf(v, map[string]*jsonValue{
				"type": textOf(v, "object"), "required": listOf(v, textOf(v, name)),
				"properties": schemaOf(v, map[string]*jsonValue{name: n}),
			}))
		}
		return out
	case "minimum":
		return typed("number", "exclusiveMaximum", v)
	case "maximum":
		return typed("number", "exclusiveMinimum", v)
	case "exclusiveMinimum":
		return typed("number", "maximum", v)
	case "exclusiveMaximum":
		return typed("number", "minimum", v)
	case "minLength", "minItems", "maxLength", "maxItems":
		return s.negateCount(k, v, typed)
	}
	return nil
}

// maxHoles bounds the numbers that a negation excludes, because each divides the others.
const maxHoles = 64

// negateValues is every value but those of a list; nil if it has arrays or objects.
func (s *schemaBuilder) negateValues(list *jsonValue) []*jsonValue {
	var listed types
	var texts, numbers []*jsonValue
	truths := map[bool]bool{}
	for _, v := range list.items {
		switch _, ok := parseDecimal(v.text); {
		case v.kind == jsonNull:
			listed |= typeNull
		case v.kind == jsonBool:
			listed |= typeBool
			truths[v.truth] = true
		case v.kind == jsonString:
			listed |= typeString
			texts = append(texts, v)
		case v.kind == jsonNumber && ok:
			listed |= typeNumber
			numbers = append(numbers, v)
		default:
			return nil
		}
	}
	if s.spend(len(list.items)); len(numbers) > maxHoles {
		return nil
	}
	if listed == typeString {
		return []*jsonValue{schemaOf(list, map[string]*jsonValue{notEnum: list})}
	}
	out := []*jsonValue{s.typesBut(list, listed)}
	if len(texts) > 0 {
		out = append(out, schemaOf(list, map[string]*jsonValue{"type": textOf(list, "string"), notEnum: listOf(list, texts...)}))
	}
	if len(truths) == 1 {
		out = append(out, schemaOf(list, map[string]*jsonValue{"const": truthOf(list, !truths[true])}))
	}
	slices.SortFunc(numbers, func(v, w *jsonValue) int {
		c, _ := parseDecimal(v.text)
		d, _ := parseDecimal(w.text)
		return c.compare(d)
	})
	for i := 0; i <= len(numbers) && len(numbers) > 0; i++ { // the numbers between two that follow each other
		fields := map[string]*jsonValue{"type": textOf(list, "number")}
		if i > 0 {
			fields["exclusiveMinimum"] = numbers[i-1]
		}
		if i < len(numbers) {
			fields["exclusiveMaximum"] = numbers[i]
		}
		out = append(out, schemaOf(list, fields))
	}
	return out
}

// negateItems is the arrays of which some item breaks a keyword of a schema, or too few or too many are
// counted; nil if it cannot be said.
func (s *schemaBuilder) negateItems(k string, v *jsonValue) []*jsonValue {
	field := v.fields[k]
	arrays := func(fields map[string]*jsonValue) *jsonValue {
		fields["type"] = textOf(field, "array")
		return schemaOf(field, fields)
	}
	switch k {
	case "items":
		if n := s.negation(field); n != nil && v.fields["prefixItems"] == nil {
			return []*jsonValue{arrays(map[string]*jsonValue{"contains": n})}
		}
	case "prefixItems":
		var out []*jsonValue
		before := listOf(field)
		for _, item := range s.schemas(v, k) {
			n := s.negation(item)
			if n == nil {
				return nil
			}
			out = append(out, arrays(map[string]*jsonValue{
				k: listOf(field, append(slices.Clip(before.items), n)...), "minItems": numberOf(field, len(before.items)+1),
			}))
			before.items = append(before.items, truthOf(field, true))
		}
		return out
	case "contains":
		least, most := 1, unbounded
		if n, ok := s.natural(v, "minContains"); ok {
			least = n
		}
		if n, ok := s.natural(v, "maxContains"); ok {
			most = n
		}
		out := []*jsonValue{truthOf(field, false)}
		if least > 0 {
			out = append(out, arrays(map[string]*jsonValue{
				k: field, "minContains": numberOf(field, 0), "maxContains": numberOf(field, least-1),
			}))
		}
		if most != unbounded {
			out = append(out, arrays(map[string]*jsonValue{k: field, "minContains": numberOf(field, most+1)}))
		}
		return out
	}
	return nil
}

// negateType is the types that a list does not have. Numbers with a fraction have no name.
func (s *schemaBuilder) negateType(v *jsonValue) []*jsonValue {
	left := typeAny &^ s.typesOf(schemaOf(v, map[string]*jsonValue{"type": v}))
	if left&typeNumber != 0 && left&typeNumber != typeNumber {
		return nil
	}
	return []*jsonValue{s.typesBut(v, typeAny&^left)}
}

// typesBut is the values of all types but some, which have both kinds of numbers or none.
func (s *schemaBuilder) typesBut(v *jsonValue, but types) *jsonValue {
	list := listOf(v)
	for _, name := range []string{"null", "boolean", "number", "string", "array", "object"} {
		if but&typeNames[name] == 0 {
			list.items = append(list.items, textOf(v, name))
		}
	}
	if len(list.items) == 0 {
		return truthOf(v, false)
	}
	return schemaOf(v, map[string]*jsonValue{"type": list})
}

func (s *schemaBuilder) negateCount(k string, v *jsonValue, typed func(name, keyword string, value *jsonValue) []*jsonValue) []*jsonValue {
	n, ok := s.natural(schemaOf(v, map[string]*jsonValue{k: v}), k)
	if !ok {
		return nil
	}
	name := "string"
	if k == "minItems" || k == "maxItems" {
		name = "array"
	}
	switch {
	case k[:3] == "max":
		return typed(name, "min"+k[3:], numberOf(v, n+1))
	case n == 0:
		return []*jsonValue{truthOf(v, false)}
	}
	return typed(name, "max"+k[3:], numberOf(v, n-1))
}

// implied returns the schemas that the keywords not, if and those of dependencies stand for; a keyword
// that cannot be expressed is refused.
func (s *schemaBuilder) implied(v *jsonValue) []*jsonValue {
	if out, known := s.implications[v]; known {
		return out
	}
	var out []*jsonValue
	either := func(at *jsonValue, of ...*jsonValue) {
		out = append(out, schemaOf(at, map[string]*jsonValue{"anyOf": listOf(at, of...)}))
	}
	both := func(at *jsonValue, of ...*jsonValue) *jsonValue {
		return schemaOf(at, map[string]*jsonValue{"allOf": listOf(at, of...)})
	}
	for _, k := range v.keys {
		field := v.fields[k]
		switch k {
		case "not":
			if n := s.negation(field); n != nil {
				out = append(out, n)
			} else {
				s.refuse(field, "the keyword not with a schema whose negation is not built")
			}
		case "if":
			then, otherwise := v.fields["then"], v.fields["else"]
			if then == nil && otherwise == nil {
				continue
			}
			if then == nil {
				then = truthOf(field, true)
			}
			if otherwise == nil {
				otherwise = truthOf(field, true)
			}
			if n := s.negation(field); n != nil {
				either(field, both(field, field, then), both(field, n, otherwise))
			} else {
				s.refuse(field, "the keyword if with a schema whose negation is not built")
			}
		case "dependentRequired", "dependentSchemas", "dependencies":
			if field.kind != jsonObject {
				s.failAt(field.path, ErrSyntax, "%s is an object", k)
				continue
			}
			for _, name := range field.keys {
				need := field.fields[name]
				if need.kind == jsonArray {
					need = schemaOf(need, map[string]*jsonValue{"required": need})
				}
				either(need, lacking(need, name), need)
			}
		}
	}
	s.implications[v] = out
	return out
}
