package template

import (
	"fmt"
	"io"
	"strings"

	"github.com/nikolalohinski/gonja/v2/builtins"
	controls "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// environment is what a template can name: gonja's own, without what reads other templates, with limits and with the
// additions of the field.
func (p *page) environment() *exec.Environment {
	globals := map[string]any{
		"range": p.rangeOf,
		"raise_exception": func(_ *exec.Evaluator, args *exec.VarArgs) (string, error) {
			text := "raise_exception"
			if len(args.Args) > 0 {
				text = args.Args[0].String()
			}
			panic(raised(shorten(text)))
		},
	}
	for _, name := range []string{"namespace", "dict", "cycler", "joiner"} {
		globals[name], _ = builtins.GlobalFunctions.Get(name)
	}
	filters := exec.NewFilterSet(map[string]exec.FilterFunction{}).
		Update(builtins.Filters).
		Update(ownFilters())
	tests := exec.NewTestSet(map[string]exec.TestFunction{}).
		Update(builtins.Tests).
		Update(exec.NewTestSet(map[string]exec.TestFunction{"sequence": isSequence}))
	return &exec.Environment{
		Context:           exec.NewContext(globals),
		Filters:           filters,
		Tests:             tests,
		ControlStructures: p.controlStructures(),
		Methods: exec.Methods{
			Bool: builtins.Methods.Bool, Int: builtins.Methods.Int, Float: builtins.Methods.Float,
			Str: stringMethods(), Dict: dictMethods(), List: builtins.Methods.List,
		},
	}
}

// rangeOf makes the whole list at once, so it counts as that many steps.
func (p *page) rangeOf(_ *exec.Evaluator, args *exec.VarArgs) ([]int, error) {
	bounds := []int{0, 0, 1}
	for i, a := range args.Args {
		if i > 2 || !a.IsInteger() {
			return nil, fmt.Errorf("range takes one to three integers, not %d arguments like %s", len(args.Args), a.String())
		}
		bounds[i] = a.Integer()
	}
	if len(args.Args) == 0 || len(args.KwArgs) > 0 {
		return nil, fmt.Errorf("range takes one to three integers")
	}
	if len(args.Args) == 1 {
		bounds[0], bounds[1] = 0, bounds[0]
	}
	list := []int{}
	start, stop, stride := bounds[0], bounds[1], bounds[2]
	if stride == 0 {
		return nil, fmt.Errorf("the third argument of range must not be 0")
	}
	for i := start; stride > 0 && i < stop || stride < 0 && i > stop; i += stride {
		p.step(1)
		list = append(list, i)
		if next := i + stride; stride > 0 && next < i || stride < 0 && next > i {
			break
		}
	}
	return list, nil
}

func (p *page) controlStructures() *exec.ControlStructureSet {
	set := exec.NewControlStructureSet(map[string]parser.ControlStructureParser{}).Update(builtins.ControlStructures)
	own := map[string]parser.ControlStructureParser{"generation": parseGeneration}
	for _, name := range []string{"include", "import", "from", "extends"} {
		own[name] = func(_, _ *parser.Parser) (nodes.ControlStructure, error) {
			return nil, fmt.Errorf("a chat template must not read other templates: {%% %s %%}", name)
		}
	}
	for _, name := range []string{"for", "macro"} {
		inner, _ := builtins.ControlStructures.Get(name)
		own[name] = func(outer, args *parser.Parser) (nodes.ControlStructure, error) {
			cs, err := inner(outer, args)
			if err != nil {
				return nil, err
			}
			switch cs := cs.(type) {
			case *controls.ForControlStructure:
				p.countIn(cs.BodyWrapper)
			case *controls.MacroControlStructure:
				p.countIn(cs.Wrapper)
			}
			return cs, nil
		}
	}
	return set.Update(exec.NewControlStructureSet(own))
}

// countIn makes each execution of a body a step.
func (p *page) countIn(body *nodes.Wrapper) {
	tick := &nodes.ControlStructureBlock{Location: body.Location, Name: "step", ControlStructure: &tick{p, body.Location}}
	body.Nodes = append([]nodes.Node{tick}, body.Nodes...)
}

type tick struct {
	page *page
	at   *tokens.Token
}

func (t *tick) Position() *tokens.Token { return t.at }
func (t *tick) String() string          { return "step" }
func (t *tick) Execute(*exec.Renderer, *nodes.ControlStructureBlock) error {
	t.page.step(1)
	return nil
}

// generation marks the assistant's words for training; for rendering it is its body.
type generation struct{ body *nodes.Wrapper }

func parseGeneration(p, args *parser.Parser) (nodes.ControlStructure, error) {
	if !args.End() {
		return nil, args.Error("generation takes no arguments", args.Current())
	}
	body, _, err := p.WrapUntil("endgeneration")
	return &generation{body}, err
}

func (g *generation) Position() *tokens.Token { return g.body.Location }
func (g *generation) String() string          { return "generation" }
func (g *generation) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	return r.ExecuteIfWrapper(g.body)
}

// onlyRoot is a loader that knows one template and refuses all others.
type onlyRoot string

const rootName = "chat template"

func (s onlyRoot) Read(name string) (io.Reader, error) {
	if name != rootName {
		return nil, fmt.Errorf("a chat template must not read %q", name)
	}
	return strings.NewReader(string(s)), nil
}

func (s onlyRoot) Resolve(name string) (string, error) {
	if name != rootName {
		return "", fmt.Errorf("a chat template must not read %q", name)
	}
	return name, nil
}

func (s onlyRoot) Inherit(string) (loaders.Loader, error) { return s, nil }
