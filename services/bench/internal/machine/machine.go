package machine

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/millrace/millrace/services/internal/version"
)

// Facts describe the machine at one moment.
type Facts struct {
	Date      string `json:"date"` // UTC, RFC 3339
	Version   string `json:"version"`
	System    string `json:"system"` // linux/amd64 and the kernel's release
	Processor string `json:"processor"`
	Cores     int    `json:"cores"` // that this process may use
	Memory    string `json:"memory"`
	Go        string `json:"go"`
	// Load is the load average of the last minute before the measurement: on an idle machine near 0.
	Load string `json:"load_1m"`
}

// Look describes this machine now. What the system does not tell is "unknown".
func Look() Facts {
	return Facts{
		Date: time.Now().UTC().Format(time.RFC3339), Version: version.String(),
		System:    runtime.GOOS + "/" + runtime.GOARCH + " " + firstField(read("/proc/sys/kernel/osrelease")),
		Processor: processor(read("/proc/cpuinfo")), Cores: runtime.NumCPU(), Memory: memory(read("/proc/meminfo")),
		Go: runtime.Version(), Load: firstField(read("/proc/loadavg")),
	}
}

// String is one line.
func (f Facts) String() string {
	return fmt.Sprintf("%s, %d cores, %s, %s, %s, millrace-bench %s, %s, load %s",
		f.Processor, f.Cores, f.Memory, f.System, f.Go, f.Version, f.Date, f.Load)
}

// CacheBytes is the size of the largest cache of the first processor; 0 when the system does not tell.
func CacheBytes() uint64 {
	var largest uint64
	for i := range 8 {
		largest = max(largest, cacheSize(read(fmt.Sprintf("/sys/devices/system/cpu/cpu0/cache/index%d/size", i))))
	}
	return largest
}

// cacheSize reads "36608K".
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

// processor finds the model in /proc/cpuinfo, which names it differently on amd64 and arm64.
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

// memory is MemTotal of /proc/meminfo.
func memory(meminfo string) string {
	for line := range strings.Lines(meminfo) {
		var kib uint64
		if _, err := fmt.Sscanf(line, "MemTotal: %d kB", &kib); err == nil {
			return fmt.Sprintf("%.1f GiB", float64(kib)/(1<<20))
		}
	}
	return "unknown memory"
}
