package model

import (
	"fmt"
	"strings"
	"time"
)

// FitError says by how much a model does not fit.
type FitError struct {
	Name          string
	Needed, Free  uint64 // bytes
	Weights       uint64 // of Needed
	KV, Workspace uint64 // of Needed, for the smallest cache that is of use
	Staging       uint64 // of Needed, while loading
	// Idle are the models that hold memory, no request and no pin, the longest unused first.
	Idle []Idle
	// RoomIn is when a load may unload enough of them, if nobody uses them until then; 0: never.
	RoomIn time.Duration
}

// Idle is a model that no request holds.
type Idle struct {
	Name  string
	Bytes uint64        // of device memory
	Age   time.Duration // since its last request
}

func (e *FitError) Error() string {
	text := fmt.Sprintf("%v: %q needs %d bytes (weights %d, cache %d, workspace %d, staging %d) and %d are free; "+
		"unload a model, ask for fewer kv_tokens or a smaller context_length, or raise the memory limit",
		ErrNoFit, e.Name, e.Needed, e.Weights, e.KV, e.Workspace, e.Staging, e.Free)
	if len(e.Idle) == 0 {
		return text
	}
	var idle []string
	for _, i := range e.Idle {
		idle = append(idle, fmt.Sprintf("%q (%d bytes, unused for %v)", i.Name, i.Bytes, i.Age.Round(time.Millisecond)))
	}
	return text + "; idle and not pinned: " + strings.Join(idle, ", ")
}

// Unwrap makes the error ErrNoFit.
func (e *FitError) Unwrap() error { return ErrNoFit }
