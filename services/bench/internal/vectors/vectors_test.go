package vectors

import (
	"bytes"
	"context"
	"encoding/json"
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

func small(parts ...string) Config {
	return Config{
		Parts: parts, Dimension: 12, Codewords: []int{5}, Subspaces: 4, Rows: 300, Types: []engine.Element{engine.VectorF32, engine.VectorF16},
		Scale: 1e-6, Iterations: 1, Repeat: 2, Budget: time.Minute, Seed: 3, RoofTime: time.Millisecond, InFlight: 2,
	}
}

func quiet(string, ...any) {}

// cpu opens the CPU engine. The caller closes it, which fails unless everything was freed.
func cpu(limit uint64) (engine.Device, error) {
	return native.Open(native.Options{Device: "cpu", Threads: 1, Path: cputest.Path(), BytesLimit: limit}, hclog.NewNullLogger())
}

func simulated(limit uint64) (engine.Device, error) {
	return sim.Open(sim.Options{Memory: limit}, hclog.NewNullLogger())
}

// roofed is a device that says that all of its roofs are a rate: a machine that others use cannot
// be too fast for it.
type roofed struct {
	engine.Device
	engine.Vectors
	rate float64
}

func (r roofed) Measure(engine.Measure, uint64) (float64, error) { return r.rate, nil }

func TestRunHasARowForEveryPart(t *testing.T) {
	c := small(PartEncode, PartProduct, PartIteration, PartWrite, PartStream)
	c.Codewords = []int{2, 300}
	report, err := Run(t.Context(), func(limit uint64) (engine.Device, error) {
		dev, err := cpu(limit)
		if err != nil {
			return nil, err
		}
		return roofed{dev, dev.(engine.Vectors), 1e18}, nil
	}, c, quiet)
	require.NoError(t, err)
	rows := map[string]*Line{}
	for i := range report.Lines {
		l := &report.Lines[i]
		rows[l.Row] = l
		require.Positive(t, l.VectorsPerSecond.Min, l.Row)
		require.LessOrEqual(t, l.Seconds.Min, l.Seconds.Median)
		require.NotContains(t, l.Row, " ", "floors name a row by one word")
	}
	require.Len(t, rows, 2*(2+1+2+1), "two types of every row, and no engine here streams")
	require.Len(t, report.Skipped, 2)
	require.Contains(t, report.Skipped[0].Reason, "keeps all rows on the device")
	require.Positive(t, rows["encode/f32/12/300"].Share.Median)
	require.InEpsilon(t, 300*2*300*12/rows["encode/f32/12/300"].Seconds.Median, rows["encode/f32/12/300"].OpsPerSecond, 1e-9)
	require.Positive(t, rows["iteration/f16/12/2"].OfAssign.Median)
	require.InEpsilon(t, 300*2*300*12/rows["encode/f32/12/300"].Seconds.Max/1e18, rows["encode/f32/12/300"].Share.Min, 1e-9)
	require.Zero(t, rows["write/f32/12"].OpsPerSecond)
	require.Contains(t, rows, "encode/f16/12/4x256")
	for _, metric := range []string{"seconds", "vectors", "gbps", "share", "recomputed"} {
		_, known := report.Figure("encode/f32/12/300", metric)
		require.True(t, known, metric)
	}
	for _, key := range [][2]string{
		{"encode/f32/12/300", "of_assign"}, {"encode/f32/12/300", "of_direct"}, {"write/f32/12", "recomputed"}, {"encode/f32/12/7", "vectors"},
	} {
		_, known := report.Figure(key[0], key[1])
		require.False(t, known, key)
	}
}

func TestTrainingsScaleWithConfig(t *testing.T) {
	r := &run{cfg: Config{Scale: 1, Iterations: 1000, Types: []engine.Element{engine.VectorF32, engine.VectorF16}}}
	var names []string
	for _, j := range r.trainings() {
		names = append(names, j.row)
	}
	require.Equal(t, []string{
		"train/large",
		"train/f32/100000x384x1024/25", "train/annealed/f32/100000x384x1024/25", "train/f32/1000000x128x2048/31",
		"train/annealed/f32/1000000x128x2048/31", "train/f32/1000000x256x20000/25", "train/f32/1000000x128x256/25",
		"train/f16/100000x384x1024/25", "train/f16/1000000x128x2048/31", "train/f16/1000000x256x20000/25", "train/f16/1000000x128x256/25",
	}, names)
	r.cfg.Scale, r.cfg.Iterations = 0.001, 2
	for i, j := range r.trainings() {
		if i > 0 {
			require.Equal(t, max(2*j.desc.Codewords, 1000), j.rows, "each codeword has two rows at least")
			require.Equal(t, 2, j.train.MaxIterations)
		}
	}
}

// trainingJob is one whole training, a tiny one.
func trainingJob(r *run) job {
	desc := engine.CodebookDesc{Dimension: 4, Codewords: 3, Subspaces: 1, Type: engine.VectorF16}
	return job{row: "train/tiny", desc: desc, rows: 50, train: lloyd(desc, 50, engine.VectorF32, 3), measure: r.train}
}

func TestTrainingReportsItsLastRound(t *testing.T) {
	dev, err := simulated(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	r := &run{ctx: t.Context(), cfg: small(PartTrain), dev: dev, vec: dev.(engine.Vectors), kind: "sim", progress: quiet}
	j := trainingJob(r)
	line := j.line(PartTrain)
	skipped, err := j.measure(&j, line)
	require.NoError(t, err)
	require.Empty(t, skipped)
	require.Equal(t, 4, line.Rounds, "one more than updates")
	require.Positive(t, line.Energy)
	require.Positive(t, line.Resident.Median)
	require.LessOrEqual(t, line.Resident.Min, line.Seconds.Max, "of the same time")
	_, told, _, err := r.whole(j.train, j.data(r.cfg.Seed))
	require.NoError(t, err)
	require.Equal(t, engine.Done, told.Phase)
	require.InDelta(t, told.Rounds[len(told.Rounds)-1].Energy, line.Energy, 0)
	require.EqualValues(t, 3, told.Rounds[len(told.Rounds)-1].Iteration)
}

// wrong is a device whose codebooks give other codes for the last row.
type wrong struct {
	engine.Device
	engine.Vectors
}

type wrongBook struct{ engine.Codebook }

func (w wrong) NewCodebook(desc engine.CodebookDesc, codewords []byte) (engine.Codebook, error) {
	b, err := w.Vectors.NewCodebook(desc, codewords)
	return wrongBook{b}, err
}

func (b wrongBook) Encode(e engine.Encoding) (engine.Codes, error) {
	codes, err := b.Codebook.Encode(e)
	codes.Codes[0] ^= 1
	return codes, err
}

func TestRunFailsIfCodesDifferFromFloat64(t *testing.T) {
	open := func(limit uint64) (engine.Device, error) {
		dev, err := simulated(limit)
		return wrong{dev, dev.(engine.Vectors)}, err
	}
	report, err := Run(t.Context(), open, small(PartEncode), quiet)
	require.ErrorIs(t, err, ErrWrong)
	require.ErrorContains(t, err, "row 0 has the codes")
	require.NotNil(t, report)
}

// spooling is a device that claims to keep rows without room in the host's memory.
type spooling struct {
	engine.Device
	engine.Vectors
	asked *[]uint64
}

func (s spooling) NewTrainer(cfg engine.TrainerConfig) (engine.Trainer, error) {
	*s.asked = append(*s.asked, cfg.SpoolBytes)
	cfg.SpoolBytes = 0
	t, err := s.Vectors.NewTrainer(cfg)
	return slow{t}, err
}

// slow is a trainer whose slices take a while.
type slow struct{ engine.Trainer }

func (s slow) Wait(timeout time.Duration) (engine.Training, error) {
	time.Sleep(10 * time.Millisecond)
	return s.Trainer.Wait(timeout)
}

func TestRunStreamsRowsBeyondDeviceMemory(t *testing.T) {
	var limits, asked []uint64
	open := func(limit uint64) (engine.Device, error) {
		limits = append(limits, limit)
		dev, err := simulated(0)
		return spooling{dev, dev.(engine.Vectors), &asked}, err
	}
	c := small(PartStream)
	c.Types = c.Types[:1]
	report, err := Run(t.Context(), open, c, quiet)
	require.NoError(t, err)
	require.Len(t, report.Lines, 1)
	const bytes = 300 * 12 * 4
	require.Equal(t, []uint64{bytes}, asked)
	require.Len(t, limits, 2)
	require.GreaterOrEqual(t, limits[1], uint64(bytes/2))
	require.Positive(t, report.Lines[0].OfBus)
	require.Zero(t, report.Lines[0].ReadShare)
}

// bare is a device without the ability.
type bare struct{ engine.Device }

// refusing is one whose engine has no table of it.
type refusing struct {
	engine.Device
	engine.Vectors
}

func (refusing) TrainerCost(engine.TrainerConfig) (engine.TrainerCost, error) {
	return engine.TrainerCost{}, engine.ErrUnsupported
}

func TestRunRefusesADeviceWithoutVectors(t *testing.T) {
	for name, dress := range map[string]func(engine.Device) engine.Device{
		"no ability": func(d engine.Device) engine.Device { return bare{d} },
		"no table":   func(d engine.Device) engine.Device { return refusing{d, d.(engine.Vectors)} },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Run(t.Context(), func(limit uint64) (engine.Device, error) {
				dev, err := simulated(limit)
				return dress(dev), err
			}, small(PartEncode), quiet)
			require.ErrorIs(t, err, engine.ErrUnsupported)
			require.ErrorContains(t, err, "device sim")
		})
	}
}

