package translate_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/anthropic"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/ollama"
	"github.com/millrace/millrace/services/gateway/internal/openai"
	"github.com/millrace/millrace/services/gateway/internal/responses"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
	"github.com/millrace/millrace/services/gateway/internal/target"
)

func TestFormatsBecomeConstraints(t *testing.T) {
	const (
		object  = `{"type":"object"}`
		schema  = `{"properties": {"a":{"type":"integer"}}}`
		chat    = "/v1/chat/completions"
		hi      = `"messages":[{"role":"user","content":"hi"}]`
		lenient = true
	)
	server := &servertest.Server{}
	client := server.Start(t)
	gateways := map[string]*servertest.Gateway{}
	for path, open := range map[string]func(c *target.Client) httpapi.Dialect{
		chat:            func(c *target.Client) httpapi.Dialect { return openai.New(c) },
		"/v1/responses": func(c *target.Client) httpapi.Dialect { return responses.New(c) },
		"/v1/messages":  func(c *target.Client) httpapi.Dialect { return anthropic.New(c) },
		"/api/chat":     func(c *target.Client) httpapi.Dialect { return ollama.New(c) },
	} {
		gateways[path] = servertest.Serve(t, open(client), nil)
	}
	gateways["/v1/completions"], gateways["/api/generate"] = gateways[chat], gateways["/api/chat"]
	for _, tc := range []struct {
		path, fields, want string
		lenient            bool
	}{
		{chat, hi + `,"response_format":{"type":"text"}`, "", false},
		{chat, hi + `,"response_format":{"type":"json_object"}`, object, false},
		{chat, hi + `,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":` + schema + `}}`, schema, lenient},
		{chat, hi + `,"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":` + schema + `}}`, schema, false},
		{"/v1/completions", `"prompt":"hi","response_format":{"type":"json_object"}`, object, false},
		{chat, hi + `,"structured_outputs":{"json":` + schema + `}`, schema, false},
		{chat, hi + `,"structured_outputs":{"json_object":true}`, object, false},
		{"/v1/responses", `"input":"hi","text":{"format":{"type":"json_schema","name":"n","strict":false,"schema":` + schema + `}}`, schema, lenient},
		{"/v1/messages", hi + `,"max_tokens":9,"output_config":{"format":{"type":"json_schema","schema":` + schema + `}}`, schema, lenient},
		{"/api/chat", hi + `,"format":"json"`, object, false},
		{"/api/generate", `"prompt":"hi","format":` + schema, schema, false},
		{"/api/generate", `"prompt":"hi","format":null`, "", false},
	} {
		out, text := gateways[tc.path].Call(t, http.MethodPost, tc.path, fmt.Sprintf(`{"model":%q,%s}`, servertest.Model, tc.fields))
		require.Equal(t, http.StatusOK, out.StatusCode, "%s %s: %s", tc.path, tc.fields, text)
		last, _ := server.Last()
		require.Equal(t, tc.want, last.GetGuided().GetJsonSchema(), "%s %s", tc.path, tc.fields)
		require.Equal(t, tc.lenient, last.GetGuided().GetLenient(), "%s %s", tc.path, tc.fields)
		require.Equal(t, tc.want != "", last.GetGuided() != nil)
	}
	for fields, want := range map[string]*pb.Guided{
		`"regex":"a+"`:               {Constraint: &pb.Guided_Regex{Regex: "a+"}},
		`"grammar":"root ::= \"a\""`: {Constraint: &pb.Guided_Grammar{Grammar: `root ::= "a"`}},
		`"choice":["a","b"]`:         {Constraint: &pb.Guided_Choice{Choice: &pb.Choice{Options: []string{"a", "b"}}}},
	} {
		out, text := gateways[chat].Call(t, http.MethodPost, chat, fmt.Sprintf(`{"model":%q,%s,"structured_outputs":{%s}}`, servertest.Model, hi, fields))
		require.Equal(t, http.StatusOK, out.StatusCode, text)
		last, _ := server.Last()
		require.True(t, proto.Equal(want, last.GetGuided()), "%v", last.GetGuided())
	}
}
