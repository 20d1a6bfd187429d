package template

import "syscall"

// Signal sends the child of an idle template a signal.
func (t *Template) Signal(s syscall.Signal) error { return t.child.cmd.Process.Signal(s) }
