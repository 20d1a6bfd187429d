package rpc

import (
	"maps"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/services/internal/ratelog"
)

// Domains of ErrorInfo: the program that made the status.
const (
	WorkerDomain    = "worker.millrace.dev"
	SchedulerDomain = "scheduler.millrace.dev"
)

// maxText bounds each text of a status in bytes. A status travels in trailers, and may quote a
// request or a file of any length.
const maxText = 2 << 10

// Violation is one invalid field of a request.
type Violation struct {
	// Field is its path, for example "sampling.temperature".
	Field string
	// Description names the error and the allowed values.
	Description string
}

// Error describes the failure of a call. Err and Status convert it for gRPC. Code, Domain, Reason
// and Message are required.
type Error struct {
	Code   codes.Code
	Domain string
	// Reason is for programs. It is a constant of package reason.
	Reason string
	// Message is for people: what failed, where, and what to do.
	Message string
	// Metadata holds the numbers in the message.
	Metadata map[string]string
	// Violations become a BadRequest detail.
	Violations []Violation
	// RetryAfter, if positive, becomes a RetryInfo detail, and PushbackTrailer on servers of this
	// package.
	RetryAfter time.Duration
}

// Status returns the status with its details. It cuts texts at 2 KiB, ends those in an ellipsis,
// and replaces what is not UTF-8.
func (e Error) Status() *status.Status {
	metadata := maps.Clone(e.Metadata)
	for key, value := range metadata {
		metadata[key] = clip(value)
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: e.Reason, Domain: e.Domain, Metadata: metadata}}
	if len(e.Violations) > 0 {
		bad := &errdetails.BadRequest{}
		for _, v := range e.Violations {
			bad.FieldViolations = append(bad.FieldViolations,
				&errdetails.BadRequest_FieldViolation{Field: clip(v.Field), Description: clip(v.Description)})
		}
		details = append(details, bad)
	}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	st := status.New(e.Code, clip(e.Message))
	with, err := st.WithDetails(details...)
	if err != nil { // only for code OK
		return st
	}
	return with
}

// clip bounds a text of a status and makes it valid UTF-8.
func clip(text string) string { return ratelog.ClipAt(text, maxText) }

// clipMessage clips the message of a status that was not made from an Error. A library may quote a
// whole request, for example.
func clipMessage(err error) error {
	if len(status.Convert(err).Message()) <= maxText {
		return err
	}
	p := status.Convert(err).Proto()
	p.Message = clip(p.GetMessage())
	return status.FromProto(p).Err()
}

// Err returns Status as an error.
func (e Error) Err() error { return e.Status().Err() }

// Info returns the ErrorInfo of an error's status, or nil.
func Info(err error) *errdetails.ErrorInfo { return detail[*errdetails.ErrorInfo](err) }

// Reason returns the ErrorInfo reason of an error's status, or "".
func Reason(err error) string { return Info(err).GetReason() }

// Domain returns the ErrorInfo domain of an error's status, or "".
func Domain(err error) string { return Info(err).GetDomain() }

// RetryAfter returns the RetryInfo delay of an error's status, or 0.
func RetryAfter(err error) time.Duration {
	return detail[*errdetails.RetryInfo](err).GetRetryDelay().AsDuration()
}

// Violations returns the BadRequest field violations of an error's status.
func Violations(err error) []Violation {
	var all []Violation
	for _, v := range detail[*errdetails.BadRequest](err).GetFieldViolations() {
		all = append(all, Violation{Field: v.GetField(), Description: v.GetDescription()})
	}
	return all
}

// detail returns the first detail of type T, or T's zero value.
func detail[T any](err error) T {
	var none T
	if err == nil {
		return none
	}
	for _, d := range status.Convert(err).Details() {
		if t, ok := d.(T); ok {
			return t
		}
	}
	return none
}
