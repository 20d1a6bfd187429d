package template

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
)

// page is a parsed template inside the child, used by one goroutine.
type page struct {
	template *exec.Template
	limits   Options
	steps    int // of the rendering under way
}

// raised is the panic of raise_exception, exceeded that of a limit; both end a rendering from any depth.
type (
	raised   string
	exceeded string
)

func parsePage(source string, limits Options) (p *page, rep reply) {
	p = &page{limits: limits}
	rep = guarded(func() (string, error) {
		cfg := config.New()
		cfg.TrimBlocks, cfg.LeftStripBlocks = true, true
		text, err := nestConditions(source)
		if err != nil {
			return "", err
		}
		p.template, err = exec.NewTemplate(rootName, cfg, onlyRoot(text), p.environment())
		if inner := errors.Unwrap(err); inner != nil {
			err = inner // the outer error repeats the whole template
		}
		return "", err
	})
	if rep.Fault != faultNone {
		return nil, rep
	}
	return p, rep
}

func (p *page) render(in *renderArgs) reply {
	return guarded(func() (string, error) {
		p.steps = 0
		messages := make([]any, len(in.Messages))
		for i, m := range in.Messages {
			messages[i] = &exec.Dict{Pairs: []*exec.Pair{
				{Key: exec.AsValue("role"), Value: exec.AsValue(m.Role)},
				{Key: exec.AsValue("content"), Value: exec.AsValue(m.Content)},
			}}
		}
		out := &limitedText{limit: p.limits.MaxOutput}
		err := p.template.Execute(out, exec.NewContext(map[string]any{
			"messages":              messages,
			"add_generation_prompt": in.AddGenerationPrompt,
			"bos_token":             in.BOS,
			"eos_token":             in.EOS,
			"strftime_now":          strftimeNow(in.Now),
		}))
		return out.String(), err
	})
}

// guarded turns what a template may do to its evaluator into a reply.
func guarded(f func() (string, error)) (rep reply) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case raised:
			rep = reply{Text: string(r), Fault: faultTemplate}
		case exceeded:
			rep = reply{Text: string(r), Fault: faultLimit}
		default:
			rep = reply{Text: shorten(fmt.Sprint(r)), Fault: faultTemplate}
		}
	}()
	text, err := f()
	if err != nil {
		return reply{Text: shorten(innermost(err.Error())), Fault: faultTemplate}
	}
	return reply{Text: text}
}

// outerPlace is how gonja's evaluator prefixes an error at each tag that it leaves.
var outerPlace = regexp.MustCompile(`^(?:unable to execute template|Unable to (?:execute controlStructure|render expression) at line (\d+): (?:\w+\(Line=\d+ Col=\d+\))?): `)

// innermost replaces the places that a message passed through by the line of the last one.
func innermost(s string) string {
	line := ""
	for {
		m := outerPlace.FindStringSubmatch(s)
		if m == nil {
			break
		}
		if s = s[len(m[0]):]; m[1] != "" {
			line = m[1]
		}
	}
	if line != "" {
		s = "line " + line + ": " + s
	}
	return s
}

// shorten keeps the ends of a message: where it begins, and the cause.
func shorten(s string) string {
	const head, tail = 160, 320
	s = strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "\ufffd")
	if len(s) > head+tail+5 {
		s = strings.ToValidUTF8(s[:head], "") + " ... " + strings.ToValidUTF8(s[len(s)-tail:], "")
	}
	return s
}

// step counts a loop round or a macro call.
func (p *page) step(n int) {
	if n > p.limits.MaxSteps || p.steps > p.limits.MaxSteps-n {
		panic(exceeded(fmt.Sprintf("more than %d steps", p.limits.MaxSteps)))
	}
	p.steps += n
}

// limitedText collects the prompt.
type limitedText struct {
	strings.Builder
	limit int
}

func (t *limitedText) Write(p []byte) (int, error) { t.room(len(p)); return t.Builder.Write(p) }
func (t *limitedText) WriteString(s string) (int, error) {
	t.room(len(s))
	return t.Builder.WriteString(s)
}

func (t *limitedText) room(n int) {
	if n > t.limit-t.Len() {
		panic(exceeded(fmt.Sprintf("more than %d bytes of output", t.limit)))
	}
}
