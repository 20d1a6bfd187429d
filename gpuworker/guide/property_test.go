package guide

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

// randomSchema draws a schema of honoured keywords.
func randomSchema(rng *rand.Rand, depth int) string {
	sub := func() string { return randomSchema(rng, depth-1) }
	if depth <= 0 {
		return []string{
			`{"type":"integer"}`, `{"type":"boolean"}`, `{"type":"null"}`, `{"type":"string"}`, `{"type":"number"}`,
			`{"type":"integer","minimum":-120,"maximum":37}`, `{"type":"number","exclusiveMinimum":0.5,"maximum":12.25}`,
			`{"type":"integer","exclusiveMaximum":1000,"multipleOf":6}`, `{"type":"string","minLength":2,"maxLength":5}`,
			`{"type":"string","pattern":"^[a-c]+[0-9]$"}`, `{"type":"string","pattern":"b\\d","maxLength":6}`,
			`{"type":"string","format":"date"}`, `{"type":"string","format":"date-time"}`, `{"type":"string","format":"ipv4"}`,
			`{"type":"string","format":"uuid"}`, `{"type":"string","format":"ipv6"}`, `{"type":"string","format":"uri-reference"}`, `{"type":"string","format":"json-pointer"}`, `{"type":"string","format":"relative-json-pointer"}`, `{"type":"string","format":"email"}`, `{"type":"string","format":"hostname"}`,
			`{"type":"string","format":"time"}`, `{"type":"string","format":"uri"}`, `{"type":"string","format":"duration"}`,
			`{"const":{"a":[1,"x\n"]}}`, `{"enum":["a\"b","é",null,3]}`, `{"type":["integer","null"],"enum":[1,2,null,"a"]}`, `true`,
			`{"type":"number","minimum":-0.125,"exclusiveMaximum":0.125}`, `{"minimum":-5,"maxLength":3,"type":["number","string"]}`,
		}[rng.IntN(30)]
	}
	switch rng.IntN(7) {
	case 6:
		item := []string{`{"enum":["a",1,null,[1],"b c"]}`, `{"type":"boolean"}`, `{"anyOf":[{"const":1},{"type":["null","boolean"]}]}`}[rng.IntN(3)]
		s := fmt.Sprintf(`{"type":"array","items":%s,"uniqueItems":true,"minItems":%d,"maxItems":%d`, item, rng.IntN(3), 2+rng.IntN(4))
		if rng.IntN(2) == 0 {
			s += `,"prefixItems":[{"enum":["a",2,true]}]`
		}
		return s + "}"
	case 0:
		s := fmt.Sprintf(`{"type":"array","items":%s,"minItems":%d,"maxItems":%d`, sub(), rng.IntN(3), 2+rng.IntN(3))
		if rng.IntN(2) == 0 {
			s += fmt.Sprintf(`,"prefixItems":[%s,%s]`, sub(), sub())
		}
		if rng.IntN(3) == 0 {
			s += fmt.Sprintf(`,"contains":%s,"minContains":%d`, negatableSchema(rng), rng.IntN(3))
			if rng.IntN(2) == 0 {
				s += fmt.Sprintf(`,"maxContains":%d`, rng.IntN(3))
			}
		}
		return s + "}"
	case 1:
		return fmt.Sprintf(`{"anyOf":[%s,%s]}`, sub(), sub())
	case 2:
		return fmt.Sprintf(`{"oneOf":[{"type":"object","properties":{"kind":{"const":"a"},"v":%s},"required":["kind"]},
			{"type":"object","properties":{"kind":{"enum":["b","c"]}},"required":["kind","x"],"additionalProperties":%s}]}`, sub(), sub())
	case 3:
		return fmt.Sprintf(`{"allOf":[%s,{"properties":{"b":%s}}]}`, randomObject(rng, depth), sub())
	default:
		return randomObject(rng, depth)
	}
}

