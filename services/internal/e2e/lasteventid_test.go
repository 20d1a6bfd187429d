package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/modeltest"
)

// eventReader is a client of an event stream that keeps the events that arrived whole, as browsers do.
type eventReader struct {
	path, body string
	last       string // the id of the last event
	text       string
	done       bool // the last event of the dialect came
}

// deltaText matches the text of the model in an event of any dialect.
var deltaText = regexp.MustCompile(`"(?:delta|text|content)":("(?:[^"\\]|\\.)*")`)

// read reads from a gateway until the stream ends or breaks, or enough bytes of text came.
func (r *eventReader) read(t *testing.T, g *server, enough int) {
	t.Helper()
	var headers []string
	if r.last != "" {
		headers = []string{"Last-Event-ID", r.last}
	}
	out, err := g.post(undated(t), r.path, r.body, headers...)
	require.NoError(t, err)
	if out.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(out.Body)
		require.FailNow(t, string(why))
	}
	t.Cleanup(func() { _ = out.Body.Close() }) // it may be broken
	var rest string
	for buffer := make([]byte, 700); !r.done && len(r.text) < enough; {
		n, err := out.Body.Read(buffer)
		rest += string(buffer[:n])
		for event, more, ok := strings.Cut(rest, "\n\n"); ok; event, more, ok = strings.Cut(rest, "\n\n") {
			rest = more
			r.event(t, event)
		}
		if err != nil {
			return
		}
	}
}

func (r *eventReader) event(t *testing.T, event string) {
	t.Helper()
	require.NotContains(t, event, `"error":{`)
	for line := range strings.Lines(event + "\n") {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch name {
		case "id":
			r.last = value
		case "data":
			r.done = r.done || value == "[DONE]" || strings.Contains(value, `"response.incomplete"`) || strings.Contains(value, `"message_stop"`)
			if strings.Contains(value, `.done"`) || strings.Contains(value, `"response":{`) { // these repeat the text
				continue
			}
			for _, match := range deltaText.FindAllStringSubmatch(value, -1) {
				var text string
				require.NoError(t, json.Unmarshal([]byte(match[1]), &text))
				r.text += text
			}
		}
	}
}

func TestEventStreamsOutliveTheirGateway(t *testing.T) {
	// A client whose gateway is killed gets every byte once from another one with the same key.
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600))
	models := t.TempDir()
	modeltest.WithMetadata(t, filepath.Join(modelsDir, long+".gguf"), filepath.Join(models, long+".gguf"), map[string]any{
		"tokenizer.chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
	})
	w := startWorkerOf(t, models, "w1", paced...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	a, b := startGateway(t, []*server{s}, "--resume-key-file", key), startGateway(t, []*server{s}, "--resume-key-file", key)
	other := startGateway(t, []*server{s})
	chat := `"messages":[{"role":"user","content":"Tell me"}]`
	var broken, whole []*eventReader
	for path, fields := range map[string]string{
		"/v1/chat/completions": `"max_tokens":60,"ignore_eos":true,` + chat,
		"/v1/completions":      `"max_tokens":60,"ignore_eos":true,"prompt":"Once upon"`,
		"/v1/responses":        `"max_output_tokens":60,"input":"Tell me"`,
		"/v1/messages":         `"max_tokens":60,` + chat,
	} {
		body := fmt.Sprintf(`{"model":%q,"stream":true,"seed":3,%s}`, long, fields)
		undisturbed := &eventReader{path: path, body: body}
		undisturbed.read(t, other, 1<<20)
		require.True(t, undisturbed.done, path)
		require.NotEmpty(t, undisturbed.text, path)
		r := &eventReader{path: path, body: body}
		r.read(t, a, len(undisturbed.text)/3)
		broken, whole = append(broken, r), append(whole, undisturbed)
	}
	a.kill()
	for i, r := range broken {
		require.False(t, r.done)
		out, err := other.post(within(t), r.path, r.body, "Last-Event-ID", r.last)
		require.NoError(t, err)
		require.Equal(t, http.StatusBadRequest, out.StatusCode, "a gateway with another key does not continue it")
		require.NoError(t, out.Body.Close())
		r.read(t, b, 1<<20)
		require.True(t, r.done, r.path)
		require.Equal(t, whole[i].text, r.text, r.path)
	}
}
