package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAResponseIsReplayedFromItsSeed(t *testing.T) {
	// examples/replay draws the tokens of a stream of the CPU engine again, in Python, and must get
	// all of them.
	t.Parallel()
	if exec.Command("python3", "-c", "import struct").Run() != nil {
		t.Skip("no python3: apt install python3")
	}
	w := startWorker(t, "w", "--device", "cpu", "--load", stories)
	program, dir := filepath.Join(root, "examples", "replay", "replay.py"), t.TempDir()
	replay := func(name string, served, replayed []string) (string, error) {
		args := append([]string{
			"generate", "--target", w.address, "-m", stories, "Once upon a time", "--json", "--seed", "18446744073709551557",
			"--max-tokens", "60", "--num-sequences", "2", "--output-candidates", "64",
		}, served...)
		answer, err := exec.CommandContext(within(t), clientBinary, args...).Output()
		require.NoError(t, err)
		file := filepath.Join(dir, name+".jsonl")
		require.NoError(t, os.WriteFile(file, answer, 0o644))
		out, err := exec.CommandContext(within(t), "python3", append([]string{program, file}, replayed...)...).CombinedOutput()
		return string(out), err
	}
	for i, knobs := range [][]string{
		{"--temperature", "0"},
		{"--temperature", "1.3", "--top-k", "64"},
		{"--temperature", "0.8", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.02"},
		{"--temperature", "1.1", "--top-k", "50", "--typical-p", "0.7", "--top-p", "0.9"},
	} {
		out, err := replay(fmt.Sprint(i), knobs, knobs)
		require.NoError(t, err, "%v: %s", knobs, out)
		require.Regexp(t, `^\d\d+ tokens replayed as served, 0 otherwise\n$`, out, "%v", knobs)
	}
	out, err := replay("forbidden", []string{"--temperature", "1", "--top-k", "20", "--logit-bias", "44=-inf,17=-inf,300=-inf"},
		[]string{"--temperature", "1", "--top-k", "20", "--forbid", "44,17,300"})
	require.NoError(t, err, out)
	out, err = replay("other", []string{"--temperature", "0.8", "--top-k", "40"}, []string{"--temperature", "1.2", "--top-k", "40"})
	require.Error(t, err, "a wrong temperature shows")
	require.Regexp(t, `replayed \d+, served \d+; the draw was \S+ of all mass from a boundary`, out)
}
