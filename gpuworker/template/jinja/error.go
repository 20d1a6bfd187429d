package jinja

import "fmt"

// Kind is the cause of an Error.
type Kind int

// Kinds.
const (
	Wrong    Kind = iota // the template uses something impossible or unsupported
	Raised               // the template refused its input by raise_exception
	Exceeded             // the template asked for more than its limits
)

// Error is what Parse and Render fail with.
type Error struct {
	Kind Kind
	Line int    // from 1; 0 where no line is to blame
	Text string // of a Raised one, the template's own words
}

func (e *Error) Error() string {
	if e.Line == 0 || e.Kind == Raised {
		return e.Text
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Text)
}

// Parsing and rendering leave by a panic with an *Error, which Parse and Render return.

func failAt(line int, format string, args ...any) {
	panic(&Error{Kind: Wrong, Line: line, Text: fmt.Sprintf(format, args...)})
}

func exceedAt(line int, format string, args ...any) {
	panic(&Error{Kind: Exceeded, Line: line, Text: fmt.Sprintf(format, args...)})
}

// caught turns the panic of failAt and similar functions into an error and passes others on. It
// must be deferred.
func caught(err *error) {
	switch r := recover().(type) { //nolint:revive // the function is deferred by its callers
	case nil:
	case *Error:
		*err = r
	default:
		panic(r)
	}
}
