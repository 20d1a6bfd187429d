package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of times in /proc. USER_HZ is 100 on every Linux platform of Go.
const tick = 10 * time.Millisecond

// CPU returns the processor time, user and system, that all threads of the program and its running
// children have used so far. It does not include children that have ended.
func (p *Program) CPU() (time.Duration, error) {
	pids, err := processTree(p.PID())
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if pid != p.PID() && gone(err) {
			continue // the child ended after it was listed
		}
		if err != nil {
			return 0, err
		}
		used, err := parseStat(string(stat))
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// gone reports whether a file of /proc is missing because its process or thread has ended, before
// it was opened or while it was read.
func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// processTree returns a process and its running children.
func processTree(pid int) ([]int, error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, err
	}
	pids := []int{pid}
	for _, thread := range threads {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, thread.Name()))
		if gone(err) {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%s", pid, thread.Name())); err != nil {
				continue // the thread has ended
			}
		}
		if err != nil {
			return nil, err
		}
		for _, field := range strings.Fields(string(children)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				return nil, fmt.Errorf("/proc/%d/task/%s/children: %w", pid, thread.Name(), err)
			}
			pids = append(pids, child)
		}
	}
	return pids, nil
}

// parseStat adds utime and stime, fields 14 and 15. Field 2 is a name in parentheses that may
// contain anything.
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

// Memory returns the resident set in bytes.
func (p *Program) Memory() (uint64, error) { return MemoryOf(p.PID()) }

// MemoryOf returns the resident set of any process in bytes.
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
