package jinja

import "fmt"

type tokenKind int

const (
	tokenEnd      tokenKind = iota
	tokenData               // text outside of tags
	tokenOpen               // {{
	tokenClose              // }}
	tokenTagOpen            // {%
	tokenTagClose           // %}
	tokenName
	tokenString // text is its value
	tokenInteger
	tokenFloat
	tokenOperator
)

type token struct {
	kind tokenKind
	line int
	text string
}

func (t token) is(kind tokenKind, text string) bool { return t.kind == kind && t.text == text }

// String describes a token for messages.
func (t token) String() string {
	switch t.kind {
	case tokenEnd:
		return "the end of the template"
	case tokenData:
		return "text"
	case tokenOpen:
		return "'{{'"
	case tokenClose:
		return "'}}'"
	case tokenTagOpen:
		return "'{%'"
	case tokenTagClose:
		return "'%}'"
	case tokenString:
		return fmt.Sprintf("the string %.40q", t.text)
	case tokenName, tokenInteger, tokenFloat, tokenOperator:
	}
	return fmt.Sprintf("'%.40s'", t.text)
}
