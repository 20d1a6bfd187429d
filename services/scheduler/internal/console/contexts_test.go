package console_test

import (
	"encoding/base64"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDifferentContextsAreShown(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node, without which only the browser tests load this script: apt install nodejs")
	}
	parts, err := os.ReadFile("page/parts.js")
	require.NoError(t, err)
	script := `const {contexts} = await import("data:text/javascript;base64,` + base64.StdEncoding.EncodeToString(parts) + `");
const copy = (worker, contextLength, modelDigest = "d", state = "MODEL_STATE_READY") => ({worker, contextLength, modelDigest, state});
console.log(JSON.stringify([
  contexts([copy("w1", 512), copy("w2", 4096), copy("w3", 512)]),
  contexts([copy("w1", 512), copy("w2", 512)]),
  contexts([copy("w1", 512), copy("w2", 4096, "e")]),
  contexts([copy("w1", 512), copy("w2", 4096, "d", "MODEL_STATE_DRAINING"), copy("w3", undefined)]),
  contexts([]),
]));`
	out, err := exec.CommandContext(t.Context(), node, "--input-type=module", "-e", script).CombinedOutput()
	require.NoError(t, err, string(out))
	require.JSONEq(t, `[
		{"longest": 4096, "differ": ["contexts differ: 4096 on w2; 512 on w1, w3; requests without max_tokens go to the longest alone"]},
		{"longest": 512, "differ": []}, {"longest": 4096, "differ": []}, {"longest": 512, "differ": []}, {"longest": 0, "differ": []}]`, string(out))
}
