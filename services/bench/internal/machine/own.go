package machine

import (
	"fmt"
	"strings"
	"syscall"
	"time"
)

// OwnMemory is the bytes that this process holds above the page cache, shared and pinned ones among them; 0 when the system
// does not tell.
func OwnMemory() uint64 { return ownMemory(read("/proc/self/status")) }

func ownMemory(status string) (sum uint64) {
	for line := range strings.Lines(status) {
		for _, kind := range []string{"RssAnon", "RssShmem"} {
			var kib uint64
			if _, err := fmt.Sscanf(line, kind+": %d kB", &kib); err == nil {
				sum += kib << 10
			}
		}
	}
	return sum
}

// OwnCPU is the processor time, user and system, that this process has used so far; 0 when the system does not tell.
func OwnCPU() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// Stolen counts the processors' time that other virtual machines took.
type Stolen struct {
	began time.Time
	ticks uint64
}

// WatchStolen begins to count.
func WatchStolen() Stolen { return Stolen{time.Now(), stolen(read("/proc/stat"))} }

// Share is which part of all since WatchStolen, 0 .. 1; 0 when the system does not tell.
func (s Stolen) Share() float64 {
	const hz = 100 // USER_HZ wherever Go runs on Linux
	stat := read("/proc/stat")
	now, processors := stolen(stat), strings.Count(stat, "\ncpu")
	if now <= s.ticks { // also where it went back, as after a migration
		return 0
	}
	return min(float64(now-s.ticks)/hz/(time.Since(s.began).Seconds()*float64(processors)), 1)
}

// stolen is the eighth time of the line about all processors.
func stolen(stat string) (ticks uint64) {
	_, _ = fmt.Sscanf(stat, "cpu %d %d %d %d %d %d %d %d", new(uint64), new(uint64), new(uint64), new(uint64), new(uint64),
		new(uint64), new(uint64), &ticks) // 0 where there are fewer
	return ticks
}
