package machine

import (
	"fmt"
	"strings"
)

// Busy counts what the processors do from a moment on.
type Busy struct{ idle, all uint64 } // ticks

// WatchBusy begins to count.
func WatchBusy() Busy {
	idle, all := processorTicks(read("/proc/stat"))
	return Busy{idle, all}
}

// Share is which part of the processors' time since WatchBusy was not idle, whoever had it, other virtual machines included; 0
// when the system does not tell.
func (b Busy) Share() float64 {
	idle, all := processorTicks(read("/proc/stat"))
	return busyShare(b.idle, b.all, idle, all)
}

func busyShare(idleBefore, allBefore, idle, all uint64) float64 {
	if all <= allBefore || idle < idleBefore { // also where it went back, as after a migration
		return 0
	}
	return 1 - float64(min(idle-idleBefore, all-allBefore))/float64(all-allBefore)
}

// processorTicks reads the line about all processors: user, nice, system, idle, iowait, irq, softirq, steal.
func processorTicks(stat string) (idle, all uint64) {
	var t [8]uint64
	line, _, _ := strings.Cut(stat, "\n")
	_, _ = fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]) // 0 where there are fewer
	for _, n := range t {
		all += n
	}
	return t[3] + t[4], all
}