func TestReportFailsAShareAboveTheRoof(t *testing.T) {
	line := func(change func(*Line)) *Report {
		l := Line{Row: "encode/f32/1/2"}
		change(&l)
		return &Report{Lines: []Line{l}}
	}
	require.NoError(t, line(func(l *Line) { l.Share.Median, l.Share.Max, l.ReadShare, l.OfBus = 1, 1.2, 1, 1 }).check())
	for want, r := range map[string]*Report{
		"150.0 % of the roof of operations": line(func(l *Line) { l.Share.Median = 1.5 }),
		"101.0 % of the roof of read":       line(func(l *Line) { l.ReadShare = 1.01 }),
		"200.0 % of the roof of bus":        line(func(l *Line) { l.OfBus = 2 }),
	} {
		require.ErrorIs(t, r.check(), ErrTooFast)
		require.ErrorContains(t, r.check(), want)
	}
}

func TestRunReportsAShareAboveTheRoof(t *testing.T) {
	report, err := Run(t.Context(), func(limit uint64) (engine.Device, error) {
		dev, err := simulated(limit)
		return roofed{dev, dev.(engine.Vectors), 1}, err
	}, small(PartEncode), quiet)
	require.ErrorIs(t, err, ErrTooFast)
	require.Len(t, report.Lines, 2)
}

