package device

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func smallMemory() MemoryConfig {
	return MemoryConfig{Largest: 1 << 20, Piece: testPiece, Contexts: 2, Repeat: 2, Budget: 2 * time.Millisecond, Ceiling: true}
}

// onCPU is a setup on the CPU engine; its peers behave as peerKey says.
func onCPU(t *testing.T, peers string) MemorySetup {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	t.Setenv(peerKey, peers)
	return MemorySetup{Open: openCPU, Peer: []string{self}}
}

func TestMemoryOfTheCPUEngine(t *testing.T) {
	rpctest.NoLeaks(t)
	report, err := RunMemory(t.Context(), onCPU(t, ""), smallMemory(), quiet)
	require.NoError(t, err)
	results := map[string]string{}
	for _, c := range report.Checks {
		results[c.Name] = c.Result
		require.NotEmpty(t, c.Text, c.Name)
	}
	require.Equal(t, map[string]string{
		"all memory": "ok", "fragments": "ok", "contexts": "ok", "trim and retry": "skip", "processes": "ok",
	}, results)
	require.InDelta(t, 1, report.Given, 1e-9, "every byte that was told free")
	require.Len(t, report.Copies, 3*6, "pageable both ways and on the device, 1 KiB to 1 MiB")
	for _, row := range []string{"h2d/pageable/1KiB", "d2h/pageable/1MiB", "d2d/64KiB"} {
		for _, metric := range []string{"gbps", "of_roof"} {
			v, known := report.Figure(row, metric)
			require.True(t, known, "%s of %s", metric, row)
			require.Positive(t, v)
		}
		_, known := report.Figure(row, "of_driver")
		require.False(t, known)
	}
	_, known := report.Figure("pool/1MiB", "abi_ratio")
	require.True(t, known)
	_, known = report.Figure("pool/1MiB", "ratio")
	require.False(t, known, "nobody measured the driver")
	share, known := report.Figure("all", "share")
	require.True(t, known)
	require.InDelta(t, 1, share, 1e-9)

	report.Floors = stats.Floors{File: "f", List: []stats.Floor{{Row: "d2d/1KiB", Metric: "of_peak"}}}.Judge(report.Figure)
	require.ErrorIs(t, report.Floors.Err(), stats.ErrMissed)
	var text bytes.Buffer
	report.Print(&text)
	for _, want := range []string{"d2h/pageable/256KiB", "pool/4KiB", "all memory", "0 of 1 in f hold", "none: the CPU"} {
		require.Contains(t, text.String(), want)
	}
	encoded, err := json.Marshal(report)
	require.NoError(t, err)
	var back MemoryReport
	require.NoError(t, json.Unmarshal(encoded, &back))
	require.Equal(t, report.Copies, back.Copies)
}

func TestContextsNeedACeilingOnACPU(t *testing.T) {
	c := smallMemory()
	c.Ceiling = false
	r := run{cfg: c, info: engine.DeviceInfo{Kind: "cpu"}}
	for _, check := range []func(context.Context) (string, error){r.together, r.processes, r.trimmed} {
		_, err := check(t.Context())
		require.ErrorAs(t, err, new(skipped))
	}
}

func TestPeerThatCannotOpenTheDeviceIsReported(t *testing.T) {
	report, err := RunMemory(t.Context(), onCPU(t, "closed"), smallMemory(), quiet)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "no process could open the device: one could not open the device: no such device")
	require.NotNil(t, report)
}

func TestPeerThatDiesIsReportedWithItsLog(t *testing.T) {
	_, err := RunMemory(t.Context(), onCPU(t, "dies"), smallMemory(), quiet)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "exit status 3: no such library")
}

func TestMemoryIncludesTheDriversFigures(t *testing.T) {
	program := filepath.Join(t.TempDir(), "driver.sh")
	require.NoError(t, os.WriteFile(program, []byte(`[ "$2" = 1048576 ] || exit 1
echo gpu 0000:AB:00.0
echo peak 4800000000000
echo allocate 4096 50.5 0.5
for way in h2d d2h d2d; do echo copy $way 1024 2000; echo copy $way 1048576 9e15; done
`), 0o600))
	setup := onCPU(t, "")
	setup.Driver = []string{"/bin/sh", program}
	report, err := RunMemory(t.Context(), setup, smallMemory(), quiet)
	require.NoError(t, err)
	require.Equal(t, "0000:ab:00.0", report.Driver.Bus)
	ratio, known := report.Figure("pool/4KiB", "ratio")
	require.True(t, known)
	require.InDelta(t, 101, ratio, 1e-9)
	require.InDelta(t, 9e15, report.Roofs["h2d"], 0)
	c := report.Copies[0]
	require.Equal(t, "h2d/pageable/1KiB", c.Name)
	require.InEpsilon(t, c.Rate.Median/2000, c.OfDriver, 1e-9)
	require.InEpsilon(t, c.Rate.Median/9e15, c.OfRoof, 1e-9)
	v, known := report.Figure("d2d/1MiB", "of_peak")
	require.True(t, known)
	require.Positive(t, v)

	setup.Driver = []string{"/bin/sh", "-c", "echo no GPU >&2; exit 1"}
	_, err = RunMemory(t.Context(), setup, smallMemory(), quiet)
	require.ErrorContains(t, err, "/bin/sh: exit status 1: no GPU")
}

