package server

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/gpuworker/guide"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/prompt"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// guided checks the fields beside a constraint. Compile checks the constraint itself.
func (c *Checker) guided(in *pb.GenerateRequest) {
	if in.GetGuided() == nil {
		return
	}
	if in.GetGuided().GetConstraint() == nil {
		c.Add("guided", "one of json_schema, regex, grammar, lark and choice is required")
	}
	if in.GetStopping().GetIgnoreEos() {
		c.Add("stopping.ignore_eos", "is set with guided, whose texts end with an end token: leave it unset")
	}
}

// sourceOf returns a request's constraint and the field that has it.
func sourceOf(in *pb.Guided) (s guide.Source, field string) {
	s.Lenient, s.AnyOrder = in.GetLenient(), in.GetAnyOrder()
	switch c := in.GetConstraint().(type) {
	case *pb.Guided_JsonSchema:
		s.Kind, s.Text, field = guide.JSONSchema, c.JsonSchema, "guided.json_schema"
	case *pb.Guided_Regex:
		s.Kind, s.Text, field = guide.Regex, c.Regex, "guided.regex"
	case *pb.Guided_Grammar:
		s.Kind, s.Text, field = guide.GBNF, c.Grammar, "guided.grammar"
	case *pb.Guided_Lark:
		s.Kind, s.Text, field = guide.Lark, c.Lark, "guided.lark"
	case *pb.Guided_Choice:
		s.Kind, s.Options, field = guide.Choice, c.Choice.GetOptions(), "guided.choice.options"
	}
	return s, field
}

// compileSlot is the size that a compilation counts as among the texts of the encoder: a large one, so
// that it never takes the slot of a small text. Its work is bounded whatever its size is.
const compileSlot = 64 << 10

// compile returns the grammar of a source that field has.
func (s *Server) compile(ctx context.Context, in *pb.GenerateRequest, inst *model.Instance, source guide.Source, field string) (*guide.Grammar, error) {
	if inst.Tokenizer == nil {
		return nil, prompt.ErrNoTokenizer
	}
	grammar, err := inst.Compile(ctx, in.GetFairnessId(), source, func(ctx context.Context) (func(), error) {
		return s.encoder.Acquire(ctx, in.GetFairnessId(), compileSlot)
	})
	var problem *guide.Error
	if errors.As(err, &problem) {
		if strings.HasPrefix(problem.Path, "#/tools/") {
			field = "chat.tools"
		}
		return nil, invalidGrammar(field, problem)
	}
	return grammar, err
}

// invalidGrammar returns the refusal of a constraint.
func invalidGrammar(field string, problem *guide.Error) error {
	kind := map[error]string{guide.ErrSyntax: "syntax", guide.ErrUnsupported: "unsupported", guide.ErrLimit: "limit"}[problem.Kind]
	return rpc.Error{
		Code: codes.InvalidArgument, Domain: rpc.WorkerDomain, Reason: reason.InvalidGrammar, Message: field + ": " + problem.Error(),
		Metadata:   map[string]string{"path": problem.Path, "problem": kind},
		Violations: []rpc.Violation{{Field: field, Description: problem.Error()}},
	}.Err()
}
