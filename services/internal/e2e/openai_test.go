package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/auth"
)

// startGateway starts a gateway in front of servers and waits until it is ready.
func startGateway(t *testing.T, targets []*server, args ...string) *server {
	t.Helper()
	var addresses []string
	for _, s := range targets {
		addresses = append(addresses, s.address)
	}
	for range 5 {
		g := &server{address: freeAddress(t)}
		g.process = launch(t, gatewayBinary, slices.Concat([]string{"--listen", g.address, "--target", strings.Join(addresses, ",")}, args)...)
		for deadline := time.Now().Add(hang); !g.taken(t); time.Sleep(5 * time.Millisecond) {
			require.True(t, time.Now().Before(deadline), "the gateway is not ready:\n%s", tail(g.log.String(), 40))
			out, err := http.Get("http://" + g.address + "/readyz")
			if err != nil {
				continue
			}
			require.NoError(t, out.Body.Close())
			if out.StatusCode == http.StatusOK {
				return g
			}
		}
	}
	require.FailNow(t, "no port is free for long enough")
	return nil
}

// post makes a request to a gateway. headers are names and values.
func (s *server) post(ctx context.Context, path, body string, headers ...string) (*http.Response, error) {
	in, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.address+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		in.Header.Set(headers[i], headers[i+1])
	}
	return http.DefaultClient.Do(in)
}

