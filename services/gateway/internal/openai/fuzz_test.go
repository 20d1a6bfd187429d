package openai

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
)

// decodeAs serves one request with a handler that decodes and translates, and returns what it
// returned.
func decodeAs(t *testing.T, body string, handle func(x *httpapi.Exchange) error) error {
	t.Helper()
	var err error
	d := &fakeDialect{handle: func(x *httpapi.Exchange) error {
		err = handle(x)
		return err
	}}
	s := httpapi.New(httpapi.Config{Dialects: []httpapi.Dialect{d}, MaxBodyBytes: 1 << 20, MaxHeldBytes: 8 << 20, SendStall: hang}, quiet)
	in := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
	s.Handler().ServeHTTP(httptest.NewRecorder(), in)
	return err
}

// sendable fails if a request cannot be sent to a server.
func sendable(t *testing.T, m proto.Message) {
	t.Helper()
	if _, err := proto.Marshal(m); err != nil {
		t.Fatalf("a request that was accepted cannot be encoded: %v", err)
	}
}

func FuzzChatRequest(f *testing.F) {
	f.Add(`{"model":"m","messages":[{"role":"developer","content":[{"type":"text","text":"a"}]}],"stop":["a"],"logit_bias":{"5":-1},"seed":-1,"n":2,
		"chat_template_kwargs":{"a":[1]},"reasoning_effort":"low","user":"u","tools":[{"type":"function"}],"tool_choice":"auto","logprobs":true}`)
	f.Fuzz(func(t *testing.T, body string) {
		_ = decodeAs(t, body, func(x *httpapi.Exchange) error {
			var r chatRequest
			if err := x.Decode(&r, nil); err != nil {
				return err
			}
			in, err := r.request(x)
			if err == nil {
				sendable(t, in)
			}
			return err
		})
	})
}

func FuzzCompletionRequest(f *testing.F) {
	f.Add(`{"model":"m","prompt":[[1,2],[3]],"echo":true,"logprobs":2,"best_of":1,"stop":"x","timeout":5,"service_tier":"flex"}`)
	f.Add(`{"model":"m","prompt":["a","b"],"stream":true,"stream_options":{"include_usage":true},"allowed_token_ids":[1],"top_k":-1}`)
	f.Fuzz(func(t *testing.T, body string) {
		_ = decodeAs(t, body, func(x *httpapi.Exchange) error {
			var r completionRequest
			if err := x.Decode(&r, nil); err != nil {
				return err
			}
			all, err := r.request(x)
			if err != nil {
				return err
			}
			for _, in := range all {
				sendable(t, in)
			}
			return nil
		})
	})
}

func FuzzEmbeddingRequest(f *testing.F) {
	f.Add(`{"model":"m","input":["a"],"encoding_format":"base64","user":"u"}`)
	f.Add(`{"model":"m","input":[[1,2]],"dimensions":3}`)
	f.Fuzz(func(t *testing.T, body string) {
		_ = decodeAs(t, body, func(x *httpapi.Exchange) error {
			var r embeddingRequest
			if err := x.Decode(&r, nil); err != nil {
				return err
			}
			in, err := r.request(x)
			if err == nil {
				sendable(t, in)
			}
			return err
		})
	})
}

func FuzzRerankRequest(f *testing.F) {
	f.Add(`{"model":"m","query":{"text":"q"},"documents":["a",{"text":"b"}],"top_n":1}`)
	f.Fuzz(func(t *testing.T, body string) {
		_ = decodeAs(t, body, func(x *httpapi.Exchange) error {
			var r rerankRequest
			if err := x.Decode(&r, nil); err != nil {
				return err
			}
			in, err := r.request(x)
			if err == nil {
				sendable(t, in)
			}
			return err
		})
	})
}

func FuzzTokenizeRequest(f *testing.F) {
	f.Add(`{"model":"m","messages":[{"role":"user","content":"a","name":"n"}],"add_generation_prompt":true}`, `{"model":"m","tokens":[1]}`)
	f.Fuzz(func(t *testing.T, tokenize, detokenize string) {
		_ = decodeAs(t, tokenize, func(x *httpapi.Exchange) error {
			var r tokenizeRequest
			if err := x.Decode(&r, nil); err != nil {
				return err
			}
			in, err := r.request(x)
			if err == nil {
				sendable(t, in)
			}
			return err
		})
		_ = decodeAs(t, detokenize, func(x *httpapi.Exchange) error { return x.Decode(&detokenizeRequest{}, nil) })
	})
}

func TestRequestHasEveryParameter(t *testing.T) {
	// Each field of the contract that a client can set, by its path there.
	const body = `{"model":"m","messages":[{"role":"developer","content":"be kind"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
		"max_completion_tokens":5,"n":2,"temperature":0.5,"top_p":0.25,"frequency_penalty":1,"presence_penalty":-1,"logit_bias":{"50256":-100},
		"seed":-1,"stop":"end","user":"not\u00e9","service_tier":"flex","prompt_cache_key":"key","logprobs":true,"top_logprobs":3,
		"top_k":-1,"min_p":0.125,"typical_p":0.75,"repetition_penalty":1.5,"min_tokens":1,"ignore_eos":true,"stop_token_ids":[2],
		"allowed_token_ids":[1,2],"include_stop_str_in_output":true,"cache_salt":"salt","timeout":60,
		"chat_template_kwargs":{"enable_thinking":false},"reasoning_effort":"low","add_generation_prompt":true,"thinking_token_budget":9}`
	var got *pb.GenerateRequest
	err := decodeAs(t, body, func(x *httpapi.Exchange) (err error) {
		var r chatRequest
		if err := x.Decode(&r, nil); err != nil {
			return err
		}
		got, err = r.request(x)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	got.RequestId = nil
	goldenText(t, "request.txt", got)
}
