// Package native binds the C ABI of cuda/include/millrace/engine.h: it is the only package that does.
//
// Open gives a device of the CPU engine, which is compiled into the binary, or of the CUDA engine, a shared library
// opened at run time; both speak through the same table of function pointers. Devices also have the abilities Meter and
// Operator, models BitFlipper, and runners Faulter. Every handle is closed by its owner: there are no finalizers, a
// second close is engine.ErrPrecondition, and so is any use of a closed handle, or one that overlaps its close.
//
// The package refuses to know files, models and requests: it converts values and errors, and nothing else. It reads no
// environment; where to look for a library is an option.
package native
