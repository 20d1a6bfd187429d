package opsbench

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Run measures the CPU engine and, unless it is nil, another device beside it; it closes neither. tell gets lines about
// what is going on. When the error is ErrWrong the report is complete and the rows that are wrong have no times; otherwise
// it is nil with an error.
func Run(ctx context.Context, cpu, other engine.Device, c Config, tell func(format string, args ...any)) (*Report, error) {
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
	report := &Report{Machine: machine.Look(), Repeat: c.Repeat, Budget: c.Budget.Seconds()}
	stolen := machine.WatchStolen()
	roofs := func(when string) error {
		for _, s := range subjects {
			tell("measuring the roofs of %s %s", s.info.Name, when)
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
		tell("%s: %d of %d", all[i].name, i+1, len(all))
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

// measure runs one operation on every device and says whether what they gave is right.
func measure(ctx context.Context, t *task, x operands, subjects []*subject, c *Config) (Line, error) {
	line := Line{Name: t.name, Shape: t.shape, Ops: t.ops, Bytes: t.bytes, Roof: t.roof, Bound: t.bound}
	var first []float32
	for i, s := range subjects {
		got, err := s.run(ctx, t, x, c)
		if errors.Is(err, engine.ErrUnsupported) {
			continue
		}
		if err != nil {
			return line, fmt.Errorf("%s: %w", s.info.Name, err)
		}
		timing := &Timing{Runs: len(got.seconds), Seconds: stats.SpreadOf(got.seconds), Error: t.sampleError(x, got.result)}
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
