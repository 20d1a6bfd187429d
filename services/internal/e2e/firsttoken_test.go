package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// documented returns the first block of commands under a heading, without those that build the
// programs.
func documented(t *testing.T, page, heading string) (commands []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", page))
	require.NoError(t, err)
	_, behind, found := strings.Cut(string(text), "\n## "+heading+"\n")
	require.True(t, found, heading)
	_, behind, found = strings.Cut(behind, "\n```\n")
	require.True(t, found)
	block, _, found := strings.Cut(behind, "\n```\n")
	require.True(t, found)
	commands = strings.Split(block, "\n")
	require.Less(t, len(commands), 10, "a stranger types fewer than ten")
	require.Equal(t, []string{"make build", "export PATH=$PWD/build/bin:$PATH"}, commands[:2])
	return commands[2:]
}

// The commands of docs/security.md run as written, except that sockets replace the ports, which may
// be in use on this machine.
func TestTheDocumentedCommandsLeadToAToken(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	for name, path := range map[string]string{"millrace": clientBinary, "millrace-worker": workerBinary, "millrace-scheduler": schedulerBinary} {
		require.NoError(t, os.Symlink(path, filepath.Join(bin, name)))
	}
	require.NoError(t, os.Symlink(modelsDir, filepath.Join(dir, "models")))
	worker, scheduler := "unix:"+filepath.Join(bin, "worker"), "unix:"+filepath.Join(bin, "scheduler")
	script := strings.Join(documented(t, "security.md", "From a clone to a first token over mutual TLS, with a key"), "\n")
	script = strings.NewReplacer("127.0.0.1:7071", worker, "millrace-worker ", "millrace-worker --listen "+worker+" ",
		"millrace-scheduler ", "millrace-scheduler --listen "+scheduler+" ").Replace(script)

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // a hang guard
	defer cancel()
	end := "\ntrap '' TERM\nkill 0\nwait\n" // worker and scheduler are in the shell's process group
	sh := exec.CommandContext(ctx, "/bin/sh", "-e", "-c", script+end)
	sh.Dir, sh.Env = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "MILLRACE_TARGET="+scheduler)
	sh.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	sh.Cancel = func() error { return syscall.Kill(-sh.Process.Pid, syscall.SIGKILL) }
	var log strings.Builder
	sh.Stderr = &log
	answer, err := sh.Output()
	require.NoError(t, err, "%s", &log)
	_, story, found := strings.Cut(string(answer), "certs/client-key.pem\n")
	require.True(t, found, "%s", answer)
	require.NotEmpty(t, strings.TrimSpace(story), "%s", &log)

	entries, err := os.ReadFile(filepath.Join(dir, "keys.yaml"))
	require.NoError(t, err)
	require.NotContains(t, string(entries), readToken(t, filepath.Join(dir, "me.token")), "the server's file does not have the token")
}

func readToken(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return strings.TrimSpace(string(text))
}
