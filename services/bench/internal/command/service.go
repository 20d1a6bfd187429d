package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// servedFlags are the flags of the commands that put a service under their own load.
type servedFlags struct {
	target, worker, model, floors string
	connections                   int
	seed                          uint64
}

func (f *servedFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.target, "target", "127.0.0.1:7070", "scheduler or worker to call: host:port, dns:///name:port or unix:PATH")
	flags.StringVar(&f.worker, "worker", "", "the worker itself, for its health reports (default: --target)")
	flags.StringVar(&f.model, "model", "", "name of a loaded model (default: the only one)")
	flags.IntVar(&f.connections, "connections", 1, "connections, used in turn")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of prompts and sampling")
	flags.StringVar(&f.floors, "floors", "", floorsUsage)
}

// outcome is a report of a load.Service.
type outcome interface {
	printer
	Err() error
	Figure(row, metric string) (float64, bool)
}

// servedReport is the report that such a command prints.
type servedReport struct {
	Machine proc.Machine   `json:"machine"`
	Target  string         `json:"target"`
	Model   string         `json:"model"`
	Result  outcome        `json:"result"`
	Floors  *stats.Verdict `json:"floors,omitempty"`
}

// Print writes the report as text.
func (r *servedReport) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\ntarget   %s, model %s\n\n", r.Machine, r.Target, r.Model)
	r.Result.Print(w)
	r.Floors.Print(w)
}

// count is the value of a flag and its range.
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

// Limits of the flags.
const (
	mostCalls  = 100_000
	mostTokens = 1 << 22
)

// serve runs one of the measurements on the target and prints its report. It returns an error after
// the report if a promise was broken or a floor was missed.
func (c *console) serve(ctx context.Context, name string, f *servedFlags, wrong error,
	run func(context.Context, *load.Service) (outcome, error)) (err error) {
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
	result, err := run(ctx, &load.Service{
		Conns: conns, Worker: worker[0], Target: target, Progress: c.line.Step, HostMemory: proc.MemoryOf,
		Maker: load.Maker{Model: target.Model, Vocabulary: target.Vocabulary, IDsOnly: true, Seed: f.seed},
	})
	if err != nil {
		return err
	}
	report := &servedReport{Machine: proc.ThisMachine(), Target: f.target, Model: target.Model, Result: result}
	report.Floors = judge(set, result.Figure)
	return errors.Join(c.print(report), result.Err(), report.Floors.Err())
}

func (c *console) prefix() *cobra.Command {
	f, p := &servedFlags{}, load.PrefixConfig{}
	cmd := &cobra.Command{
		Use: "prefix", Short: "Measures the prefix cache: calls that share a prefix, and the second turn of a chat",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.serve(cmd.Context(), "prefix", f, checkCounts(
				count{"--calls", p.Calls, 1, mostCalls}, count{"--shared", p.Shared, 1, mostTokens}, count{"--own", p.Own, 1, mostTokens},
				count{"--history", p.History, 1, mostTokens}, count{"--new", p.New, 1, mostTokens},
				count{"--answer", p.Answer, 1, mostTokens}, count{"--repeat", p.Repeat, 1, 1000}, count{"--evict", p.Evict, 0, 1000},
			), func(ctx context.Context, s *load.Service) (outcome, error) { return s.Prefix(ctx, p) })
		},
	}
	flags := cmd.Flags()
	f.register(flags)
	flags.IntVar(&p.Calls, "calls", 32, "calls at once that share a prefix")
	flags.IntVar(&p.Shared, "shared", 2000, "tokens that they share")
	flags.IntVar(&p.Own, "own", 60, "further tokens, different in each call")
	flags.IntVar(&p.History, "history", 2000, "tokens of a conversation's first turn")
	flags.IntVar(&p.New, "new", 60, "tokens of its second")
	flags.IntVar(&p.Answer, "answer", 8, "tokens generated by each call")
	flags.IntVar(&p.Repeat, "repeat", 5, "measurements; the median is reported")
	flags.IntVar(&p.Evict, "evict", 0, "prompts of --history tokens that displace one before it is asked again; 0: this is not measured")
	return cmd
}

