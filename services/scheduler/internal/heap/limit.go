package heap

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kept is the part of what the process may have that is not the heap's: stacks, holes between large pieces, and what a collection
// under way does not yet know.
const kept = 8

// Files in which a container's memory is bounded, in bytes: of the second version of control groups and of the first.
var groups = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// Bound has the collector work harder before the process reaches what it may have, by its control group and its limit of data.
// undo restores what was set before.
func Bound() (undo func()) {
	bytes := allowed(groups, dataLimit())
	if bytes == math.MaxInt64 {
		return func() {}
	}
	before := debug.SetMemoryLimit(bytes - bytes/kept)
	return func() { debug.SetMemoryLimit(before) }
}

// dataLimit is RLIMIT_DATA.
func dataLimit() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_DATA, &limit) != nil {
		return math.MaxInt64
	}
	return limit.Cur
}

// allowed is the least of a number and of those in files; MaxInt64: there is no bound.
func allowed(files []string, least uint64) int64 {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // another version of control groups, or none
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil { // else "max"
			least = min(least, n)
		}
	}
	if least >= 1<<62 { // the first version says so where there is no bound
		return math.MaxInt64
	}
	return int64(least)
}
