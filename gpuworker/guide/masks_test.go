package guide

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// wordVocabulary is a random vocabulary over the bytes of JSON, with every byte, equal texts, an end
// token and ids without text.
func wordVocabulary(rng *rand.Rand, size int) *Vocabulary {
	alphabet := []string{`"`, `{`, `}`, `[`, `]`, `:`, `,`, ` `, "\n", `\`, `a`, `b`, `c`, `0`, `1`, `9`, `-`, `.`, "é", "\xe6\xbc", "true", "null", `":`, `, "`}
	texts := make([][]byte, size)
	for i := range 256 {
		texts[i] = []byte{byte(i)}
	}
	for i := 257; i < size; i++ {
		if rng.IntN(20) == 0 {
			continue
		}
		for range 1 + rng.IntN(5) {
			texts[i] = append(texts[i], alphabet[rng.IntN(len(alphabet))]...)
		}
	}
	return NewVocabulary(size, func(id int32) []byte { return texts[id] }, 1<<16)
}

var maskedSources = map[string]Source{
	"any JSON": {Kind: JSONSchema, Text: `{}`},
	"object": {Kind: JSONSchema, Text: `{"type":"object","properties":{"a":{"type":"integer","minimum":-10,"maximum":1900},"ab":{"type":"string","maxLength":5},
		"c":{"type":"array","items":{"$ref":"#"}}},"required":["ab"]}`},
	"expression": {Kind: Regex, Text: `("[abc]{2,9}"|[019]+(\.[0-9]+)?){1,4}é*`},
	"counted":    {Kind: JSONSchema, Text: `{"type":"string","minLength":3,"maxLength":21}`},
	"any text":   {Kind: Regex, Text: `(?s).{0,40}`},
	"choice":     {Kind: Choice, Options: []string{"true", "null", "trueish", `{"a":1}`, "é"}},
	"grammar":    {Kind: GBNF, Text: "root ::= v (\", \" v)*\nv ::= [abc]+ | \"[\" root? \"]\" | [^a]"},
}

// Along random texts, each mask has exactly the tokens that continue the text, each tried alone byte by
// byte on a second compilation, and the end token where the text may end.
func TestMasksEqualBruteForce(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const end = 256
	for name, source := range maskedSources {
		t.Run(name, func(t *testing.T) {
			v := wordVocabulary(rng, 1500)
			g, err := Compile(source, v)
			require.NoError(t, err)
			second, err := Compile(source, byteTokens())
			require.NoError(t, err)
			checked := 0
			for range 12 {
				s, at := g.Start([]int32{end, 97}), second.Start(nil) // 97 is text and ends nothing
				for range 25 {
					mask := make([]uint32, v.Words())
					require.NoError(t, s.Mask(mask))
					var allowed []int32
					for id := range int32(v.size) {
						want := id == end && at.Complete()
						if text := v.bytesOf(id); len(text) > 0 {
							_, err := at.AdvanceText(string(text))
							want = err == nil
						}
						got := mask[id>>5]&(1<<(id&31)) != 0
						require.Equal(t, want, got, "token %d, %q", id, v.bytesOf(id))
						if got && id != end {
							allowed = append(allowed, id)
						}
						checked++
					}
					if len(allowed) == 0 {
						break
					}
					id := allowed[rng.IntN(len(allowed))]
					s, err = s.Advance(id)
					require.NoError(t, err)
					at, err = at.AdvanceText(string(v.bytesOf(id)))
					require.NoError(t, err)
				}
			}
			require.Positive(t, checked)
		})
	}
}

// A grammar that runs out of memory for its terms drops them: masks and states stay what they were.
func TestMasksOutliveTheArena(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	v := wordVocabulary(rng, 900)
	for name, source := range maskedSources {
		g, err := Compile(source, v)
		require.NoError(t, err)
		other, err := Compile(source, v)
		require.NoError(t, err)
		s, o := g.Start(nil), other.Start(nil)
		for i := range 40 {
			mask, again := make([]uint32, v.Words()), make([]uint32, v.Words())
			err, want := s.Mask(mask), o.Mask(again)
			require.Equal(t, want, err, name)
			require.Equal(t, again, mask, name)
			ids := setBits(mask)
			if len(ids) == 0 {
				break
			}
			id := ids[rng.IntN(len(ids))]
			s, err = s.Advance(id)
			require.NoError(t, err)
			o, err = o.Advance(id)
			require.NoError(t, err)
			if i%3 == 0 {
				g.mu.rules = -maxGrammarBytes
			}
		}
		require.Greater(t, g.mu.number, uint64(2))
	}
}

func setBits(mask []uint32) (ids []int32) {
	for id := range int32(32 * len(mask)) {
		if mask[id>>5]&(1<<(id&31)) != 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

func TestTokensThatAreNotAllowed(t *testing.T) {
	g := compile(t, Source{Kind: Regex, Text: "ab?"})
	s := g.Start([]int32{256, 'a'})
	require.False(t, s.Complete())
	for _, id := range []int32{'b', 256, -1, 300} {
		_, err := s.Advance(id)
		require.ErrorIs(t, err, ErrNotAllowed)
	}
	s, err := s.Advance('a')
	require.NoError(t, err)
	mask := make([]uint32, g.vocabulary.Words())
	require.NoError(t, s.Mask(mask))
	require.Equal(t, []int32{'b', 256}, setBits(mask))
}

func TestStuckWithoutEndToken(t *testing.T) {
	v := NewVocabulary(3, func(id int32) []byte { return []byte{"abc"[id]} }, 1<<10)
	g, err := Compile(Source{Kind: Choice, Options: []string{"a", "bx"}}, v)
	require.NoError(t, err)
	require.False(t, g.CanEnd([]int32{0, 5}))
	for _, id := range []int32{0, 1} {
		s, err := g.Start(nil).Advance(id)
		require.NoError(t, err)
		require.ErrorIs(t, s.Mask(make([]uint32, 1)), ErrStuck)
	}
}

// An expression whose alternatives multiply with every byte ends its own call, after bounded work.
func TestAmbiguityIsBounded(t *testing.T) {
	v := wordVocabulary(rand.New(rand.NewPCG(7, 8)), 1000)
	g, err := Compile(Source{Kind: GBNF, Text: "root ::= a{1,200} \"!\"\na ::= b{1,200}\nb ::= [a-c]{1,200} | \"a\" b \"b\" | \"a\" b \"c\""}, v)
	require.NoError(t, err)
	s := g.Start(nil)
	for range 300 {
		if err = s.Mask(make([]uint32, v.Words())); err != nil {
			break
		}
		s, err = s.Advance('a')
		require.NoError(t, err)
	}
	require.ErrorIs(t, err, ErrWork)
}

// Nesting is bounded by forbidding what would go deeper.
func TestNestingIsBounded(t *testing.T) {
	g := compile(t, Source{Kind: JSONSchema, Text: `{}`})
	s, depth := g.Start(nil), 0
	for ; ; depth++ {
		next, err := s.Advance('[')
		if err != nil {
			break
		}
		s = next
		require.Less(t, depth, maxStack)
	}
	require.Greater(t, depth, 500)
	_, err := s.Advance(']')
	require.NoError(t, err, "it may close")
}

func TestCachedMasksAreBounded(t *testing.T) {
	v := wordVocabulary(rand.New(rand.NewPCG(1, 1)), 600)
	v.masks.limit = 2000
	g, err := Compile(Source{Kind: Regex, Text: "a{0,500}b"}, v)
	require.NoError(t, err)
	s := g.Start(nil)
	for range 100 {
		require.NoError(t, s.Mask(make([]uint32, v.Words())))
		s, err = s.Advance('a')
		require.NoError(t, err)
	}
	require.LessOrEqual(t, v.masks.mu.bytes, 2000)
	require.Len(t, v.masks.mu.known, v.masks.mu.order.Len())
	require.True(t, slices.IsSortedFunc(v.plain.ids, func(a, b int32) int { return slices.Compare(v.text[a], v.text[b]) }))
}
