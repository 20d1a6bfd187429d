package guide

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// thoughts is a text with a part between tags, then one of two answers.
func thoughts(limit *Limit) Source {
	free := Term{Op: Free, Without: []string{"</t>"}}
	part := Term{Op: Sequence, Of: []Term{{Text: "<t>"}, free, {Text: "</t>"}}}
	if limit != nil && limit.Open == "" {
		part.Of = part.Of[1:]
	}
	return Source{Kind: Composed, Limit: limit, Term: &Term{Op: Sequence, Of: []Term{
		{Op: Repeat, High: 1, Of: []Term{part}}, {Op: Union, Of: []Term{{Text: "yes"}, {Text: "no"}}},
	}}}
}

// After the last token of the part, the text goes on with its end alone. The masks before are those without a limit.
func TestLimitEndsItsPart(t *testing.T) {
	for name, tc := range map[string]struct {
		limit  Limit
		text   []string // tokens
		forced string   // what the grammar forces then
	}{
		"none allowed":               {Limit{"<t>", "</t>", 0}, []string{"<t>"}, "</t>"},
		"none allowed, begun before": {Limit{"", "</t>", 0}, nil, "</t>"},
		"one left":                   {Limit{"<t>", "</t>", 2}, []string{"<t>", "a"}, ""},
		"all used":                   {Limit{"<t>", "</t>", 2}, []string{"<t>", "a", "bc"}, "</t>"},
		"begun before":               {Limit{"", "</t>", 2}, []string{"a", "bc"}, "</t>"},
		"a tag in several tokens":    {Limit{"<t>", "</t>", 1}, []string{"<", "t>", "a"}, "</t>"},
		"a tag with what follows":    {Limit{"<t>", "</t>", 1}, []string{"<t>a", "b"}, "</t>"},
		"inside the end":             {Limit{"<t>", "</t>", 2}, []string{"<t>", "a", "</"}, "</t>"},
		"an end of its own":          {Limit{"<t>", "</t>", 3}, []string{"<t>", "a", "</", "t>"}, ""},
		"almost an end":              {Limit{"<t>", "</t>", 3}, []string{"<t>", "<</", "t", "a"}, "</t>"},
		"no part":                    {Limit{"<t>", "</t>", 0}, []string{"y"}, "es"},
		"inside a character":         {Limit{"<t>", "</t>", 1}, []string{"<t>", "\xc3"}, ""},
		"behind the character":       {Limit{"<t>", "</t>", 1}, []string{"<t>", "\xc3", "\xa9"}, "</t>"},
	} {
		t.Run(name, func(t *testing.T) {
			g := compile(t, thoughts(&tc.limit))
			s := g.Start([]int32{256})
			for _, token := range tc.text {
				var err error
				s, err = s.AdvanceText(token)
				require.NoError(t, err)
			}
			forced, mask := "", make([]uint32, s.Words())
			for !s.Complete() {
				require.NoError(t, s.Mask(mask))
				ids := setBits(mask)
				if len(ids) > 1 {
					break
				}
				forced += string([]byte{byte(ids[0])})
				var err error
				s, err = s.Advance(ids[0])
				require.NoError(t, err)
			}
			require.Equal(t, tc.forced, forced)
		})
	}
}

// Random texts under a limit have at most so many tokens in their part, and are texts without the limit. A state is
// the same after its ids in one walk, one by one, and when the arena was dropped in between.
func TestLimitedTextsAreShortEnough(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	cut := 0
	for i := range 200 {
		limit := Limit{"<t>", "</t>", i % 5}
		g, free := compile(t, thoughts(&limit)), compile(t, thoughts(nil))
		start := g.Start([]int32{256})
		s, mask, again := start, make([]uint32, start.Words()), make([]uint32, start.Words())
		var ids []int32
		text, inside := "", 0
		for {
			require.NoError(t, s.Mask(mask))
			w := start.Walk(ids, again)
			for !w.Run(100) {
			}
			_, err := w.Result()
			require.NoError(t, err)
			require.Equal(t, mask, again, "%q", text)
			allowed := setBits(mask)
			id := allowed[rng.IntN(len(allowed))]
			if text == "" && mask['<'>>5]&(1<<('<'&31)) != 0 {
				id = '<'
			}
			if id == 256 {
				break
			}
			if ids, text = append(ids, id), text+string([]byte{byte(id)}); len(text) > 3 && !strings.Contains(text, "</t>") {
				inside++
			}
			s, err = s.Advance(id)
			require.NoError(t, err)
			if rng.IntN(4) == 0 {
				g.mu.rules = -maxGrammarBytes
			}
		}
		require.True(t, accepts(free, text), "%q", text)
		require.LessOrEqual(t, inside, limit.Tokens+3+len("</t>")-1, "%q", text)
		if inside >= limit.Tokens {
			cut++
		}
	}
	require.Greater(t, cut, 150)
}
