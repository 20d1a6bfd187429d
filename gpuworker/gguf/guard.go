package gguf

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Guard runs f, which reads mapped bytes, and returns ErrFault if the mapping has lost its file underneath. It protects
// the calling goroutine while f runs, and no other: f must not hand the view to goroutines of its own, nor to C, where a
// fault still ends the process. Other panics of f pass through.
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
