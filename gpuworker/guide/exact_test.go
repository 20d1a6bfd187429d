package guide

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPatternsFollowECMAScript(t *testing.T) {
	// A JSON schema's patterns are of ECMA-262, whose \s, \S and dot have more spaces and line ends than RE2's.
	for name, tc := range map[string]struct {
		pattern string
		yes, no []string
	}{
		"spaces":             {`^\\s$`, []string{`" "`, "\"\u00a0\"", "\"\ufeff\"", `"\u000b"`}, []string{`"a"`}},
		"no space":           {`^\\S$`, []string{`"a"`, "\"\u200b\""}, []string{`" "`, "\"\u00a0\"", "\"\u2029\"", `"\u000b"`}},
		"in classes":         {`^[^\\s-x][\\S-]$`, []string{`"aa"`, `"a-"`}, []string{"\"\u2003a\"", `"-a"`, "\"a\u3000\""}},
		"after a hyphen":     {`^[^-\\s]$`, []string{`"a"`}, []string{"\"\u00a0\"", `"-"`}},
		"dot":                {`^.$`, []string{`"a"`}, []string{`"\r"`, `"\n"`, "\"\u2028\"", "\"\u2029\""}},
		"surrogate pairs":    {`^\\ud83d\\ude00$`, []string{`"😀"`}, []string{"\"\ufffd\"", "\"\ufffd\ufffd\""}},
		"an escaped bracket": {`^\\[\\s\\]$`, []string{"\"[\u00a0]\""}, []string{`"\\"`}},
	} {
		t.Run(name, func(t *testing.T) {
			checkTexts(t, Source{Kind: JSONSchema, Text: `{"type":"string","pattern":"` + tc.pattern + `"}`}, tc.yes, tc.no)
		})
	}
}

func TestLoneSurrogatesMatchNothing(t *testing.T) {
	checkTexts(t, Source{Kind: Regex, Text: `\x{d800}|a`}, []string{"a"}, []string{"\ufffd"})
}

func TestMultipleOfOneIsAnInteger(t *testing.T) {
	// 1 divides no fraction: it constrains numbers although it excludes no remainder.
	for _, schema := range []string{
		`{"type":"number","multipleOf":1}`, `{"multipleOf":1.0,"minimum":0}`, `{"enum":[1.5,1],"multipleOf":1}`,
	} {
		checkTexts(t, Source{Kind: JSONSchema, Text: schema}, []string{"1"}, []string{"1.5", "1.0", "1e0"})
	}
}

func TestHostnamesHaveNoIDNALabels(t *testing.T) {
	checkTexts(t, Source{Kind: JSONSchema, Text: `{"type":"string","format":"hostname"}`},
		[]string{`"a-b.example"`, `"x"`}, []string{`"xn--X"`, `"a-"`, `"-a"`, `"` + strings.Repeat("a", 64) + `"`})
}

func TestFormatsMayHaveALongerMaxLength(t *testing.T) {
	// No text of the format is longer, so that the bound adds no states. They were above the limit.
	checkTexts(t, Source{Kind: JSONSchema, Text: `{"type":"string","format":"email","minLength":1,"maxLength":255}`},
		[]string{`"a@b.de"`}, []string{`""`, `"a@b"`})
	checkTexts(t, Source{Kind: JSONSchema, Text: `{"type":"string","pattern":"^a{0,3}$","minLength":1,"maxLength":3}`},
		[]string{`"a"`, `"aaa"`}, []string{`""`, `"aaaa"`})
	checkTexts(t, Source{Kind: JSONSchema, Text: `{"type":"string","pattern":"^é{0,3}$","maxLength":2}`},
		[]string{`""`, `"éé"`}, []string{`"ééé"`})
}

func TestRefsIntoEmbeddedSchemasAreRefused(t *testing.T) {
	// A $ref of the inner schema names a part of the schema with the $id, not of the root.
	_, err := Compile(Source{Kind: JSONSchema, Text: `{"$ref":"#/$defs/e/$defs/x","$defs":{"s":{"type":"string"},
		"e":{"$id":"http://e.example/","$defs":{"x":{"$ref":"#/$defs/s"},"s":{"type":"null"}}}}}`}, byteTokens())
	require.ErrorIs(t, err, ErrUnsupported)
}

func TestOneOfComparesLongNumbersAsEqual(t *testing.T) {
	_, err := Compile(Source{Kind: JSONSchema, Text: `{"oneOf":[{"const":[1e100]},{"const":[1e100]}]}`}, byteTokens())
	require.ErrorIs(t, err, ErrUnsupported)
}
