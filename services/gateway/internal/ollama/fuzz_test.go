package ollama

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
)

// decode decodes a body as a request, which translate translates.
func decode(t *testing.T, body string, r any, translate func(x *httpapi.Exchange) (proto.Message, error)) {
	t.Helper()
	_ = servertest.Handle(t, body, func(x *httpapi.Exchange) error {
		if err := x.Decode(r, nil); err != nil {
			return err
		}
		in, err := translate(x)
		if err != nil {
			return err
		}
		if _, err := proto.Marshal(in); err != nil {
			t.Fatalf("a request that was accepted cannot be encoded: %v", err)
		}
		return nil
	})
}

func FuzzRequests(f *testing.F) {
	f.Add(`{"model":"m:latest","messages":[{"role":"user","content":"a","thinking":"b","images":[]}],"options":{"seed":-1,"stop":["a"],"num_predict":-2,"top_k":5,"num_ctx":1},
		"think":false,"keep_alive":"5m","format":"","stream":false}`)
	f.Add(`{"model":"m","prompt":"a","system":"b","raw":true,"template":"","context":[],"options":{"stop":"x","temperature":0.5,"mirostat":0}}`)
	f.Add(`{"model":"m","input":["a"],"truncate":true,"options":{}}`)
	f.Add(`{"model":"m","name":"n","verbose":true}`)
	f.Fuzz(func(t *testing.T, body string) {
		var chat chatRequest
		decode(t, body, &chat, func(x *httpapi.Exchange) (proto.Message, error) { return chat.request(x) })
		var generate generateRequest
		decode(t, body, &generate, func(x *httpapi.Exchange) (proto.Message, error) { return generate.request(x) })
		var embed embedRequest
		decode(t, body, &embed, func(x *httpapi.Exchange) (proto.Message, error) { return embed.request(x) })
		var show showRequest
		decode(t, body, &show, func(*httpapi.Exchange) (proto.Message, error) { return &pb.ModelInfo{}, nil })
	})
}
