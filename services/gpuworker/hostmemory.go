package main

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
	"github.com/millrace/millrace/services/internal/app"
)

// hostMargin is the part of the available host memory, one sixteenth, that --host-cache must leave:
// to the worker's heap, to the buffers of loads, and to the other processes of the host.
const hostMargin = 16

// hostCacheFits is checkHostCache for this machine. Without --host-cache it does not read the device.
func hostCacheFits(cfg *config.Config, device engine.Device) error {
	if cfg.Cache() <= 0 {
		return nil
	}
	info, err := device.Info()
	if err != nil {
		return err
	}
	return checkHostCache(cfg, info, os.DirFS("/"))
}

// checkHostCache returns a usage error if --host-cache does not fit the host's available memory
// together with the swap space and, on a CPU, the memory of the models, which is most of it without
// --memory-limit. The host tier takes its memory while the worker serves. Without this check the
// kernel would end the process then, because Linux grants more memory than it has. root is the file
// system of the host. A host that does not report its memory is not checked.
func checkHostCache(cfg *config.Config, info engine.DeviceInfo, root fs.FS) error {
	cache, swap := cfg.Cache(), cfg.Swap()
	if swap == 0 {
		swap = model.DefaultSwapSpace(info)
	}
	// On a CPU the models are in the same memory.
	models, taken, others := uint64(0), "", "--swap-space"
	if info.Kind == "cpu" {
		models, others = info.BytesFree, "--swap-space or --memory-limit"
		taken = fmt.Sprintf(", the models %d (--memory-limit)", models)
	}
	available, source := availableMemory(root)
	if cache <= 0 || source == "" {
		return nil
	}
	margin := available / hostMargin
	left := available - margin
	for _, other := range []uint64{uint64(max(swap, 0)), models} {
		left -= min(left, other)
	}
	if uint64(cache) <= left {
		return nil
	}
	return app.Usage(fmt.Errorf("--host-cache %q: %d bytes of host memory are available (%s); "+
		"--swap-space may take %d of them%s, and %d must stay free: "+
		"give at most --host-cache=%dMiB, lower %s, or raise the memory of this host or of its container",
		cfg.HostCache, available, source, max(swap, 0), taken, margin, left>>20, others))
}

// availableMemory returns how much more memory the process can take before the kernel ends a
// process, and the file with the smallest number. The file is "" if none of them can be read.
func availableMemory(root fs.FS) (bytes uint64, source string) {
	bytes = math.MaxUint64
	note := func(available uint64, file string) {
		if available < bytes {
			bytes, source = available, file
		}
	}
	if kib, ok := statistic(root, "proc/meminfo", "MemAvailable:"); ok {
		note(kib<<10, "MemAvailable of /proc/meminfo")
	}
	for _, v := range []struct {
		controller, mount, limit, used string
		reclaimable                    []string
	}{
		{"", "sys/fs/cgroup", "memory.max", "memory.current", []string{"inactive_file", "active_file", "slab_reclaimable"}},
		{
			"memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
			[]string{"total_inactive_file", "total_active_file"},
		},
	} {
		for _, group := range cgroups(root, v.controller) {
			folder := path.Join(v.mount, group)
			limit, limited := number(root, path.Join(folder, v.limit))
			used, ok := number(root, path.Join(folder, v.used))
			if !limited || !ok || limit >= 1<<60 { // version 1 reports no limit like this
				continue
			}
			// The kernel reclaims pages of files, such as those of a model that was read, and caches of
			// its own before it ends a process. Pages that were read twice count as active.
			for _, name := range v.reclaimable {
				bytes, _ := statistic(root, path.Join(folder, "memory.stat"), name)
				used -= min(used, bytes)
			}
			note(limit-min(limit, used), "/"+path.Join(folder, v.limit))
		}
	}
	return bytes, source
}

// cgroups returns the process's control group of a controller and those above it; "" is the
// controller of version 2. Inside a container the path in /proc may not exist below the mount: then
// the root of the mount, which is the last of them, is the container's own group.
func cgroups(root fs.FS, controller string) (groups []string) {
	text, _ := fs.ReadFile(root, "proc/self/cgroup") // without it only the root is left
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 || !slices.Contains(strings.Split(fields[1], ","), controller) {
			continue
		}
		for group := path.Clean("/" + fields[2]); group != "/"; group = path.Dir(group) {
			groups = append(groups, group[1:])
		}
	}
	return append(groups, ".")
}

// number reads a file that contains one number. ok is false if it does not, for example if it
// contains "max".
func number(root fs.FS, file string) (n uint64, ok bool) {
	text, err := fs.ReadFile(root, file)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// statistic returns the number after a name in a file with one name in each line.
func statistic(root fs.FS, file, name string) (n uint64, ok bool) {
	text, _ := fs.ReadFile(root, file) // then it has no lines
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == name {
			n, err := strconv.ParseUint(fields[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
