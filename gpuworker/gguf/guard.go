package gguf

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Guard runs f, which reads mapped bytes, and returns ErrFault if the mapping lost its file. It
// protects only the calling goroutine while f runs. f must not pass the view to other goroutines or
// to C, where a fault would end the process. Other panics of f pass through.
func Guard(f func()) (err error) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(interface {
			runtime.Error
			Addr() uintptr
		})
		if !ok {
			panic(r)
		}
		err = fmt.Errorf("memory fault at %#x: %w", fault.Addr(), ErrFault)
	}()
	f()
	return nil
}
