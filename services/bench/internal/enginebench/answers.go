package enginebench

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/services/bench/internal/gauge"
)

// answers are the tokens of sequences, by their number: the same in every batch and every time.
type answers map[int][]int32

// compare holds what a batch gave against what its sequences gave before, and remembers what is new. An error wraps ErrTokens and says which
// sequences differ and from where on: those of one tile from one token on tell of a product, one sequence by itself of what it alone meets.
func (a answers) compare(tokens [][]int32) error {
	var others []int
	var first string
	for i, got := range tokens {
		want, known := a[i]
		if !known {
			a[i] = slices.Clone(got)
			continue
		}
		if slices.Equal(got, want) {
			continue
		}
		if len(others) == 0 {
			at := 0
			for at < min(len(got), len(want)) && got[at] == want[at] {
				at++
			}
			first = fmt.Sprintf("sequence %d from token %d on, with digest %.16s instead of %.16s", i, at, gauge.Digest(got), gauge.Digest(want))
		}
		others = append(others, i)
	}
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("%w: in a batch of %d, %d sequences have other tokens than before or than Generate gives: %s; all of them: %v",
		ErrTokens, len(tokens), len(others), first, others)
}
