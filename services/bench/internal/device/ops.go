package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// ErrWrong is returned if a result is wrong.
var ErrWrong = errors.New("an operation is wrong")

// OpsConfig configures RunOps.
type OpsConfig struct {
	Squares  []int         // rows, columns and inner size of each matmul
	Width    int           // rows and columns of matvec's matrix, and of operations by row or element
	Keys     []int         // rows and keys of each attention
	Repeat   int           // maximum of measurements of an operation on a device
	Budget   time.Duration // for these measurements; at least one is made
	RoofTime time.Duration // for each roof, before and after
}

// Limits bound the memory and time of a run.
const (
	maxSquare = 16384
	maxKeys   = 32768
	maxRepeat = 1000
)

// headDim is the width of a head in RoPE and attention; heads is the number of attention's heads.
const (
	headDim = 128
	heads   = 32
)

// Validate returns every error of the configuration.
func (c *OpsConfig) Validate() error {
	var wrong []error
	check := func(name string, value, low, high int) {
		if value < low || value > high {
			wrong = append(wrong, fmt.Errorf("%s %d: want %d to %d", name, value, low, high))
		}
	}
	for _, n := range c.Squares {
		check("--squares", n, 1, maxSquare)
	}
	check("--width", c.Width, headDim, maxSquare)
	if c.Width%headDim != 0 {
		wrong = append(wrong, fmt.Errorf("--width %d: want a multiple of %d, the width of a head", c.Width, headDim))
	}
	for _, n := range c.Keys {
		check("--keys", n, 1, maxKeys)
	}
	check("--repeat", c.Repeat, 1, maxRepeat)
	for name, d := range map[string]time.Duration{"--budget": c.Budget, "--roof-time": c.RoofTime} {
		if d < time.Millisecond || d > time.Minute {
			wrong = append(wrong, fmt.Errorf("%s %v: want 1ms to 1m", name, d))
		}
	}
	return errors.Join(wrong...)
}

// RunOps measures the CPU engine and, unless it is nil, another device; it closes neither.
// progress gets lines for a user. If the error is ErrWrong, the report is complete and rows with
// wrong results have no times; with any other error it is nil.
func RunOps(ctx context.Context, cpu, other engine.Device, c OpsConfig, progress func(format string, args ...any)) (*OpsReport, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	base, err := newSubject(cpu)
	if err != nil {
		return nil, err
	}
	subjects := []*subject{base}
	if other != nil {
		second, err := newSubject(other)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, second)
	}
	report := &OpsReport{Machine: proc.ThisMachine(), Repeat: c.Repeat, Budget: c.Budget.Seconds()}
	stolen := proc.WatchStolen()
	roofs := func(when string) error {
		for _, s := range subjects {
			progress("measuring the roofs of %s %s", s.info.Name, when)
			if err := s.measureRoofs(c.RoofTime); err != nil {
				return err
			}
		}
		return nil
	}
	if err := roofs("before"); err != nil {
		return nil, err
	}
	all := tasks(&c)
	from := numbers(longest(all))
	for i := range all {
		progress("%s: %d of %d", all[i].name, i+1, len(all))
		line, err := measure(ctx, &all[i], all[i].operands(from), subjects, &c)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", all[i].name, err)
		}
		report.Lines = append(report.Lines, line)
	}
	if err := roofs("after"); err != nil {
		return nil, err
	}
	report.CPU = deviceOf(base)
	if len(subjects) > 1 {
		device := deviceOf(subjects[1])
		report.Device = &device
	}
	report.finish()
	report.Stolen = stolen.Share()
	err = report.wrong()
	return report, err
}

// measure runs one operation on every device and checks the results.
func measure(ctx context.Context, t *task, x operands, subjects []*subject, c *OpsConfig) (OpsLine, error) {
	line := OpsLine{Name: t.name, Shape: t.shape, Ops: t.ops, Bytes: t.bytes, Roof: t.roof, Bound: t.bound}
	var first []float32
	for i, s := range subjects {
		got, err := s.run(ctx, t, x, c)
		if errors.Is(err, engine.ErrUnsupported) {
			continue
		}
		if err != nil {
			return line, fmt.Errorf("%s: %w", s.info.Name, err)
		}
		timing := &OpsTiming{Runs: len(got.seconds), Seconds: stats.SpreadOf(got.seconds), Error: t.sampleError(x, got.result)}
		if first != nil {
			timing.Error = max(timing.Error, fullError(got.result, first))
		}
		if !(timing.Error <= t.bound) {
			line.Wrong = append(line.Wrong, fmt.Sprintf("%s on %s has an error of %.2g and may have %.2g", t.name, s.info.Name,
				timing.Error, t.bound))
			continue
		}
		if i == 0 {
			first, line.CPU = got.result, timing
		} else {
			line.Device = timing
		}
	}
	return line, nil
}

