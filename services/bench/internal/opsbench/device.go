package opsbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// subject is a device that is measured.
type subject struct {
	dev   engine.Device
	op    engine.Operator
	info  engine.DeviceInfo
	roofs Roofs
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

// measureRoofs measures the roofs once more and keeps the larger ones.
func (s *subject) measureRoofs(d time.Duration) error {
	now, err := measureRoofs(s.dev, d)
	s.roofs = s.roofs.larger(now)
	return err
}

// outcome is what an operation gave on one device.
type outcome struct {
	result  []float32
	seconds []float64 // that the device took, each run
}

// run does the operation once for its result, and then as often as the configuration allows for its time. A first run that
// uses the budget up is its own measurement. ErrUnsupported: the device does not have the operation.
func (s *subject) run(ctx context.Context, t *task, x operands, c *Config) (got outcome, err error) {
	args, free, err := s.place(t, x)
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

// secondsOf is never 0: a clock that did not move is no infinite rate.
func secondsOf(d time.Duration) float64 { return max(d, time.Nanosecond).Seconds() }

// place puts the operands on the device, and a result of bytes that are no numbers, so that what is not written is wrong.
// free gives back what was placed, also after an error.
func (s *subject) place(t *task, x operands) (args engine.OpArgs, free func() error, err error) {
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
