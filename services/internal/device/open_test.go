package device_test

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/internal/cputest"
	"github.com/millrace/millrace/services/internal/device"
)

// opened returns the info of a device after two buffers of one size were allocated and freed one
// after another.
func opened(t *testing.T, open func(hclog.Logger) (engine.Device, error)) engine.DeviceInfo {
	t.Helper()
	dev, err := open(hclog.NewNullLogger())
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	for range 2 {
		buffer, err := dev.Alloc(1<<16, engine.Workspace)
		require.NoError(t, err)
		require.NoError(t, buffer.Free())
	}
	info, err := dev.Info()
	require.NoError(t, err)
	return info
}

func cpu(limit string) *device.Flags {
	return &device.Flags{Name: "cpu", CPUPath: cputest.Path(), Threads: 1, MemoryLimit: limit}
}

func TestSimEngineMemory(t *testing.T) {
	for limit, want := range map[string]uint64{"": 1 << 20, "0.5": 1 << 19, "1": 1 << 20, "256KiB": 1 << 18} {
		d := &device.Flags{Name: "sim:memory=1048576", MemoryLimit: limit}
		info := opened(t, d.Open)
		require.Equal(t, "sim", info.Kind)
		require.Equal(t, want, info.BytesTotal, limit)
	}
}

func TestCPUEngineThreadsAndMemory(t *testing.T) {
	d := cpu("64MiB")
	info := opened(t, d.Open)
	require.Equal(t, "cpu", info.Kind)
	require.Equal(t, 1, info.SMCount)
	require.EqualValues(t, 64<<20, info.BytesTotal)
}

// The available memory changes while the test runs, so the bound allows a tenfold change.
func TestFractionIsOfTheDefaultLimit(t *testing.T) {
	whole, hundredth := opened(t, cpu("").Open), opened(t, cpu("0.01").Open)
	require.Less(t, hundredth.BytesTotal, whole.BytesTotal/10)
	require.Greater(t, hundredth.BytesTotal, whole.BytesTotal/1000)
}

func TestPoolKeepsFreedBytes(t *testing.T) {
	with, without := opened(t, cpu("64MiB").Open), opened(t, cpu("64MiB").OpenWithoutPool)
	require.Positive(t, with.PoolHits)
	require.Positive(t, with.BytesPooled)
	require.Zero(t, without.PoolHits)
	require.Zero(t, without.BytesPooled)
}

// TestPoolLimitBoundsWhatIsKept has buffers of 64 KiB and a device of 64 MiB: a pool that holds
// less than one buffer keeps none.
func TestPoolLimitBoundsWhatIsKept(t *testing.T) {
	for limit, keeps := range map[string]bool{
		"0": false, "0%": false, "32KiB": false, "0.0005": false, "0.05%": false, "128KiB": true, "0.5": true, "50%": true, "100 %": true,
	} {
		d := cpu("64MiB")
		d.PoolLimit = limit
		info := opened(t, d.Open)
		require.Equal(t, keeps, info.PoolHits > 0, limit)
		require.Equal(t, keeps, info.BytesPooled > 0, limit)
	}
	d := cpu("") // a share of the default limit
	d.PoolLimit = "1%"
	require.Positive(t, opened(t, d.Open).BytesPooled)
}

func TestOpenFailsWithoutTheDevice(t *testing.T) {
	for _, d := range []device.Flags{
		{Name: "cuda:0", EnginePath: "/nowhere"}, {Name: "cpu", CPUPath: "abacus"}, {Name: "cpu", CPUPath: "abacus", MemoryLimit: "0.5"},
		{Name: "sim:x=1"}, {Name: "cpu", MemoryLimit: "8GB"}, {Name: "cpu", PoolLimit: "8GB"},
	} {
		_, err := d.Open(hclog.NewNullLogger())
		require.Error(t, err, d.Name)
	}
}
