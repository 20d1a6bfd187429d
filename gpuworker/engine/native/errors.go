package native

/*
#include "table.h"
*/
import "C"

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Error is an error of an engine. It unwraps to the sentinel of its code.
type Error struct {
	Code    int32  // canonical gRPC code
	Native  int64  // cudaError_t, errno, or 0
	Message string // of the engine
}

func (e *Error) Error() string {
	if e.Native != 0 {
		return fmt.Sprintf("%v: %s (native error %d)", e.Unwrap(), e.Message, e.Native)
	}
	return fmt.Sprintf("%v: %s", e.Unwrap(), e.Message)
}

// sentinels of the canonical codes. Any other code is a failure of the device.
var sentinels = map[int32]error{
	C.MR_INVALID_ARGUMENT:    engine.ErrInvalid,
	C.MR_OUT_OF_RANGE:        engine.ErrInvalid,
	C.MR_DEADLINE_EXCEEDED:   engine.ErrTimeout,
	C.MR_NOT_FOUND:           engine.ErrNoDevice,
	C.MR_ALREADY_EXISTS:      engine.ErrPrecondition,
	C.MR_FAILED_PRECONDITION: engine.ErrPrecondition,
	C.MR_ABORTED:             engine.ErrPrecondition,
	C.MR_RESOURCE_EXHAUSTED:  engine.ErrOutOfMemory,
	C.MR_UNIMPLEMENTED:       engine.ErrUnsupported,
	C.MR_DATA_LOSS:           engine.ErrDataLoss,
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error {
	if s, ok := sentinels[e.Code]; ok {
		return s
	}
	return engine.ErrDevice
}

// unavailable reports whether the device exists but cannot be opened now: another process may hold
// it exclusively.
func unavailable(err error) bool {
	var said *Error
	return errors.As(err, &said) && said.Code == C.MR_UNAVAILABLE
}

// check converts an engine's error and frees it.
func (t *table) check(e *C.mr_error) error {
	if e == nil {
		return nil
	}
	defer C.mrt_error_destroy(t.api, e)
	return &Error{
		Code:    int32(C.mrt_error_code(t.api, e)),
		Native:  int64(C.mrt_error_native(t.api, e)),
		Message: C.GoString(C.mrt_error_message(t.api, e)),
	}
}
