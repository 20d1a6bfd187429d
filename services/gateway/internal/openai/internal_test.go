package openai

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/repotest"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
)

const hang = time.Minute

// quiet is a logger that writes nothing.
var quiet = hclog.NewNullLogger()

// fakeDialect has one handler.
type fakeDialect struct {
	Dialect
	handle func(x *httpapi.Exchange) error
}

func (d *fakeDialect) Routes() []httpapi.Route {
	return []httpapi.Route{{Pattern: "POST /", Handle: d.handle}}
}

// goldenText compares a message with a file of testdata.
func goldenText(t *testing.T, name string, m proto.Message) {
	t.Helper()
	raw, err := protojson.Marshal(m)
	require.NoError(t, err)
	var text bytes.Buffer // without the white space that protojson varies
	require.NoError(t, json.Indent(&text, raw, "", "  "))
	text.WriteByte('\n')
	path := filepath.Join("testdata", name)
	if *repotest.Update {
		require.NoError(t, os.WriteFile(path, text.Bytes(), 0o600))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "the same test with -update writes it")
	require.Equal(t, string(want), text.String())
}

func TestParamsAreThoseOfTheRequest(t *testing.T) {
	for field, want := range map[string]string{
		"sampling.temperature": "temperature", "sampling.logit_bias[5]": "logit_bias.5", "sampling.num_sequences": "n",
		"stopping.stop[1]": "stop[1]", "stopping.max_tokens": "max_tokens", "chat.messages[2].role": "messages[2].role",
		"chat.template_kwargs": "chat_template_kwargs", "chat.reasoning_budget": "thinking_token_budget", "cache.salt": "cache_salt", "sampling.allowed_tokens.ids": "allowed_token_ids",
		"response.output_candidates": "top_logprobs", "": "",
	} {
		f := httpapi.Refuse(invalidArgument, "", "wrong")
		f.Field = field
		err := failure(f, map[string]string{"response.output_candidates": "top_logprobs"})
		require.Equal(t, want, httpapi.FailureOf(err).Param, field)
	}
}
