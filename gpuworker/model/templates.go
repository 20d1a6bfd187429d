package model

import (
	"strings"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/template"
)

const (
	templateKey = "tokenizer.chat_template"
	// maxTemplates is how many named templates of a file are read, and maxTemplateName how long their names may be.
	maxTemplates    = 16
	maxTemplateName = 64
)

// templates are the sources of a file's chat templates.
type templates struct {
	unnamed string // "": none
	named   map[string]string
}

// readTemplates reads the chat templates of a file: the one without a name, and those under keys that a name ends. Of the named ones
// the first sixteen of the file count, and those whose names are printable ASCII. The list tokenizer.chat_templates adds nothing to the
// keys.
func readTemplates(f *gguf.File) (all templates, err error) {
	if all.unnamed, _, err = f.Metadata().String(templateKey); err != nil {
		return templates{}, err
	}
	all.named = map[string]string{}
	for _, key := range f.Metadata().Keys() {
		name, ok := strings.CutPrefix(key, templateKey+".")
		if !ok || name == "" || len(name) > maxTemplateName || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			continue
		}
		source, ok, err := f.Metadata().String(key)
		if err == nil && ok && source != "" && len(all.named) < maxTemplates {
			all.named[name] = source
		}
	}
	return all, nil
}

// NamedTemplate is a chat template that a conversation may choose by its name. If Problem is not nil it cannot be used.
type NamedTemplate struct {
	Template *template.Template
	Problem  error
}

// parse makes the instance's templates, which share slots: a file with many templates has no more processes that render at once than
// one with a single template. Named ones have no process until one of them is used.
func (i *Instance) parse(all templates) {
	slots := template.NewSlots()
	if all.unnamed != "" {
		i.Template, i.TemplateProblem = template.New(all.unnamed, template.Options{Slots: slots})
	}
	i.Named = map[string]NamedTemplate{}
	for name, source := range all.named {
		t, err := template.New(source, template.Options{Lazy: true, Slots: slots})
		i.Named[name] = NamedTemplate{t, err}
	}
}

// closeTemplates ends the templates' processes. Closing twice does nothing.
func (i *Instance) closeTemplates() {
	if i.Template != nil {
		_ = i.Template.Close() // it has no errors
	}
	for _, named := range i.Named {
		if named.Template != nil {
			_ = named.Template.Close()
		}
	}
}
