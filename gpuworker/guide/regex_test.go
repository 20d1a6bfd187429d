package guide

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRegexTexts(t *testing.T) {
	for name, tc := range map[string]struct {
		expression string
		yes, no    []string
	}{
		"a literal":          {`abc`, []string{"abc"}, []string{"", "ab", "abcd"}},
		"alternatives":       {`ab|ac|d*`, []string{"ab", "ac", "", "ddd"}, []string{"a", "abd"}},
		"counts":             {`(ab){2,3}c?`, []string{"abab", "abababc"}, []string{"ab", "abababab"}},
		"any character":      {`a.c`, []string{"abc", "aéc", "a😀c"}, []string{"a\nc", "a\xffc", "ac"}},
		"a class":            {`[^a-c]+`, []string{"d", "漢字", "\n"}, []string{"a", "da", ""}},
		"anchors at the end": {`^(a|b)$`, []string{"a"}, []string{"ab"}},
		"an anchored branch": {`(^a|b)c$`, []string{"ac", "bc"}, []string{"c"}},
		"letters":            {`\pL{2}\d`, []string{"éa1", "漢字0"}, []string{"a1", "ab"}},
		"without case":       {`(?i)stra[sß]e`, []string{"STRASE", "straße", "sTraſe"}, []string{"stra"}},
		"a code":             {`\u00e9\x{1F600}`, []string{"é😀"}, []string{"e"}},
		"nullable and loop":  {`(a*b*)*c`, []string{"c", "abbac"}, []string{"ab"}},
		"nothing":            {``, []string{""}, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) { checkTexts(t, Source{Kind: Regex, Text: tc.expression}, tc.yes, tc.no) })
	}
}

func TestSourceRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		source Source
		kind   error
		says   string
	}{
		"an open group":       {Source{Kind: Regex, Text: `(a`}, ErrSyntax, "missing closing"},
		"a back reference":    {Source{Kind: Regex, Text: `(a)\1`}, ErrSyntax, "invalid escape"},
		"lookahead":           {Source{Kind: Regex, Text: `(?=a)`}, ErrUnsupported, "Perl syntax"},
		"an anchor inside":    {Source{Kind: Regex, Text: `a^b`}, ErrUnsupported, "anchors"},
		"a huge count":        {Source{Kind: Regex, Text: `a{0,100000}`}, ErrSyntax, "repeat count"},
		"nested counts":       {Source{Kind: Regex, Text: `((a{1,300}){1,300}){1,300}`}, ErrSyntax, "repeat"},
		"no text":             {Source{Kind: Regex, Text: `[^\x00-\x{10FFFF}]`}, ErrUnsupported, "no text"},
		"too long":            {Source{Kind: Regex, Text: strings.Repeat("a", maxSource+1)}, ErrLimit, "bytes"},
		"not UTF-8":           {Source{Kind: Regex, Text: "a\xff"}, ErrSyntax, "UTF-8"},
		"deep groups":         {Source{Kind: Regex, Text: strings.Repeat("(?:a|(", 100) + strings.Repeat("))", 100)}, ErrLimit, "nests deeper"},
		"no options":          {Source{Kind: Choice}, ErrSyntax, "no options"},
		"an empty option":     {Source{Kind: Choice, Options: []string{"a", ""}}, ErrSyntax, "option 1 is empty"},
		"too many options":    {Source{Kind: Choice, Options: make([]string, maxOptions+1)}, ErrLimit, "options"},
		"an unknown kind":     {Source{}, ErrUnsupported, "kind 0"},
		"no root":             {Source{Kind: GBNF, Text: `a ::= "b"`}, ErrSyntax, `"root" is not defined`},
		"an undefined rule":   {Source{Kind: GBNF, Text: "root ::= \"a\"\n | x"}, ErrSyntax, `line 2: the rule "x" is not defined`},
		"a rule twice":        {Source{Kind: GBNF, Text: "root ::= \"a\"\nroot ::= \"b\""}, ErrSyntax, "twice"},
		"left recursion":      {Source{Kind: GBNF, Text: `root ::= root "a" | "b"`}, ErrUnsupported, "begins with itself"},
		"hidden recursion":    {Source{Kind: GBNF, Text: "root ::= a* b\na ::= \"x\"?\nb ::= a root | \"c\""}, ErrUnsupported, "begins with itself"},
		"an endless grammar":  {Source{Kind: GBNF, Text: `root ::= "a" root`}, ErrUnsupported, "no text"},
		"an unclosed literal": {Source{Kind: GBNF, Text: "root ::= \"a\n"}, ErrSyntax, "line 2: a literal or class is not closed"},
		"an unknown escape":   {Source{Kind: GBNF, Text: `root ::= "\q"`}, ErrSyntax, "escape"},
		"a bad repetition":    {Source{Kind: GBNF, Text: `root ::= "a"{x}`}, ErrSyntax, `"x" is no count`},
		"reversed bounds":     {Source{Kind: GBNF, Text: `root ::= "a"{3,2}`}, ErrSyntax, "bounds 3 and 2"},
		"a huge GBNF count":   {Source{Kind: GBNF, Text: `root ::= "a"{0,100000}`}, ErrLimit, "more than 65536 times"},
		"nested GBNF counts":  {Source{Kind: GBNF, Text: `root ::= (("a"{1,300}){1,300}){1,300}`}, ErrLimit, "more than 65536 times"},
		"an open group in it": {Source{Kind: GBNF, Text: `root ::= ("a"`}, ErrSyntax, "not closed"},
		"a stray bracket":     {Source{Kind: GBNF, Text: `root ::= "a" )`}, ErrSyntax, `")" stands`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(tc.source, byteTokens())
			require.ErrorIs(t, err, tc.kind)
			require.ErrorContains(t, err, tc.says)
		})
	}
}

