package target

import (
	"errors"
	"io"
	"strings"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// Output is one continuation of a generation that has ended.
type Output struct {
	Text      string // the content
	Reasoning string
	Calls     []ToolCall
	// All is the text of all kinds, which the details divide.
	All      string
	TokenIDs []uint32
	// Details has an entry for each token if the request asked for them.
	Details  []*pb.TokenDetail
	Finished *pb.Finished
}

// Answer is a whole generation.
type Answer struct {
	// Started is the last one: see Started.exact.
	Started *pb.Started
	// PromptTokenIDs and PromptDetails are filled if the request asked for them.
	PromptTokenIDs []uint32
	PromptDetails  []*pb.TokenDetail
	Outputs        []Output
}

// Collect reads a generation of n outputs to its end.
func Collect(g *Generation, n int) (*Answer, error) {
	a := &Answer{Outputs: make([]Output, n)}
	texts, parts := make([]strings.Builder, n), make([]parted, n)
	for {
		e, err := g.Next()
		if errors.Is(err, io.EOF) {
			for i := range texts {
				o := &a.Outputs[i]
				o.All = texts[i].String()
				parts[i].fill(o)
			}
			return a, nil
		}
		if err != nil {
			return nil, err
		}
		switch e := e.GetEvent().(type) {
		case *pb.GenerateResponse_Started:
			a.Started = e.Started
		case *pb.GenerateResponse_Prompt:
			a.PromptTokenIDs = append(a.PromptTokenIDs, e.Prompt.GetTokenIds()...)
			a.PromptDetails = append(a.PromptDetails, e.Prompt.GetDetails()...)
		case *pb.GenerateResponse_Tokens:
			i := int(e.Tokens.GetOutputIndex())
			if i >= n {
				return nil, errors.New("the server sent tokens of a continuation that was not requested")
			}
			o := &a.Outputs[i]
			texts[i].WriteString(e.Tokens.GetText())
			parts[i].add(e.Tokens)
			o.TokenIDs = append(o.TokenIDs, e.Tokens.GetTokenIds()...)
			o.Details = append(o.Details, e.Tokens.GetDetails()...)
		case *pb.GenerateResponse_Finished:
			if i := int(e.Finished.GetOutputIndex()); i < n {
				a.Outputs[i].Finished = e.Finished
			}
		}
	}
}

// Usage returns the sum of the outputs' usage: the prompt counts once.
func (a *Answer) Usage() *pb.Usage {
	sum := &pb.Usage{PromptTokens: a.Started.GetPromptTokens(), CachedTokens: a.Started.GetCachedTokens()}
	for _, o := range a.Outputs {
		sum.CompletionTokens += o.Finished.GetUsage().GetCompletionTokens()
		sum.ReasoningTokens += o.Finished.GetUsage().GetReasoningTokens()
	}
	return sum
}
