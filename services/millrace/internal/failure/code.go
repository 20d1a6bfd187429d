package failure

import (
	"context"
	"errors"

	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Exit codes. Interrupted is 128 and the signal's number, as shells have it.
const (
	OK            = 0
	Failed        = 1
	Usage         = 2
	Unavailable   = 3
	Invalid       = 4
	Precondition  = 5
	Deadline      = 6
	Exhausted     = 7
	Refused       = 8
	Interrupted   = 130
	Terminated    = 143
	Documentation = `Exit codes:
  0    ok
  1    failed, in the server or here; the reason is printed
  2    wrong use: a flag, an argument, a file that cannot be read
  3    the server, or every worker behind it, is not reachable or went away
  4    the request is wrong, or asks for what the server does not have
  5    not found, or not in the state that the request needs (not loaded, another digest)
  6    the deadline passed
  7    everything is full, or it does not fit
  8    the token or the certificate does not allow the call
  130  interrupted by Ctrl-C; 143 by SIGTERM
health gives 0 or 1 only.`
)

// Errors of the client itself.
var (
	// ErrUsage: the command line is wrong.
	ErrUsage = errors.New("usage")
	// ErrState means that a requirement of the request is missing, found before the call.
	ErrState = errors.New("not possible")
	// ErrInterrupted: Ctrl-C.
	ErrInterrupted = errors.New("interrupted")
	// ErrTerminated: SIGTERM.
	ErrTerminated = errors.New("terminated")
)

// Code is the exit code for an error; nil is OK.
func Code(err error) int {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, ErrInterrupted):
		return Interrupted
	case errors.Is(err, ErrTerminated):
		return Terminated
	case errors.Is(err, ErrUsage):
		return Usage
	case errors.Is(err, ErrState):
		return Precondition
	case errors.Is(err, context.DeadlineExceeded):
		return Deadline
	}
	switch status.Code(err) {
	case codes.Unavailable:
		return Unavailable
	case codes.InvalidArgument, codes.OutOfRange, codes.Unimplemented:
		return Invalid
	case codes.NotFound, codes.FailedPrecondition, codes.AlreadyExists:
		return Precondition
	case codes.DeadlineExceeded:
		return Deadline
	case codes.ResourceExhausted:
		return Exhausted
	case codes.Unauthenticated, codes.PermissionDenied:
		return Refused
	default:
		return Failed
	}
}

// CodeName is a code as the contract spells it: FAILED_PRECONDITION.
func CodeName(code codes.Code) string {
	if name, known := rpccode.Code_name[int32(code)]; known {
		return name
	}
	return code.String()
}
