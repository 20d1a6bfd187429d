package guide

import (
	"errors"
	"fmt"
)

// Sentinels; match with errors.Is. The first three come from Compile as an *Error.
var (
	// ErrSyntax: the source is not well formed.
	ErrSyntax = errors.New("is malformed")
	// ErrUnsupported: the source asks for something that no mask honours.
	ErrUnsupported = errors.New("cannot be honoured")
	// ErrLimit: the source, or the grammar that it describes, is too large.
	ErrLimit = errors.New("is too large")
	// ErrNotAllowed: a token does not continue a text of the grammar.
	ErrNotAllowed = errors.New("the grammar does not allow the token")
	// ErrStuck: no token of the vocabulary continues the text, and the text may not end.
	ErrStuck = errors.New("no token continues the text under the grammar")
	// ErrWork: the next mask needs more work than one may.
	ErrWork = errors.New("the grammar is too ambiguous at this point")
)

// Error is why a source was refused.
type Error struct {
	Kind    error  // ErrSyntax, ErrUnsupported or ErrLimit
	Path    string // where: a JSON pointer such as #/properties/a, line 3, or empty
	Problem string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("the constraint %v: %s", e.Kind, e.Problem)
	}
	return fmt.Sprintf("the constraint %v at %s: %s", e.Kind, e.Path, e.Problem)
}

// Unwrap returns its kind.
func (e *Error) Unwrap() error { return e.Kind }
