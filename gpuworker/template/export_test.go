package template

import "syscall"

// Signal sends the child of an idle template a signal.
func (t *Template) Signal(s syscall.Signal) error {
	return t.pool.mu.idle[len(t.pool.mu.idle)-1].cmd.Process.Signal(s)
}

// Runs and Joined are the two ends of the child's protocol.
func Runs(n int, own [][2]int) []byte { return runs(n, own) }

// Joined is the inverse of Runs.
func Joined(text string, runs []byte) (Prompt, error) { return reply{Text: text, Runs: runs}.prompt() }

// Children is how many children render nothing now.
func (t *Template) Children() int {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	return len(t.pool.mu.idle)
}
