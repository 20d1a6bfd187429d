package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/services/bench/internal/relaybench"
)

// figures is a report that can be held against floors.
type figures interface {
	printer
	Figure(row, metric string) (float64, bool)
}

// relayRun is what the benchmarks of the relay have in common.
type relayRun struct {
	command  string // as floors name it
	programs *relaybench.Programs
	floors   string
	validate func() error
	// measure returns nil for a run without a report.
	measure func(ctx context.Context) (figures, error)
}

func (c *console) relay() *cobra.Command {
	cfg := &relaybench.Config{}
	run := &relayRun{command: "relay", programs: &cfg.Programs, validate: cfg.Validate, measure: func(ctx context.Context) (figures, error) {
		report, err := relaybench.Cost(ctx, *cfg, c.line.Tell)
		if report == nil {
			return nil, err
		}
		return report, err
	}}
	cmd := &cobra.Command{
		Use: "relay", Short: "Measures what the scheduler adds to a stream, over a worker on the sim engine",
		Long: "Starts a worker on the sim engine and a scheduler with default flags, both the shipped programs, and nginx beside\n" +
			"it, and measures the processor time that each takes for each relayed token and the time to the first token, in\n" +
			"turn, at each of --rates; and a burst of streams. Timing fails the run only by --floors; failed calls and lost\n" +
			"tokens always do.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runRelay(cmd.Context(), run) },
	}
	flags := cmd.Flags()
	run.register(flags)
	flags.StringVar(&cfg.Nginx, "nginx", "nginx", "name or path of the nginx that the scheduler is held against; empty: none")
	flags.IntVar(&cfg.Streams, "streams", 100, "streams at once while processor time is taken")
	flags.Float64SliceVar(&cfg.Rates, "rates", []float64{5000, 20000, 40000}, "tokens a second wanted over all of them, each a stage of its own")
	flags.IntVar(&cfg.Rounds, "rounds", 5, "turns of each way in each stage")
	flags.DurationVar(&cfg.Duration, "duration", 4*time.Second, "how long a turn is")
	flags.IntVar(&cfg.Pairs, "pairs", 300, "first tokens taken on each way while nothing else runs, in turn")
	flags.IntVar(&cfg.Burst, "burst", 1000, "streams at once at the end")
	flags.IntVar(&cfg.BurstTokens, "burst-tokens", 100, "tokens of each of them")
	flags.IntVar(&cfg.Prompt, "prompt", 16, "tokens of each prompt")
	cmd.AddCommand(c.relayStreams(), c.relayPrompts())
	return cmd
}

// register registers the flags that all benchmarks of the relay have.
func (r *relayRun) register(flags *pflag.FlagSet) {
	flags.StringVar(&r.programs.Scheduler, "scheduler", "", "path of millrace-scheduler (default: beside this program)")
	flags.StringVar(&r.programs.Worker, "worker", "", "path of millrace-worker (default: beside this program)")
	flags.StringVar(&r.programs.Model, "model", "", "model file whose vocabulary is used (default: a small one of random weights, without text)")
	flags.IntVar(&r.programs.Connections, "connections", 1, "connections of this client to each program")
	flags.Uint64Var(&r.programs.Seed, "seed", 1, "seed of the prompts")
	flags.StringVar(&r.floors, "floors", "", floorsUsage)
}

// complete finds the programs that were not named beside this one.
func complete(p *relaybench.Programs) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for path, name := range map[*string]string{&p.Scheduler: "millrace-scheduler", &p.Worker: "millrace-worker"} {
		if *path == "" {
			*path = filepath.Join(filepath.Dir(self), name)
		}
	}
	return nil
}

func (c *console) runRelay(ctx context.Context, r *relayRun) error {
	if err := r.validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	floors, err := readFloors(r.floors, r.command)
	if err != nil {
		return err
	}
	if err := complete(r.programs); err != nil {
		return err
	}
	c.logger() // gRPC's own messages go through it
	report, err := r.measure(ctx)
	c.line.Clear()
	if report == nil {
		return err
	}
	return errors.Join(err, c.print(report), judge(floors, report.Figure).Err())
}
