package template

import "syscall"

// Signal sends the child of an idle template a signal.
func (t *Template) Signal(s syscall.Signal) error {
	return t.pool.idle[len(t.pool.idle)-1].cmd.Process.Signal(s)
}

// Cut and Joined are the two ends of what a child sends.
func Cut(text string, own [][2]int) []string { return cut(text, own) }

// Joined is the inverse of Cut.
func Joined(of []string) Prompt { return joined(of) }

// Children is how many children render nothing now.
func (t *Template) Children() int {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	return len(t.pool.idle)
}
