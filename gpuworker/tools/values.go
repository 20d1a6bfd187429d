package tools

import (
	"encoding/json"
	"strings"
)

// valueState is an argument of qwen3_coder, whose text is raw.
type valueState struct {
	kind valueKind
	held strings.Builder // of a mixed value
}

// valueKind is how the text of an argument becomes JSON.
type valueKind uint8

const (
	textValue  valueKind = iota // it is a string
	jsonValue                   // it is JSON
	mixedValue                  // it is JSON if it reads as such, else a string
)

// typesOf has the kinds of the arguments of each tool, by the names of tool and argument.
type typesOf map[[2]string]valueKind

// closing is the end of an object with a number of members.
func closing(members int) string {
	if members == 0 {
		return "{}"
	}
	return "}"
}

// startValue begins the argument of a name.
func (p *Parser) startValue(name string) {
	lead := ", "
	if p.args == 0 {
		lead = "{"
	}
	p.args++
	kind, known := p.types[[2]string{p.tool, name}]
	if !known {
		kind = mixedValue
	}
	p.value = valueState{kind: kind}
	p.emitArguments(lead + quoteJSON(name) + ": ")
	if kind == textValue {
		p.emitArguments(`"`)
	}
}

// valueText adds text of an argument.
func (p *Parser) valueText(text string) {
	switch p.value.kind {
	case textValue:
		p.emitArguments(escapeJSON(text))
	case jsonValue:
		p.emitArguments(text)
	case mixedValue:
		p.value.held.WriteString(text)
	}
}

// endValue ends an argument.
func (p *Parser) endValue() {
	switch p.value.kind {
	case textValue:
		p.emitArguments(`"`)
	case mixedValue:
		text := p.value.held.String()
		if !json.Valid([]byte(text)) {
			text = quoteJSON(text)
		}
		p.emitArguments(text)
	case jsonValue:
	}
	p.value = valueState{}
}
