// Package guide constrains generated text: it compiles a choice, a regular expression, a JSON
// schema or a grammar (GBNF, or Lark's notation), and computes which tokens may follow the tokens
// so far.
//
// A grammar is a set of rules over byte strings. A rule's body is a term: a byte, a literal, a
// sequence, a union, a counted repetition, a call of a rule, or an automaton. The state of a text
// is a term too: the texts with which it may go on. The state after a byte is the derivative of
// the state by it:
//
//	rule value:  "[" value "]" | "x"
//	state:       value            --[-->   value "]"   --x-->   "]"   --]-->   (empty: the text may end)
//
// What follows the head of a state is the stack of a pushdown automaton. Terms are hash-consed, so
// that equal states are one pointer, a derivative is computed once, and a stack shares its tail
// with others. Intersections and complements, which patterns with lengths and the names of
// undeclared properties need, become deterministic automata when the grammar is built, and states
// of these from which no text ends are dropped. So every state that is reached leads to a whole
// text, and a mask never leads into a dead end unless the vocabulary cannot spell the text.
//
// A mask is a walk of the vocabulary's trie beside the derivatives (Vocabulary.walk): a byte that
// has none drops every token below. Masks are remembered by state.
//
// A State is a value that follows from the grammar, the vocabulary and the ids alone. A caller may
// copy it, keep it while a sequence is preempted, and compute it again from the ids.
//
// Work and memory are bounded by counts that do not depend on what is remembered: a source is
// accepted, and a mask is computed, on every machine or on none. The package is pure: it has no
// clock, no I/O and no goroutines. It has no knowledge of models or requests.
package guide
