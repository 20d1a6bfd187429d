package rpc

import (
	"maps"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/services/internal/flood"
)

// Domains of ErrorInfo: who says it.
const (
	WorkerDomain    = "worker.millrace.dev"
	SchedulerDomain = "scheduler.millrace.dev"
)

// maxText bounds each text of a status, in bytes: a status travels in trailers, and what it quotes of a request or a file
// may be of any length.
const maxText = 2 << 10

// Violation is one wrong field of a request.
type Violation struct {
	// Field is its path, e.g. "sampling.temperature".
	Field string
	// Description says what is wrong and what is allowed.
	Description string
}

// Fault is a status in the making. Code, Domain, Reason and Message are required.
type Fault struct {
	Code   codes.Code
	Domain string
	// Reason is for programs: one of package reason's.
	Reason string
	// Message is for people: what, where, what to do.
	Message string
	// Metadata holds the numbers behind the message.
	Metadata map[string]string
	// Violations become a BadRequest detail.
	Violations []Violation
	// RetryAfter becomes a RetryInfo detail, and PushbackTrailer on servers of this package, if > 0.
	RetryAfter time.Duration
}

// Status renders the fault. Texts above 2 KiB are cut and end in an ellipsis; what is not UTF-8 is replaced.
func (f Fault) Status() *status.Status {
	metadata := maps.Clone(f.Metadata)
	for key, value := range metadata {
		metadata[key] = clip(value)
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: f.Reason, Domain: f.Domain, Metadata: metadata}}
	if len(f.Violations) > 0 {
		bad := &errdetails.BadRequest{}
		for _, v := range f.Violations {
			bad.FieldViolations = append(bad.FieldViolations,
				&errdetails.BadRequest_FieldViolation{Field: clip(v.Field), Description: clip(v.Description)})
		}
		details = append(details, bad)
	}
	if f.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(f.RetryAfter)})
	}
	st := status.New(f.Code, clip(f.Message))
	with, err := st.WithDetails(details...)
	if err != nil { // only for code OK
		return st
	}
	return with
}

// clip bounds a text of a status, which cannot carry bytes that are not UTF-8 either.
func clip(text string) string { return flood.ClipAt(text, maxText) }

// bounded clips the message of a status that no Fault made: a library's, for example, may quote a whole request.
func bounded(err error) error {
	if len(status.Convert(err).Message()) <= maxText {
		return err
	}
	p := status.Convert(err).Proto()
	p.Message = clip(p.GetMessage())
	return status.FromProto(p).Err()
}

// Err is Status as an error.
func (f Fault) Err() error { return f.Status().Err() }

// Info is the ErrorInfo of an error's status, or nil.
func Info(err error) *errdetails.ErrorInfo { return detail[*errdetails.ErrorInfo](err) }

// Reason is the ErrorInfo reason of an error's status, or "".
func Reason(err error) string { return Info(err).GetReason() }

// Domain is the ErrorInfo domain of an error's status, or "".
func Domain(err error) string { return Info(err).GetDomain() }

// RetryAfter is the RetryInfo delay of an error's status, or 0.
func RetryAfter(err error) time.Duration {
	return detail[*errdetails.RetryInfo](err).GetRetryDelay().AsDuration()
}

// Violations are the BadRequest field violations of an error's status.
func Violations(err error) []Violation {
	var all []Violation
	for _, v := range detail[*errdetails.BadRequest](err).GetFieldViolations() {
		all = append(all, Violation{Field: v.GetField(), Description: v.GetDescription()})
	}
	return all
}

// detail is the first detail of type T, or T's zero value.
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
