package suites_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/repotest"
	"github.com/millrace/millrace/services/gateway/internal/anthropic"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/openai"
	"github.com/millrace/millrace/services/gateway/internal/responses"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
)

// suite is the part of an SDK's own tests that calls paths of the gateway.
type suite struct {
	module string
	base   string   // of the gateway's URL, as the SDK's users give it
	dir    string   // of the files, in the module
	files  []string // of package dir_test
}

var all = map[string]suite{
	"openai": {"github.com/openai/openai-go/v3", "/v1", ".", []string{
		"chatcompletion_test.go", "chatcompletionmessage_test.go", "completion_test.go", "embedding_test.go", "model_test.go", "usage_test.go",
	}},
	"responses": {"github.com/openai/openai-go/v3", "/v1", "responses", []string{"response_test.go", "inputitem_test.go", "inputtoken_test.go"}},
	"anthropic": {"github.com/anthropics/anthropic-sdk-go/v2", "", ".", []string{"message_test.go", "model_test.go", "usage_test.go"}},
}

// models are the names that the suites send. The SDKs' authors run them against a server that accepts
// any.
var models = []string{
	"gpt-4o", "gpt-6-astra", "gpt-3.5-turbo-instruct", "text-embedding-3-small", "claude-opus-5-5", "model_id", "model", "test-model",
}

// failures is the file of the tests that are expected to fail, with the reasons. A test that passes
// must be deleted from it, which the flag -update does, so that the list only shrinks.
const failures = "testdata/failures.txt"

func TestSDKSuitesFailOnlyWhereExpected(t *testing.T) {
	s := &servertest.Server{Aliases: models, OnEmbed: servertest.Vectors}
	client := s.Start(t)
	dialects := []httpapi.Dialect{openai.New(client), responses.New(client), anthropic.New(client)}
	g := servertest.Serve(t, dialects[0], func(c *httpapi.Config) { c.Dialects = dialects })
	expected, head := readFailures(t)
	left := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		results, output := run(t, all[name], name, g.URL)
		passed := 0
		for _, test := range slices.Sorted(maps.Keys(results)) {
			key := name + " " + test
			reason, listed := expected[key]
			switch {
			case results[test]:
				passed++
				if listed && !*repotest.Update {
					t.Errorf("%s passes: delete it from %s, or run this test with -update", key, failures)
				}
			case listed:
				left[key] = reason
			default:
				t.Errorf("%s fails, and is not in %s:\n%s", key, failures, output[test])
			}
			delete(expected, key)
		}
		t.Logf("%s: %d of %d tests passed", name, passed, len(results))
	}
	require.Empty(t, expected, "these tests of %s do not exist", failures)
	if *repotest.Update {
		for _, key := range slices.Sorted(maps.Keys(left)) {
			head += key + ": " + left[key] + "\n"
		}
		require.NoError(t, os.WriteFile(failures, []byte(head), 0o600))
	}
}

// readFailures returns the reason of each expected failure, by suite and test, and the comments at the
// head of the file.
func readFailures(t *testing.T) (expected map[string]string, head string) {
	t.Helper()
	raw, err := os.ReadFile(failures)
	require.NoError(t, err)
	expected = map[string]string{}
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "#") {
			head += line
			continue
		}
		key, reason, ok := strings.Cut(strings.TrimSpace(line), ": ")
		require.True(t, ok, "%s: %q has no reason", failures, line)
		expected[key] = reason
	}
	return expected, head
}

// run runs a suite against a gateway. It returns whether each test passed, and what it wrote. The
// suite's files are copied into a module with the requirements of this one, so that the SDK is not
// compiled a second time. They import a package of the SDK that is internal, which is copied too.
func run(t *testing.T, s suite, name, url string) (passed map[string]bool, output map[string]string) {
	t.Helper()
	home := goTool(t, ".", "list", "-m", "-f", "{{.Dir}}", s.module)
	if home == "" {
		t.Skipf("the module cache has no %s: run go mod download in services/gateway/sdktest", s.module)
	}
	dir := t.TempDir()
	root, err := filepath.Abs("../../../..")
	require.NoError(t, err)
	const local, helper = "replace github.com/millrace/millrace => ", "/internal/testutil"
	copyFile(t, "../go.mod", filepath.Join(dir, "go.mod"), local+"../../..", local+root)
	copyFile(t, "../go.sum", filepath.Join(dir, "go.sum"), "", "")
	copyFile(t, filepath.Join(home, helper, "testutil.go"), filepath.Join(dir, "testutil", "testutil.go"), "", "")
	own := strings.TrimSpace(goTool(t, ".", "list", "-m")) + "/testutil"
	for _, file := range s.files {
		copyFile(t, filepath.Join(home, s.dir, file), filepath.Join(dir, name, file), s.module+helper, own)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-json", "-vet=off", "-timeout=2m", "./"+name)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "TEST_API_BASE_URL="+url+s.base, "GOWORK=off")
	events, err := cmd.Output()
	var failed *exec.ExitError
	require.True(t, err == nil || errors.As(err, &failed), "%v", err)
	passed, output = map[string]bool{}, map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(events))
	lines.Buffer(nil, len(events)+1)
	for lines.Scan() {
		var e struct{ Action, Test, Output string }
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e), lines.Text())
		switch {
		case e.Action == "output":
			output[e.Test] += e.Output
		case e.Test == "" || strings.Contains(e.Test, "/"):
		case e.Action == "pass" || e.Action == "fail":
			passed[e.Test] = e.Action == "pass"
		}
	}
	require.NotEmpty(t, passed, "no test ran: %s", events)
	return passed, output
}

// goTool runs the go command and returns its output.
func goTool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	require.NoError(t, err, fmt.Sprint(args))
	return strings.TrimSpace(string(out))
}

// copyFile copies a file and replaces a text.
func copyFile(t *testing.T, from, to, text, by string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o750))
	if text != "" {
		raw = bytes.ReplaceAll(raw, []byte(text), []byte(by))
	}
	require.NoError(t, os.WriteFile(to, raw, 0o600))
}
