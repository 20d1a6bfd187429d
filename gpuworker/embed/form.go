package embed

import (
	"errors"
	"fmt"
	"strings"
)

// Errors of a request that a model cannot serve, for errors.Is.
var (
	// ErrNotAReranker: the model has neither a rerank template nor the tokens of one.
	ErrNotAReranker = errors.New("the model cannot rerank")
	// ErrNoInstruction: the request has an instruction, and the model's template has no place for one.
	ErrNoInstruction = errors.New("the model's rerank template has no place for an instruction")
)

// Names in a rerank template, and the line that an instruction replaces.
const (
	queryMark       = "{query}"
	documentMark    = "{document}"
	instructionMark = "<Instruct>: "
)

// qwen3 is the form that Qwen3-Reranker was trained with. Its files have it as a template named
// "rerank" if llama.cpp converted them as rerankers, and else not at all.
const qwen3 = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. " +
	"Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n" + instructionMark +
	"Given a web search query, retrieve relevant passages that answer the query\n<Query>: " + queryMark + "\n<Document>: " + documentMark +
	"<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

// form is a template in pieces: own[0] instruction own[1] query own[2] document own[3]. A form that
// takes no instruction has an empty own[1] and no preset.
type form struct {
	own              [4]string
	takesInstruction bool
	preset           string // instruction of the template itself
}

// parseForm divides a template. ok is false if it does not have a query and then a document.
func parseForm(template string) (f form, ok bool) {
	head, rest, ok := strings.Cut(template, queryMark)
	if !ok {
		return form{}, false
	}
	if f.own[2], f.own[3], ok = strings.Cut(rest, documentMark); !ok {
		return form{}, false
	}
	f.own[0] = head
	if before, line, found := strings.Cut(head, instructionMark); found {
		if preset, after, whole := strings.Cut(line, "\n"); whole {
			f.own[0], f.own[1] = before+instructionMark, "\n"+after
			f.preset, f.takesInstruction = preset, true
		}
	}
	return f, true
}

// check returns ErrNoInstruction for an instruction that the form does not take.
func (f form) check(q Query) error {
	if q.Instruction != "" && !f.takesInstruction {
		return fmt.Errorf("%w: leave instruction unset", ErrNoInstruction)
	}
	return nil
}

// text returns the text of a prompt, and the ranges of it that are the template's own.
func (f form) text(q Query, document string) (text string, own [][2]int) {
	instruction := q.Instruction
	if instruction == "" {
		instruction = f.preset
	}
	var b strings.Builder
	for i, between := range []string{instruction, q.Text, document, ""} {
		start := b.Len()
		b.WriteString(f.own[i])
		if b.Len() > start {
			own = append(own, [2]int{start, b.Len()})
		}
		b.WriteString(between)
	}
	return b.String(), own
}
