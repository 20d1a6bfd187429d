package app

import (
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
)

// warnNeighbours logs a warning if a CPU worker without --memory-limit starts on a host where other workers run. Each of them may take
// 80 % of the memory that was available when it started, which is more than the host has. proc is the host's /proc, self this process.
func warnNeighbours(c *config.Config, device engine.Device, proc fs.FS, self int, logger hclog.Logger) {
	if c.Device.MemoryLimit != "" {
		return
	}
	info, err := device.Info()
	if err != nil || info.Kind != "cpu" {
		return
	}
	if n := neighbours(proc, self); n > 0 {
		logger.Warn("other workers run on this host, and together they may take more memory than it has: give each a --memory-limit",
			"others", n, "memory_limit", info.BytesTotal)
	}
}

// neighbours counts the processes that run the same program as process self. It returns 0 if /proc cannot be read.
func neighbours(proc fs.FS, self int) int {
	program := func(pid string) string {
		name, err := fs.ReadFile(proc, path.Join(pid, "comm"))
		if err != nil { // it has ended
			return ""
		}
		return strings.TrimSpace(string(name))
	}
	own := program(strconv.Itoa(self))
	entries, err := fs.ReadDir(proc, ".")
	if err != nil || own == "" {
		return 0
	}
	n := 0
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != self && program(e.Name()) == own {
			n++
		}
	}
	return n
}
