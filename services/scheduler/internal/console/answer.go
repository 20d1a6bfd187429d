package console

import (
	"encoding/json"
	"net/http"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/rpc"
)

// failure is the error of a call, as JSON.
type failure struct {
	// Code is the name of the status code, for example NOT_FOUND.
	Code string `json:"code"`
	// Reason is for programs; "" if the scheduler was not called.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message"`
}

// statuses are the HTTP codes of calls that end before their first response. Others are server
// errors.
var statuses = map[codes.Code]int{
	codes.InvalidArgument: http.StatusBadRequest, codes.FailedPrecondition: http.StatusConflict, codes.NotFound: http.StatusNotFound,
	codes.Unauthenticated: http.StatusUnauthorized, codes.PermissionDenied: http.StatusForbidden,
	codes.ResourceExhausted: http.StatusTooManyRequests, codes.Unavailable: http.StatusServiceUnavailable,
	codes.DeadlineExceeded: http.StatusGatewayTimeout, codes.Unimplemented: http.StatusNotImplemented,
}

// fail writes the error of a call, after its responses or alone.
func fail(w http.ResponseWriter, err error) {
	is := status.Convert(err)
	of := http.StatusInternalServerError
	if known, found := statuses[is.Code()]; found {
		of = known
	}
	write(w, of, failure{code.Code(is.Code()).String(), rpc.Reason(err), is.Message()})
}

// refuse answers a request without making a call.
func refuse(w http.ResponseWriter, httpCode int, c codes.Code, message string) {
	write(w, httpCode, failure{Code: code.Code(c).String(), Message: message})
}

func write(w http.ResponseWriter, httpCode int, f failure) {
	text, err := json.Marshal(f)
	if err != nil { // texts always marshal
		return
	}
	if w.Header().Get("Content-Type") == "" { // nothing is written yet
		w.Header().Set("Content-Type", lines)
		w.WriteHeader(httpCode)
	}
	writeLine(w, "error", text)
}

// lines is the content type of responses.
const lines = "application/x-ndjson"

// writeLine writes an object with one field as a line, and sends it at once. It returns false if
// the browser is gone.
func writeLine(w http.ResponseWriter, field string, text []byte) bool {
	w.Header().Set("Content-Type", lines)
	control := http.NewResponseController(w)
	// if it cannot be set, the write fails
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
	line := make([]byte, 0, len(text)+len(field)+6)
	line = append(append(append(line, `{"`...), field...), `":`...)
	line = append(append(line, text...), "}\n"...)
	if _, err := w.Write(line); err != nil {
		return false
	}
	return control.Flush() == nil
}
