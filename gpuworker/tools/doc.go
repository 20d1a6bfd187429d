// Package tools has the formats in which models write reasoning and tool calls.
//
// A Format is a description: the tags around reasoning, the grammar of an answer with calls, and a
// table of states with the marks that lead from one to another. Two things come from it:
//
//	Format.Constraint   tools and a choice -> a constraint of package guide, which masks follow
//	Format.Parser       bytes of an answer -> parts: content, reasoning, calls with name and arguments
//
//	content ──<tool_call>──► head ──{"name": "──► name ──"──► ... ──► arguments ──► tail ──</tool_call>──► content
//
// The constraint makes the text, so the parser finds each mark where the grammar put it, and guesses
// nothing. It holds back no more than the beginning of a mark. The state of a parser follows from the
// bytes that it was given, so a worker that resumes a stream computes it from the ids.
//
// Marks that are control tokens of a vocabulary are guide.Control and their name, so that text which
// spells a mark is text. Where a vocabulary has no such token, the mark is its text.
//
// The package is pure: it has no clock, no I/O and no goroutines. It has no knowledge of requests,
// messages or model files.
package tools
