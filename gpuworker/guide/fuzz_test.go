package guide

import (
	"encoding/json"
	"regexp"
	"testing"
)

// fuzzed walks a few tokens along the masks of a source, if it compiles, and checks that no mask leads to
// a state without one.
func fuzzed(t *testing.T, s Source, v *Vocabulary, picks []byte) (text string, ended bool) {
	t.Helper()
	g, err := Compile(s, v)
	if err != nil {
		return "", false
	}
	state, mask := g.Start([]int32{256}), make([]uint32, v.Words())
	for _, p := range picks[:min(len(picks), 12)] {
		if err := state.Mask(mask); err != nil {
			return "", false // stuck at the deepest level, or too ambiguous
		}
		ids := setBits(mask)
		id := ids[int(p)%len(ids)]
		if id == 256 {
			return text, true
		}
		text += string([]byte{byte(id)})
		if state, err = state.Advance(id); err != nil {
			t.Fatalf("%q allows %d after %q and does not take it: %v", s.Text, id, text, err)
		}
	}
	return text, state.Complete()
}

func FuzzRegex(f *testing.F) {
	for _, s := range []string{`a+b{2,3}`, `(^a|b)c$`, `[^é-漢]{0,900}`, `((a{1,9}){1,9}){1,9}`, `(?i)\pL`} {
		f.Add(s, []byte{1, 2, 3, 4, 5})
	}
	v := byteTokens()
	f.Fuzz(func(t *testing.T, source string, picks []byte) {
		text, ended := fuzzed(t, Source{Kind: Regex, Text: source}, v, picks)
		re, err := regexp.Compile(`^(?:` + unicodeEscapes(source) + `)$`)
		if ended && err == nil && !re.MatchString(text) {
			t.Fatalf("%q gives %q", source, text)
		}
	})
}

func FuzzGBNF(f *testing.F) {
	for _, s := range []string{"root ::= \"a\" | [b-d]+ x\nx ::= (\"y\" root?){1,3}", `root ::= [^"\\\x7F\x00-\x1F]* # free`} {
		f.Add(s, []byte{1, 2, 3, 4, 5})
	}
	v := byteTokens()
	f.Fuzz(func(t *testing.T, source string, picks []byte) {
		fuzzed(t, Source{Kind: GBNF, Text: source}, v, picks)
	})
}

func FuzzLark(f *testing.F) {
	for _, s := range []string{
		"start: \"a\" | /[b-d]+/i x~1..2\nx: \"y\" [start] | %json {\"type\":\"null\"} -> z", "start: start \"+\" T | T // left\nT: ~\"a\" & /[a-c]{1,3}/\n%ignore \" \"",
		"?start[lazy]: A{,3} \"\\x21\"\nA: \"0\"..\"9\"\n%import common (WS, INT)\n%import common.INT -> I",
	} {
		f.Add(s, []byte{1, 2, 3, 4, 5})
	}
	v := byteTokens()
	f.Fuzz(func(t *testing.T, source string, picks []byte) {
		fuzzed(t, Source{Kind: Lark, Text: source}, v, picks)
	})
}

func FuzzJSONSchema(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"type":"object","properties":{"a":{"$ref":"#"}}}`, `{"oneOf":[{"const":1},{"type":"string","pattern":"^a|b$","maxLength":3}]}`,
		`{"type":"integer","minimum":-1e3,"multipleOf":7}`, `{"allOf":[{"anyOf":[{},{"enum":[[1],{"a":null}]}]}],"items":false}`,
	} {
		f.Add(s, []byte{1, 2, 3, 4, 5})
	}
	v := byteTokens()
	f.Fuzz(func(t *testing.T, source string, picks []byte) {
		for _, lenient := range []bool{false, true} {
			text, ended := fuzzed(t, Source{Kind: JSONSchema, Text: source, Lenient: lenient}, v, picks)
			if ended && !json.Valid([]byte(text)) {
				t.Fatalf("%q gives %q", source, text)
			}
		}
	})
}
