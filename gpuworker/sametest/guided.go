package sametest

import (
	"fmt"
	"sync"

	"github.com/millrace/millrace/gpuworker/guide"
)

// expressions are grammars of asks. Each goes on for ever, so that only the sampling parameters of an ask can leave it no token.
var expressions = [...]string{
	`([a-m][n-z]{1,3})*`, `(.(ab|c[d-k]?|[l-z]{2,}))*`, `((ab)*[c-z]{0,40}b)*`, `[acegikmoqsuwy]*`,
	`([a-m]ABCDE[n-z]|FG[a-z])*`, `ABCDEFG(A{40}[a-z])*`,
}

// forcing is the number of letters that are the text of one id each: a mask that allows such a letter alone forces its token.
const forcing = 7

// grammars are those of expressions, by vocabulary.
var grammars struct {
	sync.Mutex
	known map[string]*guide.Grammar
}

// begin is the state of an answer's grammar before its first token; the zero value for an ask without one. An id is a letter, the first
// ones a capital, but 0 and 1, which are no text: they end an answer whose ask stops at them.
func (a *ask) begin() guide.State {
	if a.expression == "" {
		return guide.State{}
	}
	vocab := models[a.model].desc.Vocab
	key := fmt.Sprint(vocab, a.expression)
	grammars.Lock()
	defer grammars.Unlock()
	g := grammars.known[key]
	if g == nil {
		v := guide.NewVocabulary(vocab, func(id int32) []byte {
			switch {
			case id < 2:
				return nil
			case id < 2+forcing:
				return []byte{'A' + byte(id-2)}
			}
			return []byte{'a' + byte(id%26)}
		}, 1<<16)
		var err error
		if g, err = guide.Compile(guide.Source{Kind: guide.Regex, Text: a.expression}, v); err != nil {
			panic(err) // the expressions are constants
		}
		if grammars.known == nil {
			grammars.known = map[string]*guide.Grammar{}
		}
		grammars.known[key] = g
	}
	return g.Start(a.stops)
}

// behind is the state after some tokens.
func behind(s guide.State, tokens []int32) (guide.State, error) {
	if s.Free() {
		return s, nil
	}
	for _, id := range tokens {
		var err error
		if s, err = s.Advance(id); err != nil {
			return s, fmt.Errorf("token %d of an answer alone: %w", id, err)
		}
	}
	return s, nil
}
