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

// failure is why there is no answer, or no further one.
type failure struct {
	// Code is the status's, as the contract names it: NOT_FOUND.
	Code string `json:"code"`
	// Reason is for programs; empty where the scheduler was not asked.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message"`
}

// statuses are the codes of HTTP of calls that end before their first answer. What is not here is the server's fault.
var statuses = map[codes.Code]int{
	codes.InvalidArgument: http.StatusBadRequest, codes.FailedPrecondition: http.StatusConflict, codes.NotFound: http.StatusNotFound,
	codes.Unauthenticated: http.StatusUnauthorized, codes.PermissionDenied: http.StatusForbidden,
	codes.ResourceExhausted: http.StatusTooManyRequests, codes.Unavailable: http.StatusServiceUnavailable,
	codes.DeadlineExceeded: http.StatusGatewayTimeout, codes.Unimplemented: http.StatusNotImplemented,
}

// fail writes the end of a call that failed, behind its answers or in their place.
func fail(w http.ResponseWriter, err error) {
	is := status.Convert(err)
	of := http.StatusInternalServerError
	if known, found := statuses[is.Code()]; found {
		of = known
	}
	write(w, of, failure{code.Code(is.Code()).String(), rpc.Reason(err), is.Message()})
}

// refuse answers a request that is not made a call.
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

// lines is the type of answers.
const lines = "application/x-ndjson"

// writeLine writes a line that is an object of one field, and sends it at once; false: the browser is gone.
func writeLine(w http.ResponseWriter, field string, text []byte) bool {
	w.Header().Set("Content-Type", lines)
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) // where it cannot be set the write fails
	line := make([]byte, 0, len(text)+len(field)+6)
	line = append(append(append(line, `{"`...), field...), `":`...)
	line = append(append(line, text...), "}\n"...)
	if _, err := w.Write(line); err != nil {
		return false
	}
	return control.Flush() == nil
}
