// Package native binds the C ABI of cuda/include/millrace/engine.h. It is the only package that
// does.
//
// Open returns a device of the CPU engine, which is compiled into the binary, or of the CUDA
// engine, a shared library that is opened at run time. Both have the same table of function
// pointers. Devices also have the abilities Meter and Operator, models BitFlipper, and runners
// Faulter. The owner of a handle must close it, because there are no finalizers. A second close,
// and any use of a handle during or after its close, returns engine.ErrPrecondition.
//
// The package only converts values and errors. Files, models and requests belong to the packages
// above it. It reads no environment: the folders of the library are an option.
package native
