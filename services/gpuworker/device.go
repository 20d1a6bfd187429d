package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/selfcheck"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
	"github.com/millrace/millrace/services/internal/app"
)

// openDevice opens the device of --device. A device that this machine does not have is a usage
// error.
func openDevice(cfg *config.Config, logger hclog.Logger) (engine.Device, error) {
	device, err := cfg.Device.Open(logger)
	if err != nil {
		err = fmt.Errorf("open device: %w", err)
	}
	if errors.Is(err, engine.ErrNoDevice) {
		err = app.Usage(err)
	}
	return device, err
}

// selfTest checks a device against the reference and writes one table to out. It closes the device.
// The error wraps selfcheck.ErrFailed if a check fails.
func selfTest(device engine.Device, out io.Writer) (err error) {
	defer func() { err = errors.Join(err, device.Close()) }()
	info, err := device.Info()
	if err != nil {
		return err
	}
	rows, err := selfcheck.Run(device)
	if rows == nil {
		return err
	}
	return errors.Join(err, selfcheck.Print(out, info, rows))
}

// errHangs means that the device does not answer. Its memory is free again when the process has
// ended.
var errHangs = errors.New("the device hangs and has not given its memory back")

// closeTimeout bounds the wait for a device that is closed: an engine that hangs inside a step
// never ends it.
const closeTimeout = 20 * time.Second

// within returns what closeAll returns, or errHangs if that takes longer than limit. closeAll then
// keeps running.
func within(limit time.Duration, closeAll func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- closeAll() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(limit):
		return fmt.Errorf("%w after %v", errHangs, limit)
	}
}

// warnNeighbours logs a warning if a CPU worker without --memory-limit starts on a host where other
// workers run. Each of them may take 80 % of the memory that was available when it started, which
// is more than the host has. proc is the host's /proc, self this process.
func warnNeighbours(cfg *config.Config, device engine.Device, proc fs.FS, self int, logger hclog.Logger) {
	if cfg.Device.MemoryLimit != "" {
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

// neighbours counts the processes that run the same program as process self. It returns 0 if /proc
// cannot be read.
func neighbours(proc fs.FS, self int) int {
	programOf := func(pid string) string {
		name, err := fs.ReadFile(proc, path.Join(pid, "comm"))
		if err != nil { // it has ended
			return ""
		}
		return strings.TrimSpace(string(name))
	}
	own := programOf(strconv.Itoa(self))
	entries, err := fs.ReadDir(proc, ".")
	if err != nil || own == "" {
		return 0
	}
	n := 0
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != self && programOf(e.Name()) == own {
			n++
		}
	}
	return n
}