func TestGBNFTexts(t *testing.T) {
	checkTexts(t, Source{Kind: GBNF, Text: `
# a list of sums
root  ::= sum ("," ws sum)*   # and more
sum   ::= term
        | term "+" sum
term  ::= [0-9]{1,2} | "(" sum ")" | [^\x00-\x7f]
ws    ::= [ \t]? # one
`}, []string{"1", "12+(3+4),5", "((1)), 2", "é"}, []string{"", "123", "1+", "(1", "1,  2", "1)"})
}

func TestGBNFLineEndsAndLowerBounds(t *testing.T) {
	checkTexts(t, Source{Kind: GBNF, Text: "root ::= \"a\n\" \"b\"{,2}\n"}, []string{"a\n", "a\nbb"}, []string{"a", "a\nbbb"})
}

func TestChoiceTexts(t *testing.T) {
	checkTexts(t, Source{Kind: Choice, Options: []string{"yes", "no", "yes, but"}}, []string{"yes", "no", "yes, but"}, []string{"", "y", "yes,", "nob"})
}

// randomExpression draws an expression over a few letters, in Go's syntax.
func randomExpression(rng *rand.Rand, depth int) string {
	if depth == 0 {
		return []string{"a", "b", "c", ".", "[ab]", "[^a]", "é", "ab", "(?i)B"}[rng.IntN(9)]
	}
	sub := func() string { return "(?:" + randomExpression(rng, depth-1) + ")" }
	switch rng.IntN(6) {
	case 0:
		return sub() + "*"
	case 1:
		return sub() + "?"
	case 2:
		return sub() + []string{"{2}", "{1,3}", "{0,2}", "{2,}", "+"}[rng.IntN(5)]
	case 3:
		return sub() + "|" + sub()
	default:
		return sub() + sub()
	}
}

// Random expressions accept the texts that Go's regexp accepts, as a whole and, as a schema's pattern,
// anywhere.
func TestRandomExpressionsAgreeWithGo(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	accepted := 0
	for range 300 {
		expression := randomExpression(rng, rng.IntN(5))
		want := regexp.MustCompile(`^(?:` + expression + `)$`)
		anywhere := regexp.MustCompile(expression)
		g := compile(t, Source{Kind: Regex, Text: expression})
		b := newBuilder()
		b.bodies = []*node{b.pattern(plain, expression, false)}
		search, err := b.finish(byteTokens())
		require.NoError(t, err)
		for range 40 {
			text := ""
			for range rng.IntN(7) {
				text += []string{"a", "b", "c", "é", "\n", "B"}[rng.IntN(6)]
			}
			require.Equal(t, want.MatchString(text), accepts(g, text), "%s on %q", expression, text)
			require.Equal(t, anywhere.MatchString(text), accepts(search, text), "%s anywhere in %q", expression, text)
			if accepts(g, text) {
				accepted++
			}
		}
	}
	require.Greater(t, accepted, 1000)
}
