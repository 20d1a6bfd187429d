package template

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/millrace/millrace/gpuworker/template/jinja"
)

// page is a parsed template in the child, for one goroutine.
type page struct {
	template *jinja.Template
	// responses: the template reads the answers of tools from the message with the calls.
	responses bool
}

func parsePage(source string, limits Options) (*page, reply) {
	t, err := jinja.Parse(source, jinja.Limits{Text: limits.MaxOutput, Steps: limits.MaxSteps})
	if err != nil {
		return nil, refusal(err)
	}
	return &page{t, strings.Contains(source, "tool_responses")}, reply{}
}

// render provides the variables that transformers provides. Those without a value here are none,
// not undefined.
func (p *page) render(in *renderArgs) reply {
	variables := make(map[string]jinja.Value, len(in.Variables)+8)
	for name, v := range in.Variables {
		variables[name] = variable(v)
	}
	maps.Copy(variables, map[string]jinja.Value{
		"messages":              jinja.NewList(p.messages(in.Messages)...),
		"tools":                 tools(in.Tools),
		"documents":             nil,
		"add_generation_prompt": in.AddGenerationPrompt,
		"bos_token":             jinja.Own(in.BOS),
		"eos_token":             jinja.Own(in.EOS),
		"strftime_now":          strftimeNow(in.Now),
	})
	text, err := p.template.Render(variables)
	if err != nil {
		return refusal(err)
	}
	return reply{Text: text.Text, Runs: runs(len(text.Text), text.Own)}
}

// usualRoles are the roles that templates expect. Some templates write them into a special token,
// as in "<|" + role + "|>", so these count as the template's own text. Any other role is the
// caller's text.
var usualRoles = map[string]bool{
	"system": true, "developer": true, "user": true, "assistant": true, "model": true, "tool": true, "function": true,
	"ipython": true, "observation": true,
}

func role(name string) jinja.Value {
	if usualRoles[name] {
		return jinja.Own(name)
	}
	return name
}

func refusal(err error) reply {
	rep := reply{Text: shorten(err.Error()), Fault: faultTemplate}
	if fault, ok := errors.AsType[*jinja.Error](err); ok && fault.Kind == jinja.Exceeded {
		rep.Fault = faultLimit
	}
	return rep
}

// shorten keeps both ends of a message: its start, and the cause.
func shorten(s string) string {
	const head, tail = 160, 320
	s = strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "\ufffd")
	if len(s) > head+tail+5 {
		s = fmt.Sprintf("%s ... %s", strings.ToValidUTF8(s[:head], ""), strings.ToValidUTF8(s[len(s)-tail:], ""))
	}
	return s
}
