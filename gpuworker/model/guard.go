package model

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
)

// ErrPanicked means that a load ended by a panic, in this program or in what it calls. The log has its stack.
var ErrPanicked = errors.New("the load panicked: this is a bug, and the worker's log has its stack")

// guarded runs f and returns a panic of it as an error, so that a load that panics gives its memory back as one that fails does,
// and other models go on serving. Each goroutine of a load runs under it, because a panic ends the process wherever it is not
// recovered.
func guarded(logger hclog.Logger, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			logger.Error("a load panicked", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", ErrPanicked, p)
		}
	}()
	return f()
}

// bind gives a buffer to a model, which consumes it. After a panic the buffer is freed if the model did not get as far.
func bind(m engine.Model, desc engine.TensorDesc, raw engine.Buffer) error {
	returned := false
	defer func() {
		if !returned {
			_ = raw.Free() // refused if the model has it
		}
	}()
	err := m.Bind(desc, raw)
	returned = true
	return err
}
