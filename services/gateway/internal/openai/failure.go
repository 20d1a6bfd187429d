package openai

import (
	"encoding/json"
	"net/http"

	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// errorBody is an error in OpenAI's shape.
type errorBody struct {
	Error errorObject `json:"error"`
}

type errorObject struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

// types are the error types of HTTP statuses. Others below 500 are invalid_request_error, others
// server_error.
var types = map[int]string{
	http.StatusUnauthorized: "authentication_error", http.StatusForbidden: "permission_error",
	http.StatusTooManyRequests: "rate_limit_error",
}

// ErrorBody implements httpapi.Dialect.
func (*Dialect) ErrorBody(f *httpapi.Failure) []byte {
	e := errorObject{Message: f.Message, Type: types[f.Status], Code: f.Reason}
	if f.Param != "" {
		e.Param = &f.Param
	}
	switch {
	case e.Type != "":
	case f.Status >= http.StatusInternalServerError:
		e.Type = "server_error"
	default:
		e.Type = "invalid_request_error"
	}
	body, err := json.Marshal(errorBody{e})
	if err != nil { // texts always marshal
		return nil
	}
	return body
}

// ErrorEvent implements httpapi.Dialect. No [DONE] follows it.
func (d *Dialect) ErrorEvent(f *httpapi.Failure) []byte {
	return httpapi.AppendEvent(nil, "", d.ErrorBody(f))
}

// params are the JSON paths of fields of the contract whose last name differs.
var params = map[string]string{
	"sampling.num_sequences": "n", "sampling.allowed_tokens.ids": "allowed_token_ids", "stopping.include_stop_in_output": "include_stop_str_in_output",
	"chat.template_kwargs": "chat_template_kwargs", "chat.reasoning_budget": "thinking_token_budget", "cache.salt": "cache_salt", "fairness_id": "user", "priority": "service_tier",
	"token_ids.ids": "prompt", "token_ids": "prompt", "text": "prompt",
}

// failure adds the path of the request's field to the status of a call. own has paths that depend
// on the request.
func failure(err error, own map[string]string) error {
	return translate.Paths{Fields: []map[string]string{own, params}}.Failure(err)
}
