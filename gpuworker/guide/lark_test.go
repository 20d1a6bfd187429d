package guide

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLarkTexts(t *testing.T) {
	for name, tc := range map[string]struct {
		grammar string
		yes, no []string
	}{
		"rules and terminals": {
			"start: \"answer\" \":\" (NUMBER | word+)  // a comment\nword: /[a-z]+/ | \"it\"i -> pronoun # another\nNUMBER: \"-\"? DIGIT~1..3\nDIGIT: \"0\"..\"9\"",
			[]string{"answer:-123", "answer:7", "answer:abc", "answer:IT", "answer:abIT"}, []string{"answer:", "answer:1234", "answer:It7", "Answer:7", "answer: 7"},
		},
		"alternatives on lines": {
			"\n\n?start: a\n  | \"b\" a\n\n  | // none\n!a: (\"x\"\n | \"y\"\n)\n", []string{"x", "by", ""}, []string{"b", "xb"},
		},
		"counts": {
			`start: "a"{2} "b"{1,} "c"{,2} "d"{0,1} "e"~2 ["f"]`, []string{"aabee", "aabbbccdeef"}, []string{"abee", "aaee", "aabcccee", "aabddee", "aabe", "aabeeff"},
		},
		"white space that is ignored": {
			"start: A \"b\" A*\n%ignore / +/\n%ignore COMMENT\nCOMMENT: \"{\" /[^}]*/ \"}\"\nA: \"a\" \"-\"?",
			[]string{"ab", "a  b", "ab a-{x} a ", "a-{y z}b"}, []string{" ab", "a -b", "a\tb", "a{b"},
		},
		"left recursion": {
			"start: start (\"+\" | \"-\") t | t\nt: t \"*\" /[0-9]/ | /[0-9]/ | \"(\" start \")\"", []string{"1", "1+2*3-4", "(1-2)*3"}, []string{"", "+1", "1+", "1*(2)", "1 +2"},
		},
		"and, not": {
			"start: LINES \"!\"\nLINES: /[a-z\\n]*/ & ~DOUBLE & ~/a(?s:.*)/\nDOUBLE: ANY \"\\n\\n\" ANY\nANY: /(?s:.*)/",
			[]string{"!", "b\na\nc!", "\n!"}, []string{"a!", "b\n\nc!", "B!"},
		},
		"the shortest": {
			"start: call \"=\" /[0-9]+/\ncall[lazy]: TEXT \"<f\"\nTEXT: /(.|\\n)*/", []string{"hi <f=1", "<f=22"}, []string{"<f<f=1", "a=1", "<f=1<f=2"},
		},
		"a suffix": {
			"start: quote quote\nquote[capture, suffix=\"]\"]: \"[\" /.*/", []string{"[a][b]", "[][[]"}, []string{"[a]", "[a]]", "[a] [b]"},
		},
		"flags": {`start: /a.b/s "é"i /[k]/i`, []string{"a\nbéK", "axbÉk"}, []string{"abék", "axbék "}},
		"JSON":  {"start: \"call \" f+ \".\"\nf: %json {\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\n\"additionalProperties\":false}\n", []string{`call {"a":1}.`, `call {}{"a": 2}.`}, []string{`call .`, `call {"b":1}.`}},
		"imports": {
			"%import common.INT -> NATURAL\n%import common (CNAME, ESCAPED_STRING, C_COMMENT,NUMBER)\nstart: CNAME \"=\" (NATURAL | ESCAPED_STRING | C_COMMENT) | NUMBER",
			[]string{"x_1=07", `y="a\"b"`, `z=/* a**b */`, "1.5e-7", ".5", "8"}, []string{"1x=7", `y="a\"`, "z=/* */ */", "1e", "-5"},
		},
		"strings": {`start: "\"\\\n\x41\u00e9/\/\\x41"`, []string{"\"\\\nAé//\\x41"}, []string{"\"\\\nAé//\\A"}},
	} {
		t.Run(name, func(t *testing.T) { checkTexts(t, Source{Kind: Lark, Text: tc.grammar}, tc.yes, tc.no) })
	}
}

func TestLarkRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		grammar string
		kind    error
		path    string
	}{
		"no start":                {"a: \"x\"", ErrSyntax, "line 1, column 7"},
		"an unknown name":         {"start: \"é\" (\"x\"\n| b)", ErrSyntax, "line 2, column 3"},
		"twice":                   {"start: \"x\"\nstart: \"y\"", ErrSyntax, "line 2, column 1"},
		"an open string":          {"start: \"x", ErrSyntax, "line 1, column 8"},
		"an open group":           {"start: (\"x\" \"y\"\n", ErrSyntax, "line 1, column 8"},
		"an open expression":      {"start: /x\\/", ErrSyntax, "line 1, column 8"},
		"a string's end":          {"start: \"x\\", ErrSyntax, "line 1, column 8"},
		"an expression's end":     {"start: /x\\", ErrSyntax, "line 1, column 8"},
		"an unknown escape":       {`start: "\q"`, ErrSyntax, "line 1, column 8"},
		"a bad expression":        {"start: \"a\" /(/", ErrSyntax, "line 1, column 12"},
		"lookahead":               {"start: /(?=a)b/", ErrUnsupported, "line 1, column 8"},
		"a flag":                  {"start: /a/ix", ErrUnsupported, "line 1, column 12"},
		"an empty range":          {`start: "b".."a"`, ErrSyntax, "line 1, column 8"},
		"a special token":         {"start: \"a\" <|python_tag|> \"b\"", ErrUnsupported, "line 1, column 12"},
		"another grammar":         {"start: @fcall", ErrUnsupported, "line 1, column 8"},
		"a structured regex":      {"start: A\nA: %regex {\"substring_chars\":\"a\"}", ErrUnsupported, "line 2, column 4"},
		"a nested grammar":        {"start: %lark { start: \"a\" }", ErrUnsupported, "line 1, column 8"},
		"options":                 {"%llguidance {}\nstart: \"a\"", ErrUnsupported, "line 1, column 1"},
		"a declaration":           {"start: \"a\"\n%declare B", ErrUnsupported, "line 2, column 1"},
		"an unknown statement":    {"%nothing", ErrSyntax, "line 1, column 1"},
		"another library":         {"%import python.NAME", ErrUnsupported, "line 1, column 9"},
		"an unknown terminal":     {"%import common (WS, XX)", ErrUnsupported, "line 1, column 21"},
		"a template":              {"start: a{\"x\"}\na{b}: b", ErrSyntax, "line 1, column 8"},
		"the rule of a template":  {"a{b}: b", ErrUnsupported, "line 1, column 2"},
		"a parameter":             {"start::_: \"a\"", ErrUnsupported, "line 1, column 6"},
		"a priority":              {"A.2: \"a\"", ErrUnsupported, "line 1, column 2"},
		"a limit of tokens":       {"start[max_tokens=3]: /.*/", ErrUnsupported, "line 1, column 7"},
		"a stop":                  {"start[stop=\"x\"]: /.*/", ErrUnsupported, "line 1, column 7"},
		"attributes of terminals": {"A[lazy]: /.*/", ErrSyntax, "line 1, column 1"},
		"mixed letters":           {"startHere: \"a\"", ErrSyntax, "line 1, column 1"},
		"a rule in a terminal":    {"start: A\nA: b\nb: \"x\"", ErrSyntax, "line 2, column 4"},
		"a terminal in itself":    {"start: A\nA: \"x\" B?\nB: A", ErrUnsupported, "line 3, column 4"},
		"JSON in a terminal":      {"start: A\nA: %json {}", ErrUnsupported, "line 2, column 4"},
		"and in a rule":           {"start: \"a\" & \"b\"", ErrUnsupported, "line 1, column 8"},
		"not in a rule":           {"start: ~\"a\"", ErrUnsupported, "line 1, column 8"},
		"a schema's keyword":      {"start: \"a\" %json {\"properties\":{\"a\":{\"unevaluatedItems\":false}}}", ErrUnsupported, "line 1, column 12, #/properties/a/unevaluatedItems"},
		"no schema":               {"start: %json {", ErrSyntax, "line 1, column 8"},
		"indirect left recursion": {"start: a\na: b \"x\"\nb: a \"y\" | \"z\"", ErrUnsupported, ""},
		"not of not":              {"start: A\nA: ~~\"a\"", ErrSyntax, "line 2, column 5"},
		"no end":                  {"start: start \"x\"", ErrUnsupported, ""},
		"bounds that are wrong":   {"start: \"a\"~3..1", ErrSyntax, "line 1, column 8"},
		"a count too high":        {"start: \"a\"{70000}", ErrLimit, "line 1, column 8"},
		"no count":                {"start: \"a\"{x}", ErrSyntax, "line 1, column 8"},
		"what follows":            {"start: \"a\" ) \"b\"", ErrSyntax, "line 1, column 12"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(Source{Kind: Lark, Text: tc.grammar}, byteTokens())
			require.ErrorIs(t, err, tc.kind)
			var problem *Error
			require.ErrorAs(t, err, &problem)
			require.Equal(t, tc.path, problem.Path, problem.Problem)
		})
	}
}

func TestLenientLarkNamesWhatItDrops(t *testing.T) {
	g := compile(t, Source{Kind: Lark, Lenient: true, Text: "start: a\na: %json {\"type\":\"string\",\"format\":\"iri\"}"})
	require.Equal(t, []string{"line 2, column 4, #/format"}, g.Dropped())
}

// Grammars that would take for ever are refused, or compile in bounded work.
func TestHostileLarkIsBounded(t *testing.T) {
	chain := func(line string) string { // each terminal has the one before twice
		var text strings.Builder
		text.WriteString("start: T60\nT0: /[ab]*a[ab]{9}/\n")
		for i := 1; i <= 60; i++ {
			fmt.Fprintf(&text, line+"\n", i, i-1, i-1)
		}
		return text.String()
	}
	for name, grammar := range map[string]string{
		"doubling":           chain("T%d: T%d \"x\" T%d"),
		"doubling unions":    chain("T%d: (T%d | \"x\" T%d)+"),
		"doubling of not":    chain("T%d: ~T%d & ~(\"x\" T%d)"),
		"nested groups":      "start: " + strings.Repeat("(", 9999),
		"nested negations":   "start: A\nA: " + strings.Repeat("~(", 60) + "\"a\"" + strings.Repeat(")", 60),
		"nested counts":      "start: " + strings.Repeat("(", 40) + "\"a\"" + strings.Repeat("){9}", 40),
		"automata of counts": "start: A\nA: /a.{900}b.{900}c/ & /.{1000}x.{1000}/",
		"many names":         "start: \"x\"\n" + strings.Repeat("%ignore \" \"\n", 20000),
		"schemas":            "start: " + strings.Repeat(`%json {"enum":[1,2,{"a":"b"}]} `, 6000),
		"a long text":        strings.Repeat(" ", maxSource+1),
		"no text":            "start: A\nA: /x/ & /y/",
	} {
		t.Run(name, func(t *testing.T) {
			g, err := Compile(Source{Kind: Lark, Text: grammar}, byteTokens())
			if err != nil {
				require.True(t, errors.Is(err, ErrLimit) || errors.Is(err, ErrUnsupported), err)
				return
			}
			require.Less(t, g.Bytes(), 96<<20)
		})
	}
}
