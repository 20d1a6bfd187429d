package command

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/bench/internal/floor"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/served"
)

// servedFlags are the flags that all commands have that put a server under a load of their own.
type servedFlags struct {
	target, worker, model, floors string
	connections                   int
	seed                          uint64
}

func (f *servedFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.target, "target", "127.0.0.1:7070", "scheduler or worker that is asked: host:port, dns:///name:port or unix:PATH")
	flags.StringVar(&f.worker, "worker", "", "the worker itself, whose report is read (default: --target)")
	flags.StringVar(&f.model, "model", "", "name of a loaded model (default: the only one)")
	flags.IntVar(&f.connections, "connections", 1, "connections, used in turn")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of prompts and sampling")
	flags.StringVar(&f.floors, "floors", "", floorsUsage)
}

// outcome is a report of the package served.
type outcome interface {
	printer
	Err() error
	Figure(row, metric string) (float64, bool)
}

// servedReport is what such a command prints.
type servedReport struct {
	Machine machine.Facts  `json:"machine"`
	Target  string         `json:"target"`
	Model   string         `json:"model"`
	Result  outcome        `json:"result"`
	Floors  *floor.Verdict `json:"floors,omitempty"`
}

// Print writes the report as text.
func (r *servedReport) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\ntarget   %s, model %s\n\n", r.Machine, r.Target, r.Model)
	r.Result.Print(w)
	r.Floors.Print(w)
}

// count is a number that a flag gives.
type count struct {
	name            string
	value, low, top int
}

func checkCounts(counts ...count) error {
	var wrong []error
	for _, c := range counts {
		if c.value < c.low || c.value > c.top {
			wrong = append(wrong, fmt.Errorf("%s %d: want %d to %d", c.name, c.value, c.low, c.top))
		}
	}
	return errors.Join(wrong...)
}

// most keep a run within reason.
const (
	mostCalls  = 100_000
	mostTokens = 1 << 22
)

// serve runs one of the measurements on the target and prints what it gives. A promise that was broken, or a floor that was
// missed, is an error behind the report.
func (c *console) serve(ctx context.Context, name string, f *servedFlags, wrong error,
	run func(context.Context, *served.Service) (outcome, error)) (err error) {
	if wrong = errors.Join(wrong, checkCounts(count{"--connections", f.connections, 1, 10_000})); wrong != nil {
		return fmt.Errorf("%w: %w", ErrUsage, wrong)
	}
	set, err := readFloors(f.floors, name)
	if err != nil {
		return err
	}
	conns, hangUp, err := load.Dial(f.target, f.connections)
	if err != nil {
		return err
	}
	defer hangUp()
	var worker []grpc.ClientConnInterface
	if f.worker == "" {
		f.worker = f.target
	}
	worker, leave, err := load.Dial(f.worker, 1)
	if err != nil {
		return err
	}
	defer leave()
	finding, cancel := context.WithTimeout(ctx, findTimeout)
	target, err := load.FindTarget(finding, conns[0], f.model)
	cancel()
	if err != nil {
		return fmt.Errorf("target %s: %w", f.target, err)
	}
	result, err := run(ctx, &served.Service{
		Conns: conns, Worker: worker[0], Target: target, Tell: c.line.Tell,
		Maker: load.Maker{Model: target.Model, Vocabulary: target.Vocabulary, IDsOnly: true, Seed: f.seed},
	})
	if err != nil {
		return err
	}
	report := &servedReport{Machine: machine.Look(), Target: f.target, Model: target.Model, Result: result}
	report.Floors = judge(set, result.Figure)
	return errors.Join(c.print(report), result.Err(), report.Floors.Err())
}
