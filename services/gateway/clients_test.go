package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
)

// clientRequest is a request with the fields that a client sends, in a file of testdata/clients, and
// what the gateway answers.
type clientRequest struct {
	Claim   string            `json:"claim"`
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers"`
	Body    json.RawMessage   `json:"body"`
	Status  int               `json:"status"`
	// Ends is in the last 2048 bytes of the answer.
	Ends string `json:"ends"`
	// Param is the JSON path of a refused field.
	Param   string `json:"param"`
	Skipped string `json:"skipped"`
}

func TestRequestsOfClientsEndAsTheyShould(t *testing.T) {
	all := dialects((&servertest.Server{}).Start(t))
	g := servertest.Serve(t, all[0], func(c *httpapi.Config) { c.Dialects = all })
	files, err := filepath.Glob("testdata/clients/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		var r clientRequest
		require.NoError(t, json.Unmarshal(raw, &r), file)
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			headers := []string{"Content-Type", "application/json"}
			for name, value := range r.Headers {
				headers = append(headers, name, value)
			}
			out, text := g.Call(t, http.MethodPost, r.Path, string(r.Body), headers...)
			require.Equal(t, r.Status, out.StatusCode, "%s: %s", r.Claim, text)
			require.Equal(t, r.Skipped, out.Header.Get(httpapi.SkippedHeader), r.Claim)
			require.Contains(t, text[max(0, len(text)-2048):], r.Ends, r.Claim)
			if r.Param != "" {
				require.Contains(t, text, `"param":"`+r.Param+`"`, r.Claim)
			}
		})
	}
}
