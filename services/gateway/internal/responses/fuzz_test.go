package responses

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
)

func FuzzResponsesRequest(f *testing.F) {
	f.Add(`{"model":"m","input":"a","instructions":"b","max_output_tokens":5,"temperature":0.5,"metadata":{"a":"b"},"user":"u","service_tier":"flex","seed":-1,"timeout":5,
		"reasoning":{"effort":"low"},"stream":true}`)
	f.Add(`{"model":"m","input":[{"type":"message","role":"developer","content":[{"type":"input_text","text":"a"}]},{"type":"reasoning","summary":[]}],
		"tools":[{"type":"web_search","filters":{}},{"type":"function"}],"tool_choice":{"type":"function"},"include":["x"],"text":{"format":{"type":"text"}}}`)
	f.Fuzz(func(t *testing.T, body string) {
		_ = servertest.Handle(t, body, func(x *httpapi.Exchange) error {
			var r request
			if err := x.Decode(&r, nil); err != nil {
				return err
			}
			in, _, err := r.translate(x)
			if err != nil {
				return err
			}
			if _, err := proto.Marshal(in); err != nil {
				t.Fatalf("a request that was accepted cannot be encoded: %v", err)
			}
			return nil
		})
	})
}
