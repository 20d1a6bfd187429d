package enginetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Hooks change the behaviour of a device. A nil hook changes nothing. If a hook returns an error,
// the call returns it and does not reach the device.
type Hooks struct {
	Alloc     func(size uint64, purpose engine.Purpose) error
	Stage     func(size int) error          // set, the device stages: plain memory, if it has none of its own to give
	Unstage   func() error                  // of memory that Stage gave
	Bind      func(engine.TensorDesc) error // the buffer is freed, as after any failed Bind
	Seal      func() error
	Digest    func(tensor int) error
	NewRunner func(engine.RunnerConfig) error
	Configure func(*engine.RunnerConfig) // may change the configuration of a runner or of its cost
	Submit    func(*engine.Step) error
	Wait      func() error
	// Result may change the result of a step. It gets the result with a copy of the step's shape.
	Result func(StepShape, *engine.StepResult)

	NewTrainer func(engine.TrainerConfig) error
	Trained    func(*Outcome)      // may change a result of a trainer in place: the one field that is set
	Encoded    func(*engine.Codes) // may change what rows are encoded to
}

// StepShape is the size of a step.
type StepShape struct{ Segments, Tokens int }

// Intercept returns the device with hooks on it and on its models and runners. Buffers have no
// hooks. The result has the abilities Operator, Stager, Refuser and Vectors if the device has them.
// It always has BitFlipper, LateMasker and Faulter, which return ErrUnsupported if the device lacks
// them.
func Intercept(dev engine.Device, hooks Hooks) engine.Device {
	return &device{Device: dev, hooks: hooks}
}

type device struct {
	engine.Device
	hooks Hooks
	plain atomic.Int64 // pieces of staged memory that live and are not the device's own
}

func (d *device) Alloc(size uint64, purpose engine.Purpose) (engine.Buffer, error) {
	if d.hooks.Alloc != nil {
		if err := d.hooks.Alloc(size, purpose); err != nil {
			return nil, err
		}
	}
	return d.Device.Alloc(size, purpose)
}

func (d *device) NewModel(desc engine.ModelDesc) (engine.Model, error) {
	m, err := d.Device.NewModel(desc)
	if err != nil {
		return nil, err
	}
	return &model{Model: m, hooks: d.hooks}, nil
}

func (d *device) Run(a engine.OpArgs) (time.Duration, error) {
	if op, ok := d.Device.(engine.Operator); ok {
		return op.Run(a)
	}
	return 0, fmt.Errorf("plain operations: %w", engine.ErrUnsupported)
}

func (d *device) Refuse(what engine.Refusal, skip int, count uint64) error {
	if own, ok := d.Device.(engine.Refuser); ok {
		return own.Refuse(what, skip, count)
	}
	return fmt.Errorf("refuse memory: %w", engine.ErrUnsupported)
}

type model struct {
	engine.Model
	hooks Hooks
}

func (m *model) Bind(desc engine.TensorDesc, b engine.Buffer) error {
	if m.hooks.Bind != nil {
		if err := m.hooks.Bind(desc); err != nil {
			return errors.Join(err, b.Free())
		}
	}
	return m.Model.Bind(desc, b)
}

func (m *model) Seal() error {
	if m.hooks.Seal != nil {
		if err := m.hooks.Seal(); err != nil {
			return err
		}
	}
	return m.Model.Seal()
}

func (m *model) Digest(tensor int) (engine.Digest, error) {
	if m.hooks.Digest != nil {
		if err := m.hooks.Digest(tensor); err != nil {
			return engine.Digest{}, err
		}
	}
	return m.Model.Digest(tensor)
}

func (m *model) RunnerCost(cfg engine.RunnerConfig) (engine.RunnerCost, error) {
	if m.hooks.Configure != nil {
		m.hooks.Configure(&cfg)
	}
	return m.Model.RunnerCost(cfg)
}

func (m *model) NewRunner(cfg engine.RunnerConfig) (engine.Runner, error) {
	if m.hooks.Configure != nil {
		m.hooks.Configure(&cfg)
	}
	if m.hooks.NewRunner != nil {
		if err := m.hooks.NewRunner(cfg); err != nil {
			return nil, err
		}
	}
	r, err := m.Model.NewRunner(cfg)
	if err != nil {
		return nil, err
	}
	return &runner{Runner: r, hooks: m.hooks}, nil
}

func (m *model) FlipBit(tensor int, bit uint64) error {
	if f, ok := m.Model.(engine.BitFlipper); ok {
		return f.FlipBit(tensor, bit)
	}
	return fmt.Errorf("flip bit: %w", engine.ErrUnsupported)
}

type runner struct {
	engine.Runner
	hooks  Hooks
	shapes []StepShape // of the steps in flight
}

func (r *runner) Submit(s *engine.Step) error {
	if r.hooks.Submit != nil {
		if err := r.hooks.Submit(s); err != nil {
			return err
		}
	}
	shape := StepShape{Segments: len(s.Segments)}
	for i := range s.Segments {
		shape.Tokens += len(s.Segments[i].Tokens)
	}
	if err := r.Runner.Submit(s); err != nil {
		return err
	}
	r.shapes = append(r.shapes, shape)
	return nil
}

func (r *runner) Wait(timeout time.Duration) (*engine.StepResult, error) {
	if r.hooks.Wait != nil {
		if err := r.hooks.Wait(); err != nil {
			return nil, err
		}
	}
	res, err := r.Runner.Wait(timeout)
	if err != nil {
		return nil, err
	}
	shape := r.shapes[0]
	r.shapes = append(r.shapes[:0], r.shapes[1:]...)
	if r.hooks.Result != nil {
		r.hooks.Result(shape, res)
	}
	return res, nil
}

func (r *runner) Masks(masks [][]uint32) error {
	if own, ok := r.Runner.(engine.LateMasker); ok {
		return own.Masks(masks)
	}
	return fmt.Errorf("late masks: %w", engine.ErrUnsupported)
}

func (r *runner) Fault(f engine.Fault, index int32, value uint64) error {
	if own, ok := r.Runner.(engine.Faulter); ok {
		return own.Fault(f, index, value)
	}
	return fmt.Errorf("fault: %w", engine.ErrUnsupported)
}
