package anthropic

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
)

func FuzzMessagesRequest(f *testing.F) {
	f.Add(`{"model":"m","max_tokens":5,"system":[{"type":"text","text":"a","cache_control":{}}],"messages":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]}],
		"stop_sequences":["a"],"temperature":0.5,"top_p":1,"top_k":5,"metadata":{"user_id":"u"},"service_tier":"auto","seed":-1,"stream":true}`)
	f.Add(`{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[{"name":"f"}],"tool_choice":{"type":"auto"},"thinking":{"type":"enabled","budget_tokens":5}}`)
	f.Fuzz(func(t *testing.T, body string) {
		_ = servertest.Handle(t, body, func(x *httpapi.Exchange) error {
			var r messagesRequest
			if err := x.Decode(&r, nil); err != nil {
				return err
			}
			in, _, err := r.request(x)
			if err != nil {
				return err
			}
			if _, err := proto.Marshal(in); err != nil {
				t.Fatalf("a request that was accepted cannot be encoded: %v", err)
			}
			return nil
		})
		_ = servertest.Handle(t, body, func(x *httpapi.Exchange) error {
			var r conversation
			if err := x.Decode(&r, nil); err != nil {
				return err
			}
			_, _, err := r.chat(x)
			return err
		})
	})
}
