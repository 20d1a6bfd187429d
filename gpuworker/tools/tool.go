package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/millrace/millrace/gpuworker/guide"
)

// Tool is a function that a model may call.
type Tool struct {
	Name        string // matches ValidName
	Description string
	// Parameters is the JSON schema of its arguments; empty: any object.
	Parameters string
	// Strict refuses keywords that are not honoured. Otherwise they are ignored and listed.
	Strict bool
}

// Mode is when a model calls tools.
type Mode int

// Modes. The zero value is Auto.
const (
	Auto     Mode = iota // where it decides to
	None                 // never
	Required             // always
)

// Choice is how a model may call tools.
type Choice struct {
	Mode     Mode
	Name     string // the one tool that it may call; "": any
	Parallel bool   // whether one answer may have several calls
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

// ValidName reports whether a tool may have a name. Such a name needs no escaping in any format.
func ValidName(name string) bool { return namePattern.MatchString(name) }

// ErrFormat says that a format cannot write the calls that a request wants. It comes as a *Error.
var ErrFormat = errors.New("the tool format cannot write it")

// Error states which part of the tools a format cannot write.
type Error struct {
	Path    string // such as #/tools/0/parameters/properties/a
	Problem string
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%v: %s %s", ErrFormat, e.Path, e.Problem) }

// Unwrap returns ErrFormat.
func (e *Error) Unwrap() error { return ErrFormat }

// chosen returns the tools that a choice allows.
func (c Choice) chosen(all []Tool) []indexed {
	var out []indexed
	ignored := &[]string{}
	for i, t := range all {
		if c.Name == "" || t.Name == c.Name {
			out = append(out, indexed{t, fmt.Sprintf("#/tools/%d/parameters", i), ignored})
		}
	}
	return out
}

// indexed is a tool with the path of its parameters.
type indexed struct {
	Tool
	path    string
	ignored *[]string // keywords that a format does not honour, of all tools
}

// ignoreAll adds keywords of the value at path to those that are not honoured, or returns an *Error if the tool is strict.
func (t indexed) ignoreAll(path, why string, words []string) error {
	for _, word := range words {
		at := guide.Pointer(path, word)
		if t.Strict {
			return &Error{at, why + ", and strict is set"}
		}
		if *t.ignored = append(*t.ignored, at); len(*t.ignored) > maxIgnored {
			return &Error{at, fmt.Sprintf("is one of more than %d keywords that the format cannot honour", maxIgnored)}
		}
	}
	return nil
}

// maxIgnored bounds the keywords that are ignored.
const maxIgnored = 1 << 12

// schema returns the source of the tool's arguments, which are an object also if it does not say so.
func (t indexed) schema() (string, error) {
	if t.Parameters == "" {
		return `{"type":"object"}`, nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(t.Parameters), &fields) != nil || fields == nil {
		return "", &Error{t.path, "is not a JSON object"}
	}
	switch kind, ok := fields["type"]; {
	case ok && string(kind) != `"object"`:
		return "", &Error{t.path + "/type", `is not "object", which arguments are`}
	case ok:
		return t.Parameters, nil
	case len(fields) == 0:
		return `{"type":"object"}`, nil
	}
	return `{"type":"object",` + strings.TrimLeft(t.Parameters, " \t\r\n")[1:], nil
}

// arguments is a JSON object that obeys the tool's schema.
func (t indexed) arguments() (guide.Term, error) {
	text, err := t.schema()
	source := &guide.Source{Kind: guide.JSONSchema, Text: text, Lenient: !t.Strict}
	return guide.Term{Op: guide.Nested, Source: source, Path: t.path}, err
}
