package native

/*
#include <stdlib.h>
*/
import "C"

import "unsafe"

func cString(s string) *C.char        { return C.CString(s) }
func cFree(p unsafe.Pointer)          { C.free(p) }
func cNew[T any]() *T                 { var zero T; return (*T)(C.calloc(1, C.size_t(unsafe.Sizeof(zero)))) }
func cDelete[T any](p *T)             { C.free(unsafe.Pointer(p)) }
func bytesOf(p []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(p)) }

// arena is a C array that is reused from call to call, so that a step makes no garbage and needs no
// pinning.
type arena[T any] struct {
	p   unsafe.Pointer
	cap int
}

// take returns n elements with undefined contents, valid until the next take. Earlier elements are
// lost.
func (a *arena[T]) take(n int) []T {
	if n > a.cap {
		var zero T
		C.free(a.p)
		a.cap = max(n, 2*a.cap, 16)
		a.p = C.malloc(C.size_t(a.cap) * C.size_t(unsafe.Sizeof(zero))) // never nil: cgo's malloc aborts instead
	}
	return unsafe.Slice((*T)(a.p), n)
}

// ptr is the first element, or nil when nothing was ever taken.
func (a *arena[T]) ptr() *T { return (*T)(a.p) }

func (a *arena[T]) free() {
	C.free(a.p)
	*a = arena[T]{}
}
