package device

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/internal/cputest"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

func smallOps() OpsConfig {
	return OpsConfig{
		Squares: []int{5, 33}, Width: headDim, Keys: []int{1, 9}, Repeat: 2, Budget: 20 * time.Millisecond, RoofTime: time.Millisecond,
	}
}

func quiet(string, ...any) {}

// cpu opens the CPU engine until the test ends, when everything on it must have been given back.
func cpu(t *testing.T) engine.Device {
	t.Helper()
	dev, err := native.Open(native.Options{Device: "cpu", Threads: 1, Path: cputest.Path()}, hclog.NewNullLogger())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

func TestOpsHaveARowForEveryOperation(t *testing.T) {
	c := smallOps()
	rows := map[engine.Op]bool{}
	names := map[string]bool{}
	for _, row := range tasks(&c) {
		rows[row.args.Op] = true
		require.False(t, names[row.name], "two rows are called %s", row.name)
		require.NotContains(t, row.name, " ", "floors name a row by one word")
		names[row.name] = true
	}
	for op := engine.Op(0); op < engine.OpCount; op++ {
		require.True(t, rows[op], "operation %d has no row", op)
	}
}

func TestOpsFloorsNameFigures(t *testing.T) {
	c := OpsConfig{Squares: []int{512, 2048, 4096}, Width: 4096, Keys: []int{512, 1024, 2048}} // the command's defaults
	r := &OpsReport{Device: &OpsDevice{Roofs: OpsRoofs{Read: 1, Copy: 1, F32: 1, BF16: 1}}}
	one := stats.Spread{Median: 1}
	for _, row := range tasks(&c) {
		r.Lines = append(r.Lines, OpsLine{
			Name: row.name, Ops: row.ops, Bytes: row.bytes, Roof: row.roof, CPU: &OpsTiming{Seconds: one}, Device: &OpsTiming{Seconds: one},
		})
	}
	r.finish()
	files, err := filepath.Glob("../../../../bench/floors/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		set, err := stats.ReadFloors(path, "ops")
		require.NoError(t, err)
		for _, f := range set.List {
			_, known := r.Figure(f.Row, f.Metric)
			require.True(t, known, "%s: %s names no figure", path, f)
		}
	}
}

func TestTasksCountOperationsAndBytes(t *testing.T) {
	c := OpsConfig{Squares: []int{512}, Width: 4096, Keys: []int{3}}
	byName := map[string]task{}
	for _, row := range tasks(&c) {
		byName[row.name] = row
	}
	const floats = 4096 * 4096
	require.InDelta(t, 2*512*512*512, byName["matmul/512"].ops, 0)
	require.InDelta(t, 2*floats, byName["matvec/4096"].ops, 0)
	require.InDelta(t, 4*(floats+2*4096), byName["matvec/4096"].bytes, 0)
	require.InDelta(t, 12*floats, byName["add/4096x4096"].bytes, 0)
	require.InDelta(t, 8*floats, byName["copy/4096x4096"].bytes, 0)
	require.InDelta(t, 8*floats+4*4096, byName["rms_norm/4096x4096"].bytes, 0)
	require.InDelta(t, (8+4)*4096, byName["rms_norm/1x4096"].bytes, 0)
	require.InDelta(t, 8*4096, byName["softmax/1x4096"].bytes, 0)
	require.EqualValues(t, 1, byName["softmax/1x4096"].args.Rows)
	require.InDelta(t, 4*heads*headDim*(1+2+3), byName["attention/3"].ops, 0, "row r sees r+1 keys, and each costs two products")
}

func TestOpsOfTheCPUEngineAlone(t *testing.T) {
	report, err := RunOps(t.Context(), cpu(t), nil, smallOps(), quiet)
	require.NoError(t, err)
	require.Nil(t, report.Device)
	require.Positive(t, report.CPU.Roofs.Read)
	for _, l := range report.Lines {
		require.NotNil(t, l.CPU, l.Name)
		require.Nil(t, l.Device)
		require.Positive(t, l.CPU.Share, l.Name)
		require.LessOrEqual(t, l.CPU.Runs, 2)
	}
	var text bytes.Buffer
	report.Print(&text)
	require.NotContains(t, text.String(), "speed-up")
	require.Contains(t, text.String(), "attention/9")
	_, known := report.Figure("add/128x128", "speedup")
	require.False(t, known)
}

func TestOpsCompareTwoDevices(t *testing.T) {
	report, err := RunOps(t.Context(), quick(t), cpu(t), smallOps(), quiet)
	require.NoError(t, err)
	for _, l := range report.Lines {
		require.NotNil(t, l.CPU, l.Name)
		require.NotNil(t, l.Device, l.Name)
		for _, metric := range []string{"us", "gbps", "share", "speedup"} {
			v, known := report.Figure(l.Name, metric)
			require.True(t, known, "%s of %s", metric, l.Name)
			require.Positive(t, v)
		}
		require.InEpsilon(t, l.CPU.Seconds.Median/l.Device.Seconds.Median, l.Speedup, 1e-9)
	}
	_, known := report.Figure("matmul/33", "gflops")
	require.True(t, known)
	_, known = report.Figure("copy/128x128", "gflops")
	require.False(t, known, "a copy computes nothing")
	report.Floors = stats.Floors{File: "gpu.txt", List: []stats.Floor{{Row: "matmul/33", Metric: "gflops", Value: 1e9}}}.Judge(report.Figure)
	require.ErrorIs(t, report.Floors.Err(), stats.ErrMissed)
	var text bytes.Buffer
	report.Print(&text)
	require.Contains(t, text.String(), "speed-up")
	require.Contains(t, text.String(), "0 of 1 in gpu.txt hold")
	encoded, err := json.Marshal(report)
	require.NoError(t, err)
	var back OpsReport
	require.NoError(t, json.Unmarshal(encoded, &back))
	require.Equal(t, report.Lines, back.Lines)
}

// unmetered is a device that does not measure itself: roofs take most of a small run's time.
type unmetered struct {
	engine.Device
	engine.Operator
}

func quick(t *testing.T) engine.Device {
	t.Helper()
	dev := cpu(t)
	return unmetered{dev, dev.(engine.Operator)}
}

// spoiled is a device whose results of one operation are changed, or that does not have it.
type spoiled struct {
	engine.Device
	op    engine.Op
	spoil func(out engine.Buffer) error
}

func (s spoiled) Run(a engine.OpArgs) (time.Duration, error) {
	if a.Op == s.op && s.spoil == nil {
		return 0, engine.ErrUnsupported
	}
	took, err := s.Device.(engine.Operator).Run(a)
	if err == nil && a.Op == s.op {
		err = s.spoil(a.Out)
	}
	return took, err
}

func TestOpsReportNoTimeOfAWrongResult(t *testing.T) {
	for name, tc := range map[string]struct {
		op    engine.Op
		spoil func(out engine.Buffer) error
		want  string
	}{
		"an element that was never written": {
			engine.OpAdd, func(out engine.Buffer) error { return out.Fill(0xff, out.Size()-4, 4) }, "add/128x128",
		},
		"one element among many": {
			engine.OpRope, func(out engine.Buffer) error { return out.Fill(0, 4*777, 4) }, "rope/128x128",
		},
		"a product rounded to half of its bits": {engine.OpMatmul, func(out engine.Buffer) error {
			values := make([]float32, out.Size()/4)
			if _, err := out.ReadAt(bytesOf(values), 0); err != nil {
				return err
			}
			for i, v := range values {
				values[i] = v * (1 + 1e-3)
			}
			_, err := out.WriteAt(bytesOf(values), 0)
			return err
		}, "matmul/33"},
	} {
		t.Run(name, func(t *testing.T) {
			report, err := RunOps(t.Context(), quick(t), spoiled{cpu(t), tc.op, tc.spoil}, smallOps(), quiet)
			require.ErrorIs(t, err, ErrWrong)
			require.ErrorContains(t, err, tc.want)
			for _, l := range report.Lines {
				require.Equal(t, strings.HasPrefix(l.Name, strings.Split(tc.want, "/")[0]+"/"), l.Device == nil, l.Name)
			}
			_, known := report.Figure(tc.want, "us")
			require.False(t, known, "a floor on it is missed")
			var text bytes.Buffer
			report.Print(&text)
			require.Contains(t, text.String(), "WRONG")
			_, err = json.Marshal(report)
			require.NoError(t, err)
		})
	}
}

func TestOpsSkipUnsupportedOperations(t *testing.T) {
	report, err := RunOps(t.Context(), quick(t), spoiled{Device: cpu(t), op: engine.OpSoftmax}, smallOps(), quiet)
	require.NoError(t, err)
	for _, l := range report.Lines {
		require.NotNil(t, l.CPU)
		require.Equal(t, strings.HasPrefix(l.Name, "softmax/"), l.Device == nil)
	}
	var text bytes.Buffer
	report.Print(&text)
	require.NotContains(t, text.String(), "WRONG")
}

func TestOpsRefuseADeviceWithoutOperations(t *testing.T) {
	dev, err := sim.Open(sim.Options{}, hclog.NewNullLogger())
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	_, err = RunOps(t.Context(), quick(t), dev, smallOps(), quiet)
	require.ErrorIs(t, err, engine.ErrUnsupported)
}

func TestOpsFreeEverythingOnInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := RunOps(ctx, quick(t), nil, smallOps(), func(format string, _ ...any) {
		if strings.HasPrefix(format, "%s: %d of") {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
}

func TestOpsRunOnceBeyondTheBudget(t *testing.T) {
	c := smallOps()
	c.Squares, c.Budget, c.Repeat = []int{256}, time.Nanosecond, 100
	s, err := newSubject(cpu(t))
	require.NoError(t, err)
	all := tasks(&c)
	got, err := s.run(t.Context(), &all[0], all[0].operands(numbers(longest(all))), &c)
	require.NoError(t, err)
	require.Len(t, got.seconds, 1)
}

func TestWorstErrorIsRelative(t *testing.T) {
	of := func(v ...float64) func(int) float64 { return func(i int) float64 { return v[i] } }
	require.Zero(t, worst(3, of(1, 2, -3), of(1, 2, -3)))
	require.InDelta(t, 0.5, worst(1, of(2), of(1)), 1e-12, "off by 1, wanted 1 and 1 in the mean")
	require.True(t, math.IsInf(worst(2, of(1, math.NaN()), of(1, 1)), 1))
	require.True(t, math.IsInf(worst(1, of(math.Inf(1)), of(1)), 1))
	require.True(t, math.IsInf(worst(1, of(1), of(0)), 1) || worst(1, of(1), of(0)) > 1e9, "anything where nothing is wanted")
	require.Zero(t, worst(0, nil, nil))
}

func TestOpsConfigIsValidated(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*OpsConfig)
		want   string
	}{
		"a matrix of nothing":  {func(c *OpsConfig) { c.Squares = []int{0} }, "--squares 0"},
		"a width of no heads":  {func(c *OpsConfig) { c.Width = 200 }, "--width 200: want a multiple of 128"},
		"no keys":              {func(c *OpsConfig) { c.Keys = []int{-1} }, "--keys -1"},
		"no measurement":       {func(c *OpsConfig) { c.Repeat = 0 }, "--repeat 0"},
		"no time":              {func(c *OpsConfig) { c.Budget = 0 }, "--budget 0s"},
		"no time for the roof": {func(c *OpsConfig) { c.RoofTime = time.Hour }, "--roof-time 1h"},
	} {
		t.Run(name, func(t *testing.T) {
			c := smallOps()
			tc.change(&c)
			_, err := RunOps(t.Context(), nil, nil, c, quiet)
			require.ErrorContains(t, err, tc.want)
		})
	}
}
