package cli

import (
	"os"

	"github.com/spf13/pflag"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/render"
)

// guidedFlags are the flags of a constraint.
type guidedFlags struct {
	schema, grammar, lark string // files
	regex                 string
	choice                []string
	lenient, anyOrder     bool
}

// constraintFlags are the names of the flags of which at most one may be given.
var constraintFlags = []string{"json-schema", "regex", "grammar", "lark", "choice"}

func (f *guidedFlags) register(fs *pflag.FlagSet) {
	group(fs, "Constraint", func() {
		fs.StringVar(&f.schema, "json-schema", "", "the answer is a JSON value that the schema in this `file` accepts; {\"type\":\"object\"} is any object")
		fs.StringVar(&f.regex, "regex", "", "the whole answer matches this `expression`, in RE2's syntax")
		fs.StringVar(&f.grammar, "grammar", "", "the answer is derived by the rule root of the GBNF grammar in this `file`")
		fs.StringVar(&f.lark, "lark", "", "the answer is derived by the rule start of the grammar in Lark's notation in this `file`")
		fs.StringArrayVar(&f.choice, "choice", nil, "the answer is this `text`; may be repeated, and is then one of them")
		fs.BoolVar(&f.lenient, "lenient-schema", false, "ignore keywords of --json-schema that are not honoured; started.guidedIgnored of --json lists them")
		fs.BoolVar(&f.anyOrder, "any-order", false, "the properties of --json-schema come in any order, and not in the schema's")
	})
}

// guided returns the constraint of the flags that were given, nil for none.
func (f *guidedFlags) guided(fs *pflag.FlagSet) (*pb.Guided, error) {
	var given []string
	for _, name := range constraintFlags {
		if fs.Changed(name) {
			given = append(given, name)
		}
	}
	switch {
	case len(given) > 1:
		return nil, failure.Usagef("give --%s or --%s, not both", given[0], given[1])
	case f.lenient && !fs.Changed("json-schema"):
		return nil, failure.Usagef("--lenient-schema needs --json-schema")
	case f.anyOrder && !fs.Changed("json-schema"):
		return nil, failure.Usagef("--any-order needs --json-schema")
	case len(given) == 0:
		return nil, nil
	}
	out := &pb.Guided{}
	switch given[0] {
	case "regex":
		out.Constraint = &pb.Guided_Regex{Regex: f.regex}
	case "choice":
		out.Constraint = &pb.Guided_Choice{Choice: &pb.Choice{Options: f.choice}}
	case "grammar":
		text, err := readConstraint(f.grammar)
		if err != nil {
			return nil, err
		}
		out.Constraint = &pb.Guided_Grammar{Grammar: text}
	case "lark":
		text, err := readConstraint(f.lark)
		if err != nil {
			return nil, err
		}
		out.Constraint = &pb.Guided_Lark{Lark: text}
	default:
		text, err := readConstraint(f.schema)
		if err != nil {
			return nil, err
		}
		out.Constraint = &pb.Guided_JsonSchema{JsonSchema: text}
	}
	if f.lenient {
		out.Lenient = &f.lenient
	}
	if f.anyOrder {
		out.AnyOrder = &f.anyOrder
	}
	return out, nil
}

// readConstraint returns the text of a file.
func readConstraint(name string) (string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return "", failure.Usagef("the constraint %s: %w", render.Line(name), err)
	}
	return string(text), nil
}