func (c *console) cancel() *cobra.Command {
	f, p := &servedFlags{}, load.CancelConfig{}
	cmd := &cobra.Command{
		Use: "cancel", Short: "Cancels calls at random moments under load and checks that they leave nothing",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.Seed = f.seed
			return c.serve(cmd.Context(), "cancel", f, checkCounts(
				count{"--calls", p.Calls, 1, 1 << 24}, count{"--at-once", p.AtOnce, 1, mostCalls}, count{"--beside", p.Beside, 0, mostCalls},
				count{"--prompt-tokens", p.Prompt, 1, mostTokens}, count{"--max-tokens", p.Max, 2, mostTokens},
			), func(ctx context.Context, s *load.Service) (outcome, error) { return s.Cancel(ctx, p) })
		},
	}
	flags := cmd.Flags()
	f.register(flags)
	flags.IntVar(&p.Calls, "calls", 1000, "calls to cancel")
	flags.IntVar(&p.AtOnce, "at-once", 32, "calls at once")
	flags.IntVar(&p.Beside, "beside", 32, "further calls that run to their ends")
	flags.IntVar(&p.Prompt, "prompt-tokens", 512, "random ids of a prompt")
	flags.IntVar(&p.Max, "max-tokens", 256, "tokens that a call would generate")
	return cmd
}

func (c *console) overload() *cobra.Command {
	f, p := &servedFlags{}, load.OverloadConfig{}
	cmd := &cobra.Command{
		Use: "overload", Short: "Sends far more calls than can be computed and compares speed and memory before, during and afterwards",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			wrong := checkCounts(
				count{"--capacity", p.Capacity, 0, mostCalls}, count{"--factor", p.Factor, 1, 1000}, count{"--worker-pid", p.PID, 0, 1 << 30},
				count{"--prompt-tokens", p.Prompt, 1, mostTokens}, count{"--max-tokens", p.Answer, 1, mostTokens},
			)
			for name, d := range map[string]time.Duration{"--duration": p.Duration, "--measure": p.Measure, "--grace": p.Grace} {
				if d <= 0 || d > 24*time.Hour {
					wrong = errors.Join(wrong, fmt.Errorf("%s %v: want above 0, at most 24h", name, d))
				}
			}
			return c.serve(cmd.Context(), "overload", f, wrong, func(ctx context.Context, s *load.Service) (outcome, error) {
				if p.Capacity == 0 {
					p.Capacity = max(s.Target.Sequences, 1)
				}
				return s.Overload(ctx, p)
			})
		},
	}
	flags := cmd.Flags()
	f.register(flags)
	flags.IntVar(&p.Capacity, "capacity", 0, "calls that are computed at once; 0: as many as one worker has slots")
	flags.IntVar(&p.Factor, "factor", 10, "how many times --capacity calls are sent")
	flags.DurationVar(&p.Duration, "duration", time.Minute, "of the overload")
	flags.DurationVar(&p.Measure, "measure", 10*time.Second, "time of the measurements before and afterwards")
	flags.DurationVar(&p.Grace, "grace", 2*time.Minute, "time in which the last calls must end")
	flags.IntVar(&p.PID, "worker-pid", 0, "process id of the worker on this machine, to watch its memory")
	flags.IntVar(&p.Prompt, "prompt-tokens", 128, "random ids of a prompt")
	flags.IntVar(&p.Answer, "max-tokens", 64, "tokens generated by a call")
	return cmd
}

func (c *console) fairness() *cobra.Command {
	f, p := &servedFlags{}, load.FairnessConfig{}
	cmd := &cobra.Command{
		Use: "fairness", Short: "Measures a tenant's single call during another tenant's many",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.serve(cmd.Context(), "fairness", f, checkCounts(
				count{"--crowd", p.Crowd, 1, mostCalls}, count{"--singles", p.Singles, 1, mostCalls},
				count{"--prompt-tokens", p.Prompt, 1, mostTokens}, count{"--max-tokens", p.Answer, 1, mostTokens},
			), func(ctx context.Context, s *load.Service) (outcome, error) { return s.Fairness(ctx, p) })
		},
	}
	flags := cmd.Flags()
	f.register(flags)
	flags.IntVar(&p.Crowd, "crowd", 100, "calls of the first tenant, kept running")
	flags.IntVar(&p.Singles, "singles", 10, "calls of the second, one after another")
	flags.IntVar(&p.Prompt, "prompt-tokens", 128, "random ids of a prompt")
	flags.IntVar(&p.Answer, "max-tokens", 64, "tokens generated by a call")
	return cmd
}
