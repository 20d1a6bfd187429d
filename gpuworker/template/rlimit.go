package template

import (
	"iter"
	"strings"

	"golang.org/x/sys/unix"
)

// setDataLimit limits the bytes of private writable memory, which is what heaps are made of. The limit on address space
// would not do: the Go runtime reserves far more than it uses.
func setDataLimit(bytes int64) {
	_ = unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)}) // the watchdog remains
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 16, Max: 16})
}

func linesOf(raw []byte) iter.Seq[string] { return strings.Lines(string(raw)) }