func TestMemoryRefusesASimDevice(t *testing.T) {
	_, err := RunMemory(t.Context(), MemorySetup{Open: func(bool) (engine.Device, error) {
		return sim.Open(sim.Options{}, hclog.NewNullLogger())
	}}, smallMemory(), quiet)
	require.ErrorIs(t, err, engine.ErrUnsupported)
}

// spoiledMemory is the CPU engine with a fault.
type spoiledMemory struct {
	engine.Device
	alloc func(b engine.Buffer) engine.Buffer
	info  func(*engine.DeviceInfo)
}

func (s spoiledMemory) Alloc(size uint64, purpose engine.Purpose) (engine.Buffer, error) {
	b, err := s.Device.Alloc(size, purpose)
	if err == nil && s.alloc != nil {
		b = s.alloc(b)
	}
	return b, err
}

func (s spoiledMemory) Info() (engine.DeviceInfo, error) {
	info, err := s.Device.Info()
	if s.info != nil {
		s.info(&info)
	}
	return info, err
}

// flipping changes the last byte of every read.
type flipping struct{ engine.Buffer }

func (f flipping) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.Buffer.ReadAt(p, off)
	p[len(p)-1] ^= 1
	return n, err
}

func (f flipping) CopyTo(dst engine.Buffer, dstOff, srcOff, n uint64) error {
	return f.Buffer.CopyTo(dst.(flipping).Buffer, dstOff, srcOff, n)
}

func TestMemoryChecksFindFaults(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil spoiledMemory
		want  string
	}{
		"bytes that change":          {spoiledMemory{alloc: func(b engine.Buffer) engine.Buffer { return flipping{b} }}, "came back changed"},
		"a count of buffers":         {spoiledMemory{info: func(i *engine.DeviceInfo) { i.LiveBuffers++ }}, "all memory: the device counts"},
		"a sum of bytes":             {spoiledMemory{info: func(i *engine.DeviceInfo) { i.BytesUsed[engine.KV]++ }}, "contexts: the device counts"},
		"a free that failed":         {spoiledMemory{info: func(i *engine.DeviceInfo) { i.FailedFrees = 1 }}, "1 frees failed"},
		"a pool that is off and hit": {spoiledMemory{info: countHits()}, "hits of a pool that may keep nothing"},
		"more memory than there is": {spoiledMemory{info: func(i *engine.DeviceInfo) {
			total, free := uint64(testLimit), uint64(1)
			i.PhysicalTotal, i.PhysicalFree = &total, &free
		}}, "contexts: contexts count 83886080 bytes of their own together, and 41943039 of 41943040 are taken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			setup := MemorySetup{Open: func(pool bool) (engine.Device, error) {
				dev, err := openCPU(pool)
				tc.spoil.Device = dev
				return tc.spoil, err
			}}
			_, err := RunMemory(t.Context(), setup, smallMemory(), quiet)
			require.ErrorIs(t, err, ErrFailed)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// countHits adds a pool hit to each Info.
func countHits() func(*engine.DeviceInfo) {
	hits := uint64(0)
	return func(i *engine.DeviceInfo) {
		hits++
		i.PoolHits = hits
	}
}

func TestMemoryConfigIsValidated(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*MemoryConfig)
		want   string
	}{
		"too small a copy":  {func(c *MemoryConfig) { c.Largest = 1000 }, "--largest 1000B: want 1KiB to 64GiB"},
		"too small a piece": {func(c *MemoryConfig) { c.Piece = 1 << 20 }, "--piece 1MiB: want 2MiB"},
		"one context":       {func(c *MemoryConfig) { c.Contexts = 1 }, "--contexts 1"},
		"no measurement":    {func(c *MemoryConfig) { c.Repeat = 0 }, "--repeat 0"},
		"too much time":     {func(c *MemoryConfig) { c.Budget = time.Hour }, "--budget 1h"},
	} {
		t.Run(name, func(t *testing.T) {
			c := smallMemory()
			tc.change(&c)
			_, err := RunMemory(t.Context(), MemorySetup{}, c, quiet)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestMemoryFloorsNameFigures(t *testing.T) {
	one := stats.Spread{Median: 1}
	r := &MemoryReport{Bus: Bus{Peak: 1}, Given: 1, Driver: &Driver{Peak: 1, Copies: map[string]map[uint64]float64{}}}
	for _, way := range ways {
		r.Driver.Copies[way] = map[uint64]float64{}
		memories := []string{pinned, pageable}
		if way == onDevice {
			memories = []string{""}
		}
		for size := uint64(smallest); size <= 1<<30; size *= step {
			r.Driver.Copies[way][size] = 1
			for _, memory := range memories {
				r.Copies = append(r.Copies, Copy{Name: copyName(way, memory, size), Way: way, Size: size, Rate: one})
			}
		}
	}
	for _, size := range poolSizes {
		r.Pool = append(r.Pool, Pool{Name: "pool/" + sizeName(size), On: one, Off: one, Bare: 1, Driver: 1})
	}
	r.shares()
	files, err := filepath.Glob("../../../../bench/floors/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		set, err := stats.ReadFloors(path, "memory")
		require.NoError(t, err)
		for _, f := range set.List {
			_, known := r.Figure(f.Row, f.Metric)
			require.True(t, known, "%s: %s names no figure", path, f)
		}
	}
}
