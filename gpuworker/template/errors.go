package template

import "errors"

var (
	// ErrTemplate means that the template is wrong or refused its input. The message has the
	// template's own words.
	ErrTemplate = errors.New("chat template failed")
	// ErrLimit means that the template exceeded its time, memory, steps or text.
	ErrLimit = errors.New("chat template exceeded a limit")
	// ErrChild means that no child process was usable: a problem of this program or its machine,
	// not of the template.
	ErrChild = errors.New("chat template process failed")
	// ErrClosed means that the template was closed.
	ErrClosed = errors.New("chat template is closed")
)