// completion is what a test reads of a completion, or of one chunk of it.
type completion struct {
	Choices []struct {
		Text   string `json:"text"`
		Finish string `json:"finish_reason"`
	} `json:"choices"`
	Usage struct {
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// sse is a stream of completion chunks that is being read.
type sse struct {
	body io.ReadCloser
	in   *bufio.Reader
	text string
	done bool // [DONE] came
}

// openSSE starts a stream and reads its first text.
func openSSE(ctx context.Context, g *server, body string) (*sse, error) {
	out, err := g.post(ctx, "/v1/completions", body)
	if err != nil {
		return nil, err
	}
	s := &sse{body: out.Body, in: bufio.NewReader(out.Body)}
	for s.text == "" {
		if err := s.read(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// read reads an event.
func (s *sse) read() error {
	line, err := s.in.ReadString('\n')
	data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
	if err != nil || !ok {
		return err
	}
	if data == "[DONE]" {
		s.done = true
		return nil
	}
	var c completion
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		return err
	}
	if c.Error != nil {
		return fmt.Errorf("%s: %s", c.Error.Code, c.Error.Message)
	}
	for _, choice := range c.Choices {
		s.text += choice.Text
	}
	return nil
}

// rest reads to the end.
func (s *sse) rest() error {
	for !s.done {
		if err := s.read(); err != nil {
			return err
		}
	}
	return s.body.Close()
}

// prompt returns the body of request i, of exactly n tokens.
func prompt(model string, n, i int, more string) string {
	return fmt.Sprintf(`{"model":%q,"prompt":"Once upon a time","max_tokens":%d,"ignore_eos":true,"seed":%d%s}`, model, n, i, more)
}

func TestSSEStreamsOutliveTheirWorker(t *testing.T) {
	t.Parallel()
	w1, w2 := startWorker(t, "w1", paced...), startWorker(t, "w2", paced...)
	s := startScheduler(t, []*server{w1, w2})
	s.untilServed(t, long, 2)
	g := startGateway(t, []*server{s})
	const streams, tokens = 20, 300
	all := make([]*sse, streams)
	errs := make([]error, streams)
	var begun sync.WaitGroup
	for i := range all {
		begun.Go(func() { all[i], errs[i] = openSSE(undated(t), g, prompt(long, tokens, i, `,"stream":true`)) })
	}
	begun.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	w1.kill()
	var ended sync.WaitGroup
	for i := range all {
		ended.Go(func() { errs[i] = all[i].rest() })
	}
	ended.Wait()
	for i, stream := range all {
		require.NoError(t, errs[i])
		out, err := g.post(within(t), "/v1/completions", prompt(long, tokens, i, ""))
		require.NoError(t, err)
		var whole completion
		require.NoError(t, json.NewDecoder(out.Body).Decode(&whole))
		require.NoError(t, out.Body.Close())
		require.Nil(t, whole.Error)
		require.Equal(t, tokens, whole.Usage.CompletionTokens)
		require.Equal(t, whole.Choices[0].Text, stream.text, "stream %d has the bytes of an undisturbed answer", i)
	}
}

func TestGatewayPassesTokensToServersWithKeys(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("k", 40)
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	require.NoError(t, os.WriteFile(keys, fmt.Appendf(nil, "- {id: web, hash: %q, rights: [generate]}\n", auth.HashOf(token)), 0o600))
	w := startWorker(t, "w1", quick...)
	// Its health has a token neither: Check is open to everyone.
	s := startScheduler(t, nil, "--workers", w.address, "--auth-keys", keys)
	g := startGateway(t, []*server{s})
	for want, header := range map[string]string{"NO_TOKEN": "", "UNKNOWN_TOKEN": "Bearer " + strings.Repeat("x", 40), "MODEL_NOT_LOADED": "Bearer " + token} {
		out, err := g.post(within(t), "/v1/completions", prompt(stories, 2, 1, `,"user":"someone"`), "Authorization", header)
		require.NoError(t, err)
		var failed completion
		require.NoError(t, json.NewDecoder(out.Body).Decode(&failed))
		require.NoError(t, out.Body.Close())
		require.Equal(t, want, failed.Error.Code)
		require.Equal(t, want != "MODEL_NOT_LOADED", out.StatusCode == http.StatusUnauthorized)
	}
	require.NotContains(t, g.log.String(), token)
}

func TestGatewayStopsAfterItsStreams(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	g := startGateway(t, []*server{w}) // a worker serves the same contract
	stream, err := openSSE(undated(t), g, prompt(long, 300, 1, `,"stream":true`))
	require.NoError(t, err)
	g.terminate()
	require.NoError(t, stream.rest())
	require.Zero(t, g.exit(t))
}

func TestSSEStreamsOutliveTheirScheduler(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	a, b := startScheduler(t, []*server{w}), startScheduler(t, []*server{w})
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 1)
	}
	g := startGateway(t, []*server{a, b})
	const streams, tokens = 12, 300
	all := make([]*sse, streams)
	for i := range all {
		var err error
		all[i], err = openSSE(undated(t), g, prompt(long, tokens, i, `,"stream":true`))
		require.NoError(t, err)
	}
	a.kill()
	for i, stream := range all {
		require.NoError(t, stream.rest())
		out, err := g.post(within(t), "/v1/completions", prompt(long, tokens, i, ""))
		require.NoError(t, err)
		var whole completion
		require.NoError(t, json.NewDecoder(out.Body).Decode(&whole))
		require.NoError(t, out.Body.Close())
		require.Equal(t, whole.Choices[0].Text, stream.text, "stream %d has the bytes of an undisturbed answer", i)
	}
}

func TestGatewayConstrainsAnswers(t *testing.T) {
	t.Parallel()
	g := startGateway(t, []*server{startWorker(t, "w1", "--load", stories)})
	const schema = `{"type":"object","properties":{"name":{"enum":["Tom","Lily"]},"age":{"type":"integer","minimum":1,"maximum":99}},` +
		`"required":["name","age"],"additionalProperties":false}`
	out, err := g.post(t.Context(), "/v1/completions", `{"model":"stories","prompt":"Once","seed":3,"max_tokens":60,"response_format":`+
		`{"type":"json_schema","json_schema":{"name":"child","strict":true,"schema":`+schema+`}}}`)
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Body.Close()) }()
	var c completion
	require.NoError(t, json.NewDecoder(out.Body).Decode(&c))
	require.Nil(t, c.Error)
	require.Equal(t, "stop", c.Choices[0].Finish)
	var child struct {
		Name string
		Age  int
	}
	require.NoError(t, json.Unmarshal([]byte(c.Choices[0].Text), &child), c.Choices[0].Text)
	require.Contains(t, []string{"Tom", "Lily"}, child.Name)
	require.True(t, child.Age >= 1 && child.Age <= 99)

	out, err = g.post(t.Context(), "/v1/completions", `{"model":"stories","prompt":"Once","response_format":`+
		`{"type":"json_schema","json_schema":{"name":"child","strict":true,"schema":{"unevaluatedItems":false}}}}`)
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Body.Close()) }()
	text, err := io.ReadAll(out.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, out.StatusCode, string(text))
	require.Contains(t, string(text), `"param":"response_format.json_schema.schema"`)
	require.Contains(t, string(text), "INVALID_GRAMMAR")
}
