package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Failure is an error of a request, in terms that every dialect can express.
type Failure struct {
	// Status is the HTTP status of a response that has nothing else.
	Status int
	Code   codes.Code
	// Reason is for programs: a word of package reason, or the name of Code.
	Reason string
	// Param is the JSON path of the field that is wrong, in the dialect's request; "" if none is.
	Param string
	// Field is the path in the contract's request of the field that a server refused, from which a
	// dialect may find Param.
	Field   string
	Message string
	// RequestID is the request's id, in failures that a dialect writes.
	RequestID string
	// RetryAfter is when to try again; 0: time does not help, or the time is not known.
	RetryAfter time.Duration
}

func (f *Failure) Error() string { return f.Message }

// statuses are the HTTP statuses of codes. Others are errors of a server.
var statuses = map[codes.Code]int{
	codes.InvalidArgument: http.StatusBadRequest, codes.Unimplemented: http.StatusBadRequest, codes.OutOfRange: http.StatusBadRequest,
	codes.FailedPrecondition: http.StatusBadRequest, codes.Unauthenticated: http.StatusUnauthorized,
	codes.PermissionDenied: http.StatusForbidden, codes.NotFound: http.StatusNotFound,
	codes.AlreadyExists: http.StatusConflict, codes.Aborted: http.StatusConflict,
	codes.ResourceExhausted: http.StatusTooManyRequests, codes.Canceled: statusClientClosed,
	codes.Unavailable: http.StatusServiceUnavailable, codes.DeadlineExceeded: http.StatusGatewayTimeout,
}

// statusClientClosed is nginx's status for requests whose client left, for logs and metrics.
const statusClientClosed = 499

// defaultRetryAfter is the wait that a client is given if a server is not available and does not
// say for how long.
const defaultRetryAfter = time.Second

// Refuse returns the failure of a request that is not sent to a server. param may be "".
func Refuse(code codes.Code, param, format string, args ...any) *Failure {
	f := &Failure{Code: code, Reason: rpc.CodeName(code), Param: param, Message: fmt.Sprintf(format, args...)}
	return f.complete()
}

// Invalid refuses the value of a field. The text continues the path as a sentence.
func Invalid(param, format string, args ...any) *Failure {
	return Refuse(codes.InvalidArgument, param, "%s %s", param, fmt.Sprintf(format, args...))
}

// Unsupported refuses a field that the gateway knows and cannot honour.
func Unsupported(param, format string, args ...any) *Failure {
	return Refuse(codes.Unimplemented, param, "%s %s", param, fmt.Sprintf(format, args...))
}

// because sets the reason.
func (f *Failure) because(why string) *Failure {
	f.Reason = why
	return f.complete()
}

// complete sets what follows from the code.
func (f *Failure) complete() *Failure {
	if f.Status == 0 {
		f.Status = http.StatusInternalServerError
		if known, ok := statuses[f.Code]; ok {
			f.Status = known
		}
	}
	if f.Reason == reason.MessageTooLarge {
		f.Status = http.StatusRequestEntityTooLarge // a repetition does not help
	}
	if f.Code == codes.Unavailable && f.RetryAfter <= 0 {
		f.RetryAfter = defaultRetryAfter
	}
	return f
}

// FailureOf returns the failure that an error is: a *Failure, an error of package strictjson, or
// the status of a call. It returns nil for nil.
func FailureOf(err error) *Failure {
	var own *Failure
	var decoding *strictjson.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	case errors.As(err, &decoding):
		return Refuse(codes.InvalidArgument, decoding.Path, "%s", decoding.Error()).because(decoding.Reason)
	case errors.Is(err, context.DeadlineExceeded):
		return Refuse(codes.DeadlineExceeded, "", "the request's deadline has passed")
	case errors.Is(err, context.Canceled):
		return Refuse(codes.Canceled, "", "the request was cancelled")
	}
	is, ok := status.FromError(err)
	if !ok {
		return Refuse(codes.Internal, "", "the gateway failed: its log has the error of this request id")
	}
	f := &Failure{Code: is.Code(), Reason: rpc.Reason(err), Message: is.Message(), RetryAfter: rpc.RetryAfter(err)}
	var inner interface{ GRPCStatus() *status.Status }
	if errors.As(err, &inner) { // without what grpc-go writes before it after retries
		f.Message = inner.GRPCStatus().Message()
	}
	if f.Reason == "" {
		f.Reason = rpc.CodeName(f.Code)
		if f.Code == codes.Unavailable { // grpc-go's text has addresses of the private network
			f.Message = "no model server can be reached: try again"
		}
	}
	if wrong := rpc.Violations(err); len(wrong) > 0 {
		f.Field = wrong[0].Field
	}
	return f.complete()
}

// GRPCStatus makes status.Code return the code.
func (f *Failure) GRPCStatus() *status.Status { return status.New(f.Code, f.Message) }

// KnownReason returns the reason, or the name of the code if this release has no such reason: a
// server of a later one may have others.
func (f *Failure) KnownReason() string {
	if slices.Contains(reason.All(), f.Reason) {
		return f.Reason
	}
	return rpc.CodeName(f.Code)
}
