package guide

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSchemaTexts(t *testing.T) {
	for name, tc := range map[string]struct {
		schema  string
		yes, no []string
	}{
		"any value": {
			`{}`, []string{`1`, `-0.5e-3`, `"a\u00e9\ud83d\ude00"`, `[1]`, `{"a":{"b":[]}}`, `null`, "[\n  1,\n  2\n]"},
			[]string{``, `01`, `"\ud83d"`, `[1,]`, `{"a" :1}`, `nul`, ` 1`, "\"\n\"", "\"\xff\""},
		},
		"properties in order": {
			`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},"c":{"type":"null"}},"required":["b"],"additionalProperties":false}`,
			[]string{`{"b":true}`, `{"a":1,"b":false}`, `{"a": 1, "b": true, "c": null}`, "{\n  \"a\": 1,\n  \"b\": true\n}", `{"b":true,"c":null}`},
			[]string{`{}`, `{"a":1}`, `{"b":true,"a":1}`, `{"b":true,"d":1}`, `{"b":true,}`, `{"b":1}`, `{"a":1 ,"b":true}`},
		},
		"all optional": {
			`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"additionalProperties":{"type":"string"}}`,
			[]string{`{}`, `{"a":1}`, `{"b":1}`, `{"a":1,"b":2,"x":"y"}`, `{"x":"y","aa":"z"}`, `{"":"z"}`},
			[]string{`{"a":"y"}`, `{"x":1}`, `{"a":1,"a":"y"}`},
		},
		"required and not declared": {
			`{"type":"object","required":["z"]}`, []string{`{"z":1}`, `{"z":1,"a":2}`}, []string{`{}`, `{"a":1}`, `{"a":1,"z":1}`},
		},
		"patterns of keys": {
			`{"type":"object","properties":{"a1":{"minimum":5}},"patternProperties":{"^a":{"type":"integer"},"1$":{"maximum":9}},"additionalProperties":false}`,
			[]string{`{}`, `{"a1":7}`, `{"a1":7,"ab":100,"b1":null}`, `{"b1":8.5,"a21":8,"a":100}`},
			[]string{`{"a1":4}`, `{"a1":5.5}`, `{"a1":10}`, `{"ab":null}`, `{"a21":10}`, `{"b1":10}`, `{"b":1}`, `{"a1":7,"a1":7}`, `{"\u0061":null}`},
		},
		"patterns that forbid": {
			`{"type":"object","patternProperties":{"^f(oo)?$":false},"required":["g"]}`,
			[]string{`{"g":1}`, `{"g":1,"fo":2,"fooo":3}`}, []string{`{"g":1,"foo":1}`, `{"g":1,"f":1}`},
		},
		"names of properties": {
			`{"type":"object","properties":{"abc":true,"d":true},"propertyNames":{"pattern":"^[a-c]+$","maxLength":3}}`,
			[]string{`{}`, `{"abc":1}`, `{"abc":1,"ab":2}`}, []string{`{"d":1}`, `{"abca":1}`, `{"abc":1,"abc":2}`, `{"":1}`},
		},
		"names of a list": {
			`{"type":"object","propertyNames":{"enum":["a","b\""]}}`, []string{`{"a":1,"b\"":2}`}, []string{`{"ab":1}`},
		},
		"numbers of properties": {
			`{"type":"object","properties":{"a":true,"b":true,"c":true},"required":["c"],"additionalProperties":false,"minProperties":2,"maxProperties":2}`,
			[]string{`{"a":1,"c":1}`, `{"b":1,"c":1}`}, []string{`{"c":1}`, `{"a":1,"b":1,"c":1}`, `{"a":1,"b":1}`, `{}`},
		},
		"one property at least": {
			`{"type":"object","properties":{"a":true},"minProperties":1}`, []string{`{"a":1}`, `{"x":1,"y":2}`}, []string{`{}`},
		},
		"at most two properties": {
			`{"type":"object","required":["a"],"maxProperties":2}`, []string{`{"a":1}`, `{"a":1,"x":1}`}, []string{`{"a":1,"x":1,"y":1}`, `{}`},
		},
		"keys that begin alike": {
			`{"type":"object","properties":{"a":{"type":"null"},"ab":{"type":"boolean"},"a\"b":{"type":"integer"}},"additionalProperties":{"type":"string"}}`,
			[]string{`{"a":null,"ab":true,"a\"b":1,"a\"":"x","abc":"y"}`}, []string{`{"ab":true,"a":null}`, `{"a\"b":null}`, `{"ab":"x"}`},
		},
		"not": {
			`{"not":{"anyOf":[{"type":["object","null"]},{"enum":["a","b\""]},{"type":"string","pattern":"^x"},{"type":"string","minLength":5},{"type":"number","maximum":3}]}}`,
			[]string{`"c"`, `"ax"`, `4`, `true`, `[1]`}, []string{`{}`, `null`, `"a"`, `"b\""`, `"xa"`, `"aaaaa"`, `3`},
		},
		"not required": {
			`{"type":"object","properties":{"a":true,"b":true},"not":{"required":["a","b"]}}`,
			[]string{`{}`, `{"a":1}`, `{"b":1,"c":2}`}, []string{`{"a":1,"b":2}`},
		},
		"not a property of a kind": {
			`{"not":{"properties":{"a":{"type":"string"}}}}`, []string{`{"a":1}`, `{"a":null,"b":1}`}, []string{`{"a":"x"}`, `{}`, `1`},
		},
		"if": {
			`{"type":"object","properties":{"k":{"enum":["a","b"]},"v":true},"required":["k"],"if":{"properties":{"k":{"const":"a"}}},"then":{"required":["v"]},"else":{"properties":{"v":{"type":"null"}}}}`,
			[]string{`{"k":"a","v":1}`, `{"k":"b"}`, `{"k":"b","v":null}`}, []string{`{"k":"a"}`, `{"k":"b","v":1}`},
		},
		"dependent properties": {
			`{"type":"object","properties":{"a":true,"b":true,"c":true},"dependentRequired":{"a":["b"]},"dependentSchemas":{"c":{"properties":{"a":false}}}}`,
			[]string{`{}`, `{"b":1}`, `{"a":1,"b":1}`, `{"c":1}`, `{"b":1,"c":1}`}, []string{`{"a":1}`, `{"a":1,"b":1,"c":1}`},
		},
		"oneOf that overlaps in part": {
			`{"oneOf":[{"type":"string","maxLength":3},{"type":"string","minLength":2},{"type":"object","required":["a"]},{"type":"object","required":["b"]}]}`,
			[]string{`"a"`, `"abcd"`, `{"a":1}`, `{"b":1}`}, []string{`"ab"`, `{"a":1,"b":1}`, `{}`},
		},
		"integers in a range": {
			`{"type":"integer","minimum":-12,"exclusiveMaximum":105}`, []string{`-12`, `-1`, `0`, `-0`, `9`, `99`, `104`},
			[]string{`-13`, `105`, `1000`, `-120`, `1.5`, `00`},
		},
		"numbers in a range": {
			`{"type":"number","exclusiveMinimum":0.25,"maximum":10}`, []string{`0.26`, `0.250001`, `1`, `9.999`, `10`, `10.00`},
			[]string{`0.25`, `0.2`, `10.001`, `-1`, `0`, `11`, `1e0`},
		},
		"multiples": {
			`{"type":"integer","multipleOf":7,"minimum":0}`, []string{`0`, `7`, `14`, `700`}, []string{`1`, `8`, `-7`, `701`},
		},
		"strings of a length": {
			`{"type":"string","minLength":2,"maxLength":3}`, []string{`"ab"`, `"éé"`, `"\ud83d\ude00a"`, `"\n\n\n"`, `"😀😀😀"`},
			[]string{`"a"`, `"abcd"`, `""`},
		},
		"pattern and length": {
			`{"type":"string","pattern":"^[a-z]+$|\"","maxLength":4}`, []string{`"abcd"`, `"X\"Y"`, `"\""`}, []string{`"abcde"`, `"aB"`, `"XXXX\""`},
		},
		"a pattern anywhere": {
			`{"type":"string","pattern":"b(c|d)"}`, []string{`"bc"`, `"aabdz"`}, []string{`"b"`, `"cb"`},
		},
		"arrays": {
			`{"type":"array","prefixItems":[{"type":"integer"},{"type":"null"}],"items":{"type":"boolean"},"minItems":1,"maxItems":4}`,
			[]string{`[1]`, `[1,null]`, `[1, null, true]`, `[1,null,true,false]`}, []string{`[]`, `[null]`, `[1,true]`, `[1,null,true,true,true]`},
		},
		"items and bounds": {
			`{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3}`, []string{`[1,2]`, `[ 1, 2, 3 ]`}, []string{`[1]`, `[1,2,3,4]`, `[]`},
		},
		"an item of a kind": {
			`{"type":"array","contains":{"type":"integer","minimum":5},"minContains":2,"maxItems":4}`,
			[]string{`[5, 6]`, `[null,7,"a",8]`, `[5,5,5,5]`}, []string{`[]`, `[5]`, `[5,4]`, `[1,2,3,5]`, `[5,5,5,5,5]`, `[1,2,3,4]`},
		},
		"at most so many items of a kind": {
			`{"type":"array","items":{"enum":["a","b",1]},"contains":{"enum":["a",1]},"minContains":0,"maxContains":1}`,
			[]string{`[]`, `["b","b","b"]`, `["b",1,"b"]`, `["a"]`}, []string{`["a","a"]`, `[1,"b","a"]`, `["c"]`},
		},
		"items of two kinds": {
			`{"type":"array","allOf":[{"contains":{"const":1}},{"contains":{"type":"number"},"maxContains":2}],"prefixItems":[true,{"type":"null"}]}`,
			[]string{`[1]`, `[1,null,2]`, `["a",null,1,"b"]`, `[2,null,1]`}, []string{`[]`, `[2]`, `[1,2]`, `[1,null,2,3]`, `[2,null,3,1]`},
		},
		"contains anything": {`{"type":"array","contains":true,"maxContains":2}`, []string{`[1]`, `[1,2]`}, []string{`[]`, `[1,2,3]`}},
		"no such array":     {`{"contains":false,"type":["array","null"]}`, []string{`null`}, []string{`[]`, `[1]`}},
		"not of items": {
			`{"type":"array","not":{"items":{"type":"string"}},"maxItems":3}`, []string{`[1]`, `["a",1,"b"]`}, []string{`[]`, `["a"]`},
		},
		"not of first items": {
			`{"type":"array","not":{"prefixItems":[{"type":"string"},{"const":1}]}}`, []string{`[1]`, `["a",2]`}, []string{`[]`, `["a"]`, `["a",1,2]`},
		},
		"not of contains": {
			`{"type":"array","not":{"contains":{"const":"a"},"minContains":2,"maxContains":3}}`,
			[]string{`[]`, `["a","b"]`, `["a","a","b","a","a"]`}, []string{`["a","a"]`, `["a","b","a","a"]`},
		},
		"not of an enum": {
			`{"not":{"enum":[1,"a",true,null,-2.5]}}`, []string{`2`, `-2.6`, `1.5`, `"b"`, `false`, `[]`, `{}`}, []string{`1`, `1.0`, `"a"`, `true`, `null`, `-2.5`},
		},
		"distinct items": {
			`{"type":"array","items":{"enum":["a","b",1,1.0,{"k":[]}]},"uniqueItems":true,"minItems":1,"maxItems":3}`,
			[]string{`["a"]`, `[1, "a"]`, `[{"k": []},1,"b"]`}, []string{`[]`, `["a","a"]`, `[1,"b",1]`, `["a","b",1,{"k":[]}]`, `["c"]`},
		},
		"distinct truth values": {
			`{"type":"array","items":{"type":["boolean","null"]},"uniqueItems":true,"minItems":2}`,
			[]string{`[true,false]`, `[null, true, false]`}, []string{`[true]`, `[null,null]`, `[true,false,true]`, `[true,false,null,true]`},
		},
		"distinct first items": {
			`{"type":"array","prefixItems":[{"type":"boolean"},{"enum":[true,1]}],"items":{"const":1},"uniqueItems":true,"minItems":3}`,
			[]string{`[false,true,1]`}, []string{`[true,1]`, `[false,1,1]`, `[false,1]`, `[true,true,1]`, `[false,true]`},
		},
		"distinct branches": {
			`{"type":"array","items":{"anyOf":[{"const":"a"},{"enum":["a","b"]}]},"uniqueItems":true}`,
			[]string{`[]`, `["b","a"]`}, []string{`["a","a"]`},
		},
		"no items": {`{"type":"array","items":false}`, []string{`[]`}, []string{`[1]`}},
		"enum": {
			`{"enum":[1,"a\n",null,[1,2],{"k":true}]}`, []string{`1`, `"a\n"`, `null`, `[1, 2]`, `{"k": true}`}, []string{`2`, `"a"`, `[1]`, `{}`},
		},
		"enum and type":  {`{"enum":[1,"a",2.5,10],"type":"integer","maximum":9}`, []string{`1`}, []string{`"a"`, `2.5`, `10`}},
		"anyOf":          {`{"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]}`, []string{`12`, `"a"`}, []string{`"ab"`, `true`}},
		"anyOf and type": {`{"type":"string","anyOf":[{"minLength":2},{"pattern":"^x$"}]}`, []string{`"x"`, `"ab"`}, []string{`"a"`, `1`}},
		"allOf": {
			`{"allOf":[{"type":"object","properties":{"a":{"type":"integer","minimum":3}},"required":["a"]},{"properties":{"a":{"maximum":4},"b":{"type":"null"}},"additionalProperties":false}]}`,
			[]string{`{"a":3}`, `{"a":4,"b":null}`}, []string{`{}`, `{"a":5}`, `{"a":2}`, `{"a":3,"c":1}`},
		},
		"oneOf by a tag": {
			`{"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"v":{"type":"integer"}},"required":["k","v"]},{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]},{"type":"null"}]}`,
			[]string{`{"k":"a","v":1}`, `{"k":"b"}`, `null`}, []string{`{"k":"a"}`, `{"k":"c"}`, `1`},
		},
		"recursion": {
			`{"$defs":{"t":{"type":"object","properties":{"v":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/$defs/t"}}},"required":["v"],"additionalProperties":false}},"$ref":"#/$defs/t"}`,
			[]string{`{"v":1}`, `{"v":1,"kids":[{"v":2,"kids":[]},{"v":3}]}`}, []string{`{"kids":[]}`, `{"v":1,"kids":[1]}`},
		},
		"formats": {
			`{"type":"array","prefixItems":[{"type":"string","format":"date"},{"type":"string","format":"ipv4"},{"type":"string","format":"uuid"}]}`,
			[]string{`["2024-12-31","10.0.255.1","123e4567-e89b-12d3-a456-426614174000"]`},
			[]string{`["2024-13-31"]`, `["2024-02-30"]`, `["2024-12-31","10.0.256.1"]`},
		},
		"types in a list": {`{"type":["integer","null"]}`, []string{`1`, `null`}, []string{`1.5`, `"a"`}},
		"true":            {`true`, []string{`1`, `"a"`}, nil},
	} {
		t.Run(name, func(t *testing.T) { checkTexts(t, Source{Kind: JSONSchema, Text: tc.schema}, tc.yes, tc.no) })
	}
}

func TestSchemaRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		schema string
		kind   error
		path   string
	}{
		"no JSON":             {`{"type":`, ErrSyntax, "#"},
		"two values":          {`{} {}`, ErrSyntax, "#"},
		"a key twice":         {`{"type":"object","properties":{"a":{},"a":{}}}`, ErrSyntax, "#/properties/a"},
		"an unknown type":     {`{"properties":{"a~/":{"type":"int"}}}`, ErrSyntax, "#/properties/a~0~1/type"},
		"not of a format":     {`{"not":{"type":"string","format":"date"}}`, ErrUnsupported, "#/not"},
		"not of integers":     {`{"type":"object","properties":{"a":{"not":{"type":"integer"}}}}`, ErrUnsupported, "#/properties/a/not"},
		"not of itself":       {`{"not":{"$ref":"#"}}`, ErrUnsupported, "#"},
		"if with a format":    {`{"if":{"format":"date"},"then":{"minLength":3}}`, ErrUnsupported, "#/if"},
		"not of everything":   {`{"not":{}}`, ErrUnsupported, ""},
		"a pattern of keys":   {`{"patternProperties":{"(?=a)":{"type":"null"}}}`, ErrUnsupported, "#/patternProperties/(?=a)"},
		"at most some items":  {`{"contains":{"format":"date"},"maxContains":2}`, ErrUnsupported, "#/contains"},
		"many items":          {`{"contains":{"type":"null"},"minContains":65}`, ErrUnsupported, "#/contains"},
		"many schemas":        {`{"allOf":[{"contains":{"const":1}},{"contains":{"const":2}},{"contains":{"const":3}},{"contains":{"const":4}},{"contains":{"const":5}}]}`, ErrUnsupported, "#/allOf/4/contains"},
		"bounds of contains":  {`{"contains":{"const":1},"maxContains":99,"maxItems":9999}`, ErrLimit, "#/contains"},
		"unevaluatedItems":    {`{"unevaluatedItems":false}`, ErrUnsupported, "#/unevaluatedItems"},
		"names with a choice": {`{"propertyNames":{"anyOf":[{"pattern":"a"},{"maxLength":2}]}}`, ErrUnsupported, "#/propertyNames"},
		"many properties":     {`{"type":"object","minProperties":2}`, ErrUnsupported, "#/minProperties"},
		"control characters":  {`{"type":"object","properties":{"a\u001f":true}}`, ErrUnsupported, "#"},
		"a foreign $ref":      {`{"$ref":"https://example.org/s"}`, ErrUnsupported, "#/$ref"},
		"a dangling $ref":     {`{"$ref":"#/$defs/x"}`, ErrSyntax, "#/$ref"},
		"a $ref to itself":    {`{"$ref":"#"}`, ErrUnsupported, "#"},
		"a loop of two $refs": {`{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"allOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}`, ErrUnsupported, "#/$defs/a"},
		"a $ref loop through anyOf": {
			`{"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]}},"$ref":"#/$defs/a"}`, ErrUnsupported, "#/$defs/a",
		},
		"nothing obeys it":      {`{"type":"object","properties":{"a":false},"required":["a"]}`, ErrUnsupported, ""},
		"endless recursion":     {`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`, ErrUnsupported, ""},
		"oneOf that overlaps":   {`{"oneOf":[{"type":"integer"},{"type":"number"}]}`, ErrUnsupported, "#/oneOf"},
		"a long maxLength":      {`{"type":"string","maxLength":100000}`, ErrUnsupported, "#/maxLength"},
		"an unknown format":     {`{"type":"string","format":"iri"}`, ErrUnsupported, "#/format"},
		"lookahead":             {`{"type":"string","pattern":"(?=a)b"}`, ErrUnsupported, "#/pattern"},
		"a word boundary":       {`{"type":"string","pattern":"a\\bc"}`, ErrUnsupported, "#/pattern"},
		"uniqueItems":           {`{"type":"array","uniqueItems":true}`, ErrUnsupported, "#/uniqueItems"},
		"unique and contains":   {`{"items":{"type":"null"},"contains":{"type":"null"},"uniqueItems":true}`, ErrUnsupported, "#/uniqueItems"},
		"unique, then others":   {`{"prefixItems":[{"type":"null"}],"uniqueItems":true}`, ErrUnsupported, "#/uniqueItems"},
		"too few to be unique":  {`{"type":"array","items":{"type":"boolean"},"uniqueItems":true,"minItems":3}`, ErrUnsupported, ""},
		"many to be unique":     {`{"items":{"enum":[` + numbersTo(257) + `]},"uniqueItems":true}`, ErrUnsupported, "#/uniqueItems"},
		"items as a list":       {`{"type":"array","items":[{}]}`, ErrUnsupported, "#/items"},
		"bounds of draft 4":     {`{"type":"number","minimum":1,"exclusiveMinimum":true}`, ErrUnsupported, "#/exclusiveMinimum"},
		"a pattern too complex": {`{"type":"string","pattern":"a.{900}b.{900}c","maxLength":60000}`, ErrLimit, "#/pattern"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(Source{Kind: JSONSchema, Text: tc.schema}, byteTokens())
			require.ErrorIs(t, err, tc.kind)
			var problem *Error
			require.ErrorAs(t, err, &problem)
			require.Equal(t, tc.path, problem.Path, problem.Problem)
		})
	}
}

