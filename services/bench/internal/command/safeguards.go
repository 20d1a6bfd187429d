package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/safeguards"
)

func (c *console) safeguards() *cobra.Command {
	cfg, floors := &safeguards.Config{}, ""
	cmd := &cobra.Command{
		Use: "safeguards", Short: "Measures what logs, measures, keys and mutual TLS cost for each token",
		Long: "Starts a scheduler over a worker on the sim engine for each row: bare, with a line of log a call, with measures that are read once\n" +
			"a second, with keys at both whose limits are counted, with mutual TLS on both legs, and with all of them. Streams run in turn\n" +
			"through each, and the processor time of scheduler and worker for each token is compared with that of bare in the same round.\n" +
			"A call that fails and a lost token fail the run; processor time fails it only by --floors.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runSafeguards(cmd.Context(), cfg, floors) },
	}
	flags := cmd.Flags()
	programFlags(flags, &cfg.Scheduler, &cfg.Worker)
	flags.IntVar(&cfg.Streams, "streams", 100, "requests at once")
	flags.Float64Var(&cfg.Rate, "rate", 20000, "tokens a second that the engine gives all of them together at most")
	flags.IntVar(&cfg.Tokens, "tokens", 256, "tokens of each request")
	flags.IntVar(&cfg.Prompt, "prompt", 16, "tokens of each prompt")
	flags.DurationVar(&cfg.Duration, "duration", 4*time.Second, "how long a turn is")
	flags.IntVar(&cfg.Rounds, "rounds", 5, "turns of each row")
	flags.StringVar(&floors, "floors", "", floorsUsage)
	return cmd
}

func (c *console) runSafeguards(ctx context.Context, cfg *safeguards.Config, floors string) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	set, err := readFloors(floors, "safeguards")
	if err != nil {
		return err
	}
	if err := findPrograms(&cfg.Scheduler, &cfg.Worker); err != nil {
		return err
	}
	c.logger() // gRPC's own messages go through it
	report, err := safeguards.Run(ctx, *cfg, c.line.Tell)
	c.line.Clear()
	if err != nil {
		return err
	}
	return errors.Join(c.print(report), judge(set, report.Figure).Err())
}