func TestCachedRowsHaveNoReadShare(t *testing.T) {
	r := &Report{Lines: []Line{{Rounds: 2, BytesPerSecond: 100, Part: PartIteration}, {BytesPerSecond: 100}, {BytesPerSecond: 100, Part: PartStream}}}
	for i := range r.Lines {
		r.Lines[i].Seconds.Median = 1
	}
	r.finish(400, 50)
	require.Zero(t, r.Lines[0].ReadShare, "50 bytes a round")
	require.InDelta(t, 0.25, r.Lines[1].ReadShare, 1e-12)
	require.Zero(t, r.Lines[2].ReadShare, "streamed ones are of the bus")
}

func TestReportIsPrintedAndEncoded(t *testing.T) {
	report, err := Run(t.Context(), simulated, small(PartEncode, PartIteration), quiet)
	require.NoError(t, err)
	report.Floors = stats.Floors{File: "gpu.txt", List: []stats.Floor{{Row: "encode/f32/12/5", Metric: "vectors", Value: 1e15}}}.Judge(report.Figure)
	require.ErrorIs(t, report.Floors.Err(), stats.ErrMissed)
	var text bytes.Buffer
	report.Print(&text)
	for _, want := range []string{"encode/f32/12/5", "of assign", "not measured", "0 of 1 in gpu.txt hold", "load "} {
		require.Contains(t, text.String(), want)
	}
	encoded, err := json.Marshal(report)
	require.NoError(t, err)
	var back Report
	require.NoError(t, json.Unmarshal(encoded, &back))
	require.Equal(t, report.Lines, back.Lines)
}

func TestInterruptEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, simulated, small(PartEncode), func(format string, _ ...any) {
		if strings.HasPrefix(format, "%s: %d of") {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
}

func TestMeasurementRunsOnceBeyondTheBudget(t *testing.T) {
	c := small(PartEncode)
	c.Budget, c.Repeat, c.Types = time.Nanosecond, 100, c.Types[:1]
	r := &run{ctx: t.Context(), cfg: c, kind: "sim", progress: quiet, dev: bare{}}
	times := 0
	require.NoError(t, r.paired(&Line{}, work{}, func() (time.Duration, error) { times++; return time.Second, nil }))
	require.Equal(t, 1, times)
	r.cfg.Budget, r.cfg.Repeat, times = time.Hour, 3, 0
	line := &Line{}
	require.NoError(t, r.paired(line, work{vectors: 6}, func() (time.Duration, error) { times++; return time.Duration(times) * time.Second, nil }))
	require.Equal(t, 4, times, "the first one is not counted")
	require.InDelta(t, 2, line.Seconds.Min, 1e-12)
	require.InDelta(t, 2, line.VectorsPerSecond.Median, 1e-12)
}

// wavering is a device whose roof changes from one measurement to the next.
type wavering struct {
	engine.Device
	rates *[]float64
}

func (w wavering) Measure(engine.Measure, uint64) (float64, error) {
	rate := (*w.rates)[0]
	*w.rates = (*w.rates)[1:]
	return rate, nil
}

func TestTimeIsComparedWithTheLargerRoof(t *testing.T) {
	c := small(PartEncode)
	c.Repeat = 3
	rates := []float64{8, 8, 20, 5, 4} // the first two belong to the warm-up
	r := &run{ctx: t.Context(), cfg: c, kind: "sim", progress: quiet, dev: wavering{rates: &rates}}
	line := &Line{}
	require.NoError(t, r.paired(line, work{ops: 10}, func() (time.Duration, error) { return time.Second, nil }))
	require.InDelta(t, 0.5, line.Share.Median, 1e-12, "10 of 20, of 20, and of 5, which is too low, so that it is of 20")
	require.InDelta(t, 0.5, line.Share.Max, 1e-12)
	require.InDelta(t, 20, r.report.Roofs.Ops, 1e-12)
}

func TestConfigIsValidated(t *testing.T) {
	require.NoError(t, func() error { c := small(Parts()...); return c.Validate() }())
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"a part that is none":         {func(c *Config) { c.Parts = []string{"search"} }, `--parts "search"`},
		"no part":                     {func(c *Config) { c.Parts = nil }, "list one at least"},
		"a codebook of one":           {func(c *Config) { c.Codewords = []int{1} }, "--codewords 1"},
		"rows without elements":       {func(c *Config) { c.Dimension = 0 }, "--dimension 0"},
		"subspaces of a fraction":     {func(c *Config) { c.Subspaces = 5 }, "--subspaces 5: want a divisor"},
		"no number of rows":           {func(c *Config) { c.Rows = -1 }, "--rows -1"},
		"more than the document asks": {func(c *Config) { c.Scale = 2 }, "--scale 2"},
		"no measurement":              {func(c *Config) { c.Repeat = 0 }, "--repeat 0"},
		"no call":                     {func(c *Config) { c.InFlight = 0 }, "--in-flight 0"},
		"no time for the roof":        {func(c *Config) { c.RoofTime = 0 }, "--roof-time 0s"},
		"no time":                     {func(c *Config) { c.Budget = 0 }, "--budget 0s"},
	} {
		t.Run(name, func(t *testing.T) {
			c := small(Parts()...)
			tc.change(&c)
			_, err := Run(t.Context(), nil, c, quiet)
			require.ErrorContains(t, err, tc.want)
		})
	}
	_, err := ParseType("u8")
	require.ErrorContains(t, err, `--type "u8"`)
}

// The bars of the repository name rows of a run on a CPU with default flags.
func TestBarsNameDefaultRows(t *testing.T) {
	set, err := stats.ReadFloors("../../../../bench/bars.txt", "vectors")
	require.NoError(t, err)
	r := &run{kind: "cpu", cfg: Config{
		Dimension: 128, Codewords: []int{256, 4096, 65536}, Subspaces: 16, Types: []engine.Element{engine.VectorF32, engine.VectorF16},
	}}
	r.cfg.complete(r.kind)
	var rows []string
	for _, part := range Parts() {
		for _, j := range r.jobs(part) {
			rows = append(rows, j.row)
		}
	}
	for _, f := range set.List {
		require.Contains(t, rows, f.Row)
	}
}
