package console_test

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/scheduler/internal/console"
)

func TestPageServesItsFilesOnly(t *testing.T) {
	for path, want := range map[string]struct {
		code int
		is   string
	}{
		"/":              {http.StatusOK, "text/html; charset=utf-8"},
		"/console.js":    {http.StatusOK, "text/javascript; charset=utf-8"},
		"/parts.js":      {http.StatusOK, "text/javascript; charset=utf-8"},
		"/playground.js": {http.StatusOK, "text/javascript; charset=utf-8"},
		"/console.css":   {http.StatusOK, "text/css; charset=utf-8"},
		"/favicon.ico":   {http.StatusNoContent, ""},
		"/index.html":    {http.StatusNotFound, "text/plain; charset=utf-8"},
		"/metrics":       {http.StatusNotFound, "text/plain; charset=utf-8"},
	} {
		out := ask(t, console.Config{}, http.MethodGet, path, "", nil)
		require.Equal(t, want.code, out.Code, path)
		require.Equal(t, want.is, out.Header().Get("Content-Type"), path)
		require.True(t, strings.HasPrefix(out.Header().Get("Content-Security-Policy"), "default-src 'self';"), path)
		require.Contains(t, out.Header().Get("Content-Security-Policy"), "frame-ancestors 'none'")
		require.Equal(t, "nosniff", out.Header().Get("X-Content-Type-Options"))
		require.Equal(t, "no-store", out.Header().Get("Cache-Control"))
		require.Empty(t, out.Header().Get("Access-Control-Allow-Origin"))
	}
}

func TestScriptsAreShortAndLocal(t *testing.T) {
	imports := regexp.MustCompile(`(?m)^import .* from "(.*)";$|import\(`)
	for _, path := range []string{"/console.js", "/parts.js", "/playground.js"} {
		script := ask(t, console.Config{}, http.MethodGet, path, "", nil).Body.String()
		require.LessOrEqual(t, strings.Count(script, "\n"), 400, "a page without a build is one that an operator can read")
		for _, word := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "https://cdn"} {
			require.NotContains(t, script, word)
		}
		for _, module := range imports.FindAllStringSubmatch(script, -1) {
			require.Contains(t, []string{"./parts.js", "./playground.js"}, module[1], path)
		}
	}
}

func TestPlaintextRequiresALocalHost(t *testing.T) {
	for host, code := range map[string]int{
		"localhost:8070": http.StatusOK, "LOCALHOST": http.StatusOK, "127.0.0.1:8070": http.StatusOK, "127.3.2.1": http.StatusOK,
		"[::1]:9999": http.StatusOK, "[::1]": http.StatusOK, "[::ffff:127.0.0.1]:80": http.StatusOK,
		"rebound.example:8070": http.StatusForbidden, "10.0.0.1:8070": http.StatusForbidden, "127.0.0.1.rebound.example": http.StatusForbidden,
		"localhost.rebound.example": http.StatusForbidden, "": http.StatusForbidden, "unix:8070": http.StatusForbidden,
		"[fe80::1]:8070": http.StatusForbidden,
	} {
		out := ask(t, console.Config{}, http.MethodGet, "/", "", func(r *http.Request) { r.Host = host })
		require.Equal(t, code, out.Code, host)
		out = ask(t, console.Config{}, http.MethodPost, "/api/UnloadModel", "{", func(r *http.Request) { r.Host = host })
		require.NotEqual(t, http.StatusOK, out.Code)
		require.Equal(t, code == http.StatusForbidden, out.Code == http.StatusForbidden, "%s: %s", host, out.Body)
	}
}

func TestTLSAcceptsAnyHost(t *testing.T) {
	over := func(r *http.Request) { r.Host, r.TLS = "console.example", &tls.ConnectionState{} }
	require.Equal(t, http.StatusOK, ask(t, console.Config{}, http.MethodGet, "/", "", over).Code)
	refusing := console.Config{Refuse: func(*tls.ConnectionState) error { return errors.New("show another certificate") }}
	out := ask(t, refusing, http.MethodGet, "/", "", over)
	require.Equal(t, http.StatusForbidden, out.Code)
	require.JSONEq(t, `{"error":{"code":"PERMISSION_DENIED","message":"show another certificate"}}`, out.Body.String())
}

func TestForeignCallsAreRefused(t *testing.T) {
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	large := `{"model":"` + strings.Repeat("x", 1<<20) + `"}`
	for name, tc := range map[string]struct {
		method, path, body string
		change             func(*http.Request)
		code               int
		says               string
	}{
		"of another site":                      {http.MethodPost, "/api/LoadModel", "{}", header("Sec-Fetch-Site", "cross-site"), 403, "another origin"},
		"of another port":                      {http.MethodPost, "/api/LoadModel", "{}", header("Sec-Fetch-Site", "same-site"), 403, "another origin"},
		"of another origin, by an old browser": {http.MethodPost, "/api/LoadModel", "{}", header("Origin", "http://evil.example"), 403, "another origin"},
		"of a page without an origin":          {http.MethodPost, "/api/LoadModel", "{}", header("Origin", "null"), 403, "another origin"},
		"as a form":                            {http.MethodPost, "/api/LoadModel", "model=m", header("Content-Type", "application/x-www-form-urlencoded"), 415, "application/json"},
		"as text":                              {http.MethodPost, "/api/LoadModel", "{}", header("Content-Type", "text/plain"), 415, "application/json"},
		"as nothing":                           {http.MethodPost, "/api/LoadModel", "{}", header("Content-Type", ""), 415, "application/json"},
		"by GET":                               {http.MethodGet, "/api/LoadModel", "", nil, 405, ""},
		"of another method":                    {http.MethodPost, "/api/TrainCodebook", "{}", nil, 404, "no method of this name"},
		"of a path":                            {http.MethodPost, "/api/a/b", "{}", nil, 404, ""},
		"with more than a request has":         {http.MethodPost, "/api/LoadModel", large, nil, 413, "larger than 1048576 bytes"},
		"with what is no JSON":                 {http.MethodPost, "/api/LoadModel", `{"model"`, nil, 400, "no millrace.v1.LoadModelRequest"},
		"with a field that there isn't":        {http.MethodPost, "/api/LoadModel", `{"name":"m"}`, nil, 400, "name"},
		"with a value of another type":         {http.MethodPost, "/api/LoadModel", `{"replicas":"many"}`, nil, 400, "replicas"},
		"with a number out of range":           {http.MethodPost, "/api/LoadModel", `{"replicas":-1}`, nil, 400, "replicas"},
	} {
		t.Run(name, func(t *testing.T) {
			// without a connection: a call would panic
			out := ask(t, console.Config{}, tc.method, tc.path, tc.body, tc.change)
			require.Equal(t, tc.code, out.Code, out.Body)
			require.Contains(t, out.Body.String(), tc.says)
		})
	}
}

// ask sends a request like a browser that shows the page.
func ask(t *testing.T, cfg console.Config, method, path, body string, change func(*http.Request)) *httptest.ResponseRecorder {
	t.Helper()
	in := httptest.NewRequestWithContext(t.Context(), method, "http://localhost:8070"+path, strings.NewReader(body))
	in.Header.Set("Content-Type", "application/json")
	if change != nil {
		change(in)
	}
	out := httptest.NewRecorder()
	console.Handler(cfg).ServeHTTP(out, in)
	return out
}