func randomObject(rng *rand.Rand, depth int) string {
	var properties, required []string
	for _, name := range []string{"a", "b", "a b", "é\\\"", "kind"} {
		switch rng.IntN(3) {
		case 0:
			required = append(required, `"`+name+`"`)
			fallthrough
		case 1:
			properties = append(properties, `"`+name+`":`+randomSchema(rng, depth-1))
		}
	}
	s := `{"type":"object","properties":{` + strings.Join(properties, ",") + `},"required":[` + strings.Join(required, ",") + `]`
	switch rng.IntN(3) {
	case 0:
		s += `,"additionalProperties":false`
	case 1:
		s += `,"additionalProperties":` + randomSchema(rng, 0)
	}
	switch rng.IntN(10) {
	case 6:
		s += `,"not":` + negatableSchema(rng)
	case 7:
		s += `,"if":` + negatableSchema(rng) + `,"then":` + randomSchema(rng, 0) + `,"else":` + negatableSchema(rng)
	case 8:
		s += `,"dependentRequired":{"a":["b"]},"dependentSchemas":{"b":` + negatableSchema(rng) + `}`
	case 9:
		s += `,"oneOf":[` + negatableSchema(rng) + `,` + negatableSchema(rng) + `]`
	case 0:
		s += `,"patternProperties":{"^(a|x)":` + randomSchema(rng, 0) + `,"b":true}`
	case 1:
		s += fmt.Sprintf(`,"maxProperties":%d`, rng.IntN(5))
	case 2:
		s += `,"propertyNames":{"pattern":"^[a-x]"},"minProperties":1`
	}
	return s + "}"
}

// negatableSchema draws a schema whose negation is built.
func negatableSchema(rng *rand.Rand) string {
	return []string{
		`{"required":["a"]}`, `{"required":["a","b"]}`, `{"properties":{"a":{"type":"string"}}}`, `{"properties":{"b":{"const":"ab"},"a":{"minLength":3}}}`,
		`{"properties":{"a":{"pattern":"^a"}},"required":["a"]}`, `{"anyOf":[{"required":["kind"]},{"properties":{"a":{"maximum":5}}}]}`,
		`{"not":{"required":["x"]}}`, `{"allOf":[{"type":"object"},{"properties":{"b":{"exclusiveMinimum":-3}}}]}`,
		`{"properties":{"a":{"type":["integer","number","null"]},"x":{"maxItems":2}}}`,
		`{"enum":[1,"ab",false,-0.5,7,null]}`, `{"properties":{"a":{"items":{"type":"string"}},"x":{"contains":{"const":1},"maxContains":1}}}`,
		`{"items":{"required":["a"]},"minItems":1}`, `{"prefixItems":[{"const":"a"},{"type":"object"}]}`,
	}[rng.IntN(13)]
}

func validator(t *testing.T, schema string) *jsonschema.Schema {
	t.Helper()
	parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource("schema.json", parsed))
	s, err := c.Compile("schema.json")
	require.NoError(t, err, schema)
	return s
}

// Texts that random walks along the masks give are instances of the schema, by another implementation.
func TestRandomWalksGiveInstances(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	v, ended := byteTokens(), 0
	for i := range 250 {
		schema := randomSchema(rng, rng.IntN(3))
		g, err := Compile(Source{Kind: JSONSchema, Text: schema}, v)
		if err != nil {
			require.ErrorIs(t, err, ErrUnsupported, schema) // no text obeys it, or properties beside an enum
			continue
		}
		valid := validator(t, schema)
		for range 6 {
			text, whole := walkMasks(t, rng, g, 256, 600, func(id int32) bool { return strings.ContainsRune("\"}],:0a", id) || id == 256 })
			if !whole {
				continue
			}
			ended++
			value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
			require.NoError(t, err, "schema %d %s gives %q", i, schema, text)
			require.NoError(t, valid.Validate(value), "schema %d %s gives %q", i, schema, text)
		}
	}
	require.Greater(t, ended, 800)
}