// subject is a device that is measured.
type subject struct {
	dev   engine.Device
	op    engine.Operator
	info  engine.DeviceInfo
	roofs OpsRoofs
}

func newSubject(dev engine.Device) (*subject, error) {
	info, err := dev.Info()
	if err != nil {
		return nil, err
	}
	op, ok := dev.(engine.Operator)
	if !ok {
		return nil, fmt.Errorf("device %s runs no plain operations: %w", info.Name, engine.ErrUnsupported)
	}
	return &subject{dev: dev, op: op, info: info}, nil
}

// measureRoofs measures the roofs again and keeps the larger ones.
func (s *subject) measureRoofs(d time.Duration) error {
	again, err := measureOpsRoofs(s.dev, d)
	s.roofs = s.roofs.larger(again)
	return err
}

// outcome is the result of an operation on one device.
type outcome struct {
	result  []float32
	seconds []float64 // of each run, by the device's clock
}

// run executes the operation once for its result, and then as often as the configuration allows
// for its time. If the first run uses up the budget, its time is the only one. It returns
// engine.ErrUnsupported if the device does not have the operation.
func (s *subject) run(ctx context.Context, t *task, x operands, c *OpsConfig) (got outcome, err error) {
	args, free, err := s.upload(t, x)
	defer func() { err = errors.Join(err, free()) }()
	if err != nil {
		return outcome{}, err
	}
	begin := time.Now()
	took, err := s.op.Run(args)
	if err != nil {
		return outcome{}, err
	}
	first := time.Since(begin)
	got.result = make([]float32, t.out)
	if _, err := args.Out.ReadAt(bytesOf(got.result), 0); err != nil {
		return outcome{}, err
	}
	if first >= c.Budget {
		got.seconds = []float64{secondsOf(took)}
		return got, nil
	}
	for begin := time.Now(); len(got.seconds) == 0 || len(got.seconds) < c.Repeat && time.Since(begin) < c.Budget; {
		if err := ctx.Err(); err != nil {
			return outcome{}, err
		}
		took, err := s.op.Run(args)
		if err != nil {
			return outcome{}, err
		}
		got.seconds = append(got.seconds, secondsOf(took))
	}
	return got, nil
}

// secondsOf returns at least a nanosecond, because a clock that did not advance must not give an
// infinite rate.
func secondsOf(d time.Duration) float64 { return max(d, time.Nanosecond).Seconds() }

// upload copies the operands to the device and fills the result with bytes that are NaN, so that
// an element that is not written is wrong. free must be called, also after an error.
func (s *subject) upload(t *task, x operands) (args engine.OpArgs, free func() error, err error) {
	var held []engine.Buffer
	free = func() error {
		var errs []error
		for _, b := range held {
			errs = append(errs, b.Free())
		}
		return errors.Join(errs...)
	}
	args = t.args
	for _, operand := range []struct {
		values []float32
		to     *engine.Buffer
	}{{x.a, &args.A}, {x.b, &args.B}, {x.c, &args.C}} {
		if operand.values == nil {
			continue
		}
		b, err := s.dev.Alloc(4*uint64(len(operand.values)), engine.Workspace)
		if err != nil {
			return args, free, err
		}
		held = append(held, b)
		if _, err := b.WriteAt(bytesOf(operand.values), 0); err != nil {
			return args, free, err
		}
		*operand.to = b
	}
	if args.Out, err = s.dev.Alloc(4*uint64(t.out), engine.Workspace); err != nil {
		return args, free, err
	}
	held = append(held, args.Out)
	return args, free, args.Out.Fill(0xff, 0, args.Out.Size())
}
