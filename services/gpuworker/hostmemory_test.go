package main

import (
	"errors"
	"math"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
	"github.com/millrace/millrace/services/internal/app"
)

// host is a file system with these files.
func host(files map[string]string) fstest.MapFS {
	root := fstest.MapFS{}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

const meminfo = "MemTotal:       65536 kB\nMemFree:         1000 kB\nMemAvailable:   32768 kB\n"

func TestAvailableMemoryIsTheLeastLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		files  map[string]string
		want   uint64
		source string
	}{
		"a host that reports nothing":   {nil, math.MaxUint64, ""},
		"a host without control groups": {map[string]string{"proc/meminfo": meminfo}, 32 << 20, "MemAvailable of /proc/meminfo"},
		"a container of version 2, which sees its own group as the root": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "8388608\n", "sys/fs/cgroup/memory.current": "3145728\n",
			"sys/fs/cgroup/memory.stat": "anon 2097152\ninactive_file 1048576\n",
		}, 6 << 20, "/sys/fs/cgroup/memory.max"},
		"a container that read a model twice": {map[string]string{
			"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": "8388608\n", "sys/fs/cgroup/memory.current": "7340032\n",
			"sys/fs/cgroup/memory.stat": "anon 1048576\nactive_file 5242880\n",
		}, 6 << 20, "/sys/fs/cgroup/memory.max"},
		"a container whose files have many names": {map[string]string{
			"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": "8388608\n", "sys/fs/cgroup/memory.current": "7340032\n",
			"sys/fs/cgroup/memory.stat": "slab_reclaimable 4194304\nslab_unreclaimable 1048576\nslab 5242880\n",
		}, 5 << 20, "/sys/fs/cgroup/memory.max"},
		"a container of version 1 that read a model twice": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "3:memory:/pod\n",
			"sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "4194304\n", "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": "3145728\n",
			"sys/fs/cgroup/memory/pod/memory.stat": "active_file 1024\ntotal_active_file 2097152\n",
		}, 3 << 20, "/sys/fs/cgroup/memory/pod/memory.limit_in_bytes"},
		"a container without a limit": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "3145728\n",
		}, 32 << 20, "MemAvailable of /proc/meminfo"},
		"a group above with less": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/slice/service\n",
			"sys/fs/cgroup/slice/service/memory.max": "16777216\n", "sys/fs/cgroup/slice/service/memory.current": "0\n",
			"sys/fs/cgroup/slice/memory.max": "16777216\n", "sys/fs/cgroup/slice/memory.current": "4194304\n",
		}, 12 << 20, "/sys/fs/cgroup/slice/memory.max"},
		"a container of version 1": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "4:cpu,cpuacct:/x\n3:memory:/pod\n0::/\n",
			"sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "4194304\n", "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": "3145728\n",
			"sys/fs/cgroup/memory/pod/memory.stat": "total_inactive_file 2097152\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "3145728\n",
		}, 3 << 20, "/sys/fs/cgroup/memory/pod/memory.limit_in_bytes"},
		"a group that uses more than its limit": {map[string]string{
			"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "2000\n",
		}, 0, "/sys/fs/cgroup/memory.max"},
		"a group without its use": {map[string]string{
			"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": "1000\n",
		}, 32 << 20, "MemAvailable of /proc/meminfo"},
		"an unreadable number": {map[string]string{"proc/meminfo": "MemAvailable: much kB\n"}, math.MaxUint64, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bytes, source := availableMemory(host(tc.files))
			require.Equal(t, tc.want, bytes)
			require.Equal(t, tc.source, source)
		})
	}
}

func TestHostCacheMustFitTheHost(t *testing.T) {
	// The host has 32 GiB available, of which 2 GiB must stay free.
	gpu, cpu := engine.DeviceInfo{Kind: "cuda"}, engine.DeviceInfo{Kind: "cpu", BytesFree: 10 << 30}
	small := map[string]string{"proc/meminfo": "MemAvailable: 33554432 kB\n"}
	container := map[string]string{
		"proc/meminfo": "MemAvailable: 33554432 kB\n", "sys/fs/cgroup/memory.max": "17179869184\n", "sys/fs/cgroup/memory.current": "0\n",
	}
	for name, tc := range map[string]struct {
		cache, swap string
		info        engine.DeviceInfo
		files       map[string]string
		most        string // that the error gives; "": no error
	}{
		"no tier":                      {"", "", gpu, small, ""},
		"a tier of 0":                  {"0", "", gpu, small, ""},
		"all but the margin and swaps": {"26GiB", "", gpu, small, ""},
		"a byte more":                  {"27917287425", "", gpu, small, "26624MiB"},
		"without swaps":                {"30GiB", "0", gpu, small, ""},
		"more than there is":           {"64GiB", "0", gpu, small, "30720MiB"},
		"more than a container has":    {"16GiB", "1GiB", gpu, container, "14336MiB"},
		"the models of a CPU":          {"20GiB", "", cpu, small, ""},
		"a byte more than they leave":  {"21474836481", "", cpu, small, "20480MiB"},
		"swaps that need all of it":    {"1GiB", "64GiB", gpu, small, "0MiB"},
		"a host that reports nothing":  {"64TiB", "", gpu, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkHostCache(&config.Config{HostCache: tc.cache, SwapSpace: tc.swap}, tc.info, host(tc.files))
			if tc.most == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, app.ErrUsage)
			require.ErrorContains(t, err, "--host-cache \""+tc.cache+"\"")
			require.ErrorContains(t, err, "give at most --host-cache="+tc.most+",")
			if tc.info.Kind == "cpu" {
				require.ErrorContains(t, err, "the models 10737418240 (--memory-limit),")
				require.ErrorContains(t, err, "lower --swap-space or --memory-limit,")
			} else {
				require.NotContains(t, err.Error(), "models")
				require.ErrorContains(t, err, "lower --swap-space,")
			}
		})
	}
}

// blindDevice is a device that does not report its memory.
type blindDevice struct{ engine.Device }

func (blindDevice) Info() (engine.DeviceInfo, error) {
	return engine.DeviceInfo{}, errors.New("no answer")
}

func TestHostCacheAloneNeedsTheDevicesMemory(t *testing.T) {
	require.NoError(t, hostCacheFits(&config.Config{}, blindDevice{}))
	require.NoError(t, hostCacheFits(&config.Config{HostCache: "0"}, blindDevice{}))
	require.ErrorContains(t, hostCacheFits(&config.Config{HostCache: "1GiB"}, blindDevice{}), "no answer")
}
