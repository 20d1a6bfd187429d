// Package manpages keeps the manual pages of docs/man true: a test gives a program's commands, and the pages must be what they say of
// themselves. The flag -update of the test writes them.
package manpages
