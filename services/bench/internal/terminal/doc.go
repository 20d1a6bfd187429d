// Package terminal writes what is going on to standard error: one line that renews itself on a terminal, plain lines
// elsewhere.
package terminal
