package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of times in /proc: USER_HZ is 100 wherever Go runs on Linux.
const tick = 10 * time.Millisecond

// CPU is the processor time, user and system, that the program has used so far, all threads together.
func (p *Program) CPU() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0, err
	}
	return parseStat(string(stat))
}

// parseStat adds utime and stime, fields 14 and 15; field 2 is a name that may hold anything, in parentheses.
func parseStat(stat string) (time.Duration, error) {
	_, rest, ok := cutLast(stat, ")")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("/proc/PID/stat: unexpected %q", stat)
	}
	user, err := strconv.ParseUint(fields[11], 10, 63)
	system, err2 := strconv.ParseUint(fields[12], 10, 63)
	if err := errors.Join(err, err2); err != nil {
		return 0, fmt.Errorf("/proc/PID/stat: %w", err)
	}
	return time.Duration(user+system) * tick, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// Memory is the resident set in bytes.
func (p *Program) Memory() (uint64, error) { return MemoryOf(p.PID()) }

// MemoryOf is the resident set of any process, in bytes.
func MemoryOf(pid int) (uint64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parseStatus(string(status))
}

func parseStatus(status string) (uint64, error) {
	for line := range strings.Lines(status) {
		var kib uint64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/PID/status has no VmRSS")
}
