package heap

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// reservedShare is the part of the limit, one eighth, that is left for other memory than the heap:
// stacks, fragmentation, and allocations during a collection.
const reservedShare = 8

// Files with the memory limit of a container in bytes: of control groups version 2 and version 1.
var groups = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// Bound makes the collector work harder before the process reaches the limit of its control group
// or its data segment. undo restores the previous limit.
func Bound() (undo func()) {
	bytes := allowed(groups, dataLimit())
	if bytes == math.MaxInt64 {
		return func() {}
	}
	before := debug.SetMemoryLimit(bytes - bytes/reservedShare)
	return func() { debug.SetMemoryLimit(before) }
}

// dataLimit returns RLIMIT_DATA.
func dataLimit() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_DATA, &limit) != nil {
		return math.MaxInt64
	}
	return limit.Cur
}

// allowed returns the smallest of a number and the numbers in files, or MaxInt64 without a limit.
func allowed(files []string, least uint64) int64 {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // another version of control groups, or none
		}
		// else "max"
		if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil {
			least = min(least, n)
		}
	}
	if least >= 1<<62 { // version 1 reports no limit like this
		return math.MaxInt64
	}
	return int64(least)
}
