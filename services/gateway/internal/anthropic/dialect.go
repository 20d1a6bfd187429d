package anthropic

import (
	"encoding/json"
	"net/http"

	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/target"
)

// Dialect is Anthropic's API over the servers of a client.
type Dialect struct{ client *target.Client }

// New returns the dialect.
func New(client *target.Client) *Dialect { return &Dialect{client} }

// Routes implements httpapi.Dialect.
func (d *Dialect) Routes() []httpapi.Route {
	return []httpapi.Route{
		{Pattern: "POST /v1/messages", Handle: named(d.messages)},
		{Pattern: "POST /v1/messages/count_tokens", Handle: named(d.countTokens)},
	}
}

var _ httpapi.Dialect = (*Dialect)(nil)

// named adds the request id in the header that Anthropic's clients read.
func named(handle func(x *httpapi.Exchange) error) func(x *httpapi.Exchange) error {
	return func(x *httpapi.Exchange) error {
		x.Header().Set("Request-Id", x.ID)
		return handle(x)
	}
}

// errorBody is an error in Anthropic's shape.
type errorBody struct {
	Type      string      `json:"type"`
	Error     errorObject `json:"error"`
	RequestID string      `json:"request_id"`
}

type errorObject struct {
	Type    string       `json:"type"`
	Message string       `json:"message"`
	Details errorDetails `json:"details"`
}

// errorDetails has the code that Anthropic's clients read, and the path of the field that is wrong.
type errorDetails struct {
	ErrorCode string `json:"error_code"`
	Param     string `json:"param,omitempty"`
}

// threadUnsupported is the code of a request with the field thread, whose messages a server would have stored. At this code the tool
// runners of Anthropic's SDKs, which try the field first, send the whole conversation instead.
const threadUnsupported = "thread_unsupported_request"

// types are the error types of HTTP statuses. Others below 500 are invalid_request_error, others
// api_error.
var types = map[int]string{
	http.StatusUnauthorized: "authentication_error", http.StatusForbidden: "permission_error", http.StatusNotFound: "not_found_error",
	http.StatusConflict: "conflict_error", http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusTooManyRequests: "rate_limit_error", http.StatusServiceUnavailable: "overloaded_error",
	http.StatusGatewayTimeout: "timeout_error", http.StatusRequestTimeout: "timeout_error",
}

// ErrorBody implements httpapi.Dialect.
func (*Dialect) ErrorBody(f *httpapi.Failure) []byte {
	e := errorObject{Type: types[f.Status], Message: f.Message, Details: errorDetails{f.Reason, f.Param}}
	if f.Param == "thread" {
		e.Details.ErrorCode = threadUnsupported
	}
	switch {
	case e.Type != "":
	case f.Status >= http.StatusInternalServerError:
		e.Type = "api_error"
	default:
		e.Type = "invalid_request_error"
	}
	body, err := json.Marshal(errorBody{"error", e, f.RequestID})
	if err != nil { // texts always marshal
		return nil
	}
	return body
}

// ErrorEvent implements httpapi.Dialect. No message_stop follows it.
func (d *Dialect) ErrorEvent(f *httpapi.Failure) []byte {
	return httpapi.AppendEvent(nil, "error", d.ErrorBody(f))
}