func TestLenientSchemaNamesWhatItDrops(t *testing.T) {
	g := compile(t, Source{Kind: JSONSchema, Lenient: true, Text: `{"type":"object","properties":{"a":{"type":"string","format":"iri",
		"pattern":"(?=x)"},"b":{"not":{"format":"date"},"type":"integer"}},"required":["a","b"]}`})
	require.Equal(t, []string{"#/properties/a/format", "#/properties/a/pattern", "#/properties/b/not"}, g.Dropped())
	require.True(t, accepts(g, `{"a":"x","b":1}`))
}

// numbersTo is the numbers below n, with commas between.
func numbersTo(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strconv.Itoa(i)
	}
	return strings.Join(all, ",")
}

func TestDistinctItemsOfManyValues(t *testing.T) {
	// Sets of values that came are made as a text reaches them, not all 2^200.
	g := compile(t, Source{Kind: JSONSchema, Text: `{"type":"array","items":{"enum":[` + numbersTo(200) + `]},"uniqueItems":true,"minItems":200}`})
	require.True(t, accepts(g, "["+numbersTo(200)+"]"))
	require.False(t, accepts(g, "["+numbersTo(199)+",7]"))
	s, err := g.Start(nil).AdvanceText("[" + numbersTo(150) + ",")
	require.NoError(t, err)
	w := s.Walk(nil, make([]uint32, g.vocabulary.Words()))
	require.True(t, w.Run(1<<20))
	require.Less(t, w.Steps(), 1<<18)
	require.Less(t, g.Bytes(), 8<<20)
}