// randomInstance draws a value that often obeys such a schema, with its properties in the order in which
// they are declared.
func randomInstance(rng *rand.Rand, schema map[string]any, order []string) string {
	if c, ok := schema["const"]; ok {
		return asJSON(c)
	}
	if e, ok := schema["enum"].([]any); ok {
		return asJSON(e[rng.IntN(len(e))])
	}
	name, _ := schema["type"].(string)
	switch name {
	case "integer":
		return strconv.Itoa(rng.IntN(400) - 200)
	case "number":
		return strconv.FormatFloat(float64(rng.IntN(40000)-20000)/1000, 'f', -1, 64)
	case "string":
		texts := []string{"", "ab", "abc1", "xb2", "2024-02-28", "aaaaaa", "10.0.0.1", "é\n\"\\", "😀😀"}
		if schema["format"] != nil { // the other implementation takes letters outside ASCII in a URI
			texts = texts[:7]
		}
		return asJSON(texts[rng.IntN(len(texts))])
	case "boolean":
		return strconv.FormatBool(rng.IntN(2) == 0)
	case "array":
		var items []string
		prefix, _ := schema["prefixItems"].([]any)
		rest, _ := schema["items"].(map[string]any)
		for i := range rng.IntN(5) {
			item := rest
			if i < len(prefix) {
				item, _ = prefix[i].(map[string]any)
			}
			items = append(items, randomInstance(rng, item, order))
		}
		return "[" + strings.Join(items, ",") + "]"
	case "object":
		var members []string
		properties, _ := schema["properties"].(map[string]any)
		for _, name := range append(order, "x", "other") {
			p, declared := properties[name].(map[string]any)
			if _, is := properties[name].(bool); is {
				declared = true
			}
			if rng.IntN(3) > 0 && (declared || name == "x" || name == "other") {
				members = append(members, asJSON(name)+":"+randomInstance(rng, p, order))
			}
		}
		return "{" + strings.Join(members, ", ") + "}"
	}
	return []string{"null", "1", `"a"`, "[]", "{}", "true", "-0.5"}[rng.IntN(7)]
}

func asJSON(v any) string {
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	return strings.TrimSuffix(out.String(), "\n")
}

func shuffled(rng *rand.Rand, all []string) []string {
	all = slices.Clone(all)
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// Values in declared order are accepted if and only if another implementation accepts them. Any order is
// accepted if it is asked for.
func TestRandomInstancesAgreeWithAValidator(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	v, yes, no := byteTokens(), 0, 0
	order := []string{"a", "b", "a b", `é"`, "kind"}
	for range 600 {
		schema := randomObject(rng, rng.IntN(3))
		if rng.IntN(3) == 0 {
			schema = fmt.Sprintf(`{"type":"array","items":%s,"minItems":%d,"maxItems":3`, schema, rng.IntN(2))
			if rng.IntN(2) == 0 {
				schema += fmt.Sprintf(`,"contains":%s,"minContains":%d,"maxContains":%d`, negatableSchema(rng), rng.IntN(3), rng.IntN(3))
			}
			schema += "}"
		}
		g, err := Compile(Source{Kind: JSONSchema, Text: schema}, v)
		if err != nil {
			require.ErrorIs(t, err, ErrUnsupported, schema) // no text obeys it, or properties beside an enum
			continue
		}
		valid := validator(t, schema)
		var parsed map[string]any
		require.NoError(t, json.Unmarshal([]byte(schema), &parsed))
		free, err := Compile(Source{Kind: JSONSchema, Text: schema, AnyOrder: true}, v)
		require.NoError(t, err)
		for range 20 {
			text := randomInstance(rng, parsed, order)
			value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
			require.NoError(t, err)
			want := valid.Validate(value) == nil
			require.Equal(t, want, accepts(g, text), "%s of %s", text, schema)
			text = randomInstance(rng, parsed, shuffled(rng, order))
			value, err = jsonschema.UnmarshalJSON(strings.NewReader(text))
			require.NoError(t, err)
			require.Equal(t, valid.Validate(value) == nil, accepts(free, text), "%s of %s in any order", text, schema)
			if want {
				yes++
			} else {
				no++
			}
		}
	}
	require.Greater(t, min(yes, no), 300)
}
