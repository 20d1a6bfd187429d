package proc

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/services/internal/version"
)

// Machine describes the machine that a figure was measured on, at one moment.
type Machine struct {
	Date      string `json:"date"` // UTC, RFC 3339
	Version   string `json:"version"`
	System    string `json:"system"` // linux/amd64 and the kernel's release
	Processor string `json:"processor"`
	Cores     int    `json:"cores"` // available to this process
	Memory    string `json:"memory"`
	Go        string `json:"go"`
	// Load is the load average of the minute before the measurement. It is near 0 on an idle
	// machine.
	Load string `json:"load_1m"`
}

// ThisMachine describes this machine now. A fact that the system does not report is "unknown".
func ThisMachine() Machine {
	return Machine{
		Date: time.Now().UTC().Format(time.RFC3339), Version: version.String(),
		System:    runtime.GOOS + "/" + runtime.GOARCH + " " + firstField(read("/proc/sys/kernel/osrelease")),
		Processor: processor(read("/proc/cpuinfo")), Cores: runtime.NumCPU(), Memory: memory(read("/proc/meminfo")),
		Go: runtime.Version(), Load: firstField(read("/proc/loadavg")),
	}
}

// String returns one line.
func (f Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s, %s, %s, millrace-bench %s, %s, load %s",
		f.Processor, f.Cores, f.Memory, f.System, f.Go, f.Version, f.Date, f.Load)
}

// CacheBytes returns the size of the largest cache of the first processor; 0 if the system does
// not report it.
func CacheBytes() uint64 {
	var largest uint64
	for i := range 8 {
		largest = max(largest, cacheSize(read(fmt.Sprintf("/sys/devices/system/cpu/cpu0/cache/index%d/size", i))))
	}
	return largest
}

// cacheSize parses a size such as "36608K".
func cacheSize(s string) uint64 {
	var n uint64
	var unit string
	if _, err := fmt.Sscanf(s, "%d%s", &n, &unit); err != nil {
		return 0
	}
	return n * map[string]uint64{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[unit]
}

func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

func firstField(s string) string {
	if fields := strings.Fields(s); len(fields) > 0 {
		return fields[0]
	}
	return "unknown"
}

// processor returns the model from /proc/cpuinfo, which uses different keys on amd64 and arm64.
func processor(cpuinfo string) string {
	for _, key := range []string{"model name", "CPU part"} {
		for line := range strings.Lines(cpuinfo) {
			name, value, ok := strings.Cut(line, ":")
			if ok && strings.TrimSpace(name) == key {
				return strings.TrimSpace(value)
			}
		}
	}
	return "unknown processor"
}

// memory returns MemTotal of /proc/meminfo.
func memory(meminfo string) string {
	for line := range strings.Lines(meminfo) {
		var kib uint64
		if _, err := fmt.Sscanf(line, "MemTotal: %d kB", &kib); err == nil {
			return fmt.Sprintf("%.1f GiB", float64(kib)/(1<<20))
		}
	}
	return "unknown memory"
}

// Busy counts the time of the processors from a moment on.
type Busy struct{ idle, all uint64 } // ticks

// WatchBusy starts to count.
func WatchBusy() Busy {
	idle, all := processorTicks(read("/proc/stat"))
	return Busy{idle, all}
}

// Share returns the share of the processors' time since WatchBusy that was not idle, other virtual
// machines included; 0 if the system does not report it.
func (b Busy) Share() float64 {
	idle, all := processorTicks(read("/proc/stat"))
	return busyShare(b.idle, b.all, idle, all)
}

func busyShare(idleBefore, allBefore, idle, all uint64) float64 {
	if all <= allBefore || idle < idleBefore { // the counters may go back, for example after a migration
		return 0
	}
	return 1 - float64(min(idle-idleBefore, all-allBefore))/float64(all-allBefore)
}

// processorTicks parses the line of all processors: user, nice, system, idle, iowait, irq,
// softirq, steal.
func processorTicks(stat string) (idle, all uint64) {
	var t [8]uint64
	line, _, _ := strings.Cut(stat, "\n")
	_, _ = fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]) // missing columns stay 0
	for _, n := range t {
		all += n
	}
	return t[3] + t[4], all
}

// OwnMemory returns the bytes of this process outside the page cache, shared and pinned memory
// included; 0 if the system does not report it.
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

// OwnCPU returns the processor time, user and system, of this process; 0 if the system does not
// report it.
func OwnCPU() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// Stolen counts the processor time that other virtual machines used (steal time).
type Stolen struct {
	began time.Time
	ticks uint64
}

// WatchStolen starts to count.
func WatchStolen() Stolen { return Stolen{time.Now(), stolen(read("/proc/stat"))} }

// Share returns the share of all processor time since WatchStolen, 0 to 1; 0 if the system does
// not report it.
func (s Stolen) Share() float64 {
	const hz = 100 // USER_HZ wherever Go runs on Linux
	stat := read("/proc/stat")
	ticks, processors := stolen(stat), strings.Count(stat, "\ncpu")
	if ticks <= s.ticks { // the counter may go back, for example after a migration
		return 0
	}
	return min(float64(ticks-s.ticks)/hz/(time.Since(s.began).Seconds()*float64(processors)), 1)
}

// stolen returns the eighth column of the line of all processors.
func stolen(stat string) (ticks uint64) {
	_, _ = fmt.Sscanf(stat, "cpu %d %d %d %d %d %d %d %d", new(uint64), new(uint64), new(uint64), new(uint64), new(uint64),
		new(uint64), new(uint64), &ticks) // missing columns stay 0
	return ticks
}
