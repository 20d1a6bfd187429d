package guide

import (
	"slices"
	"strings"
)

// literals is one of some texts, as a tree of what they share at the beginning. A union of all would cost
// each of them in every derivative.
func (b *builder) literals(texts []string) *node {
	texts = slices.Compact(slices.Sorted(slices.Values(texts)))
	return b.sortedLiterals(texts, 0)
}

// maxShared bounds the depth of the tree: texts that differ later are a union.
const maxShared = 128

func (b *builder) sortedLiterals(texts []string, depth int) *node {
	var kids []*node
	if b.spend(1 + len(texts)); b.err != nil {
		return b.none
	}
	if depth == maxShared {
		for _, text := range texts {
			kids = append(kids, b.lit(text))
		}
		return b.alt(kids...)
	}
	for len(texts) > 0 {
		first := texts[0]
		if first == "" {
			kids, texts = append(kids, b.empty), texts[1:]
			continue
		}
		n := 1
		for n < len(texts) && texts[n][0] == first[0] {
			n++
		}
		common := first // of the group, whose texts are sorted
		for !strings.HasPrefix(texts[n-1], common) {
			common = common[:len(common)-1]
		}
		rest := make([]string, n)
		for i, text := range texts[:n] {
			rest[i] = text[len(common):]
		}
		kids, texts = append(kids, b.cat(b.lit(common), b.sortedLiterals(rest, depth+1))), texts[n:]
	}
	return b.alt(kids...)
}

// either is one of some terms, those that are literals as a tree.
func (b *builder) either(terms []*node) *node {
	var texts []string
	var others []*node
	for _, n := range terms {
		if n.kind == kindLit {
			texts = append(texts, n.lit)
		} else {
			others = append(others, n)
		}
	}
	if len(texts) < 2 {
		return b.alt(terms...)
	}
	return b.alt(append(others, b.literals(texts))...)
}
