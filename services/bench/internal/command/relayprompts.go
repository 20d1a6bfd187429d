package command

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/relaybench"
)

func (c *console) relayPrompts() *cobra.Command {
	cfg := &relaybench.PromptsConfig{}
	run := &relayRun{
		command: "relay-prompts", programs: &cfg.Programs, validate: cfg.Validate,
		measure: func(ctx context.Context) (figures, error) {
			report, err := relaybench.Prompts(ctx, *cfg, c.line.Tell)
			if report == nil {
				return nil, err
			}
			return report, err
		},
	}
	cmd := &cobra.Command{
		Use: "prompts", Short: "Measures what the scheduler adds to the first token of large prompts", Args: noArgs,
		Long: "Starts workers on the sim engine, which have a place for each caller, and a scheduler with default flags, all shipped\n" +
			"programs. The callers send large prompts in a closed loop, in turn to the workers themselves and through the scheduler.\n" +
			"Timing fails the run only by --floors; failed calls always do.",
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runRelay(cmd.Context(), run) },
	}
	flags := cmd.Flags()
	run.register(flags)
	flags.StringSliceVar(&cfg.Kinds, "kinds", []string{"ids"}, "what prompts are: ids, text, or both in turn; text wants a --model with a tokenizer")
	flags.IntVar(&cfg.Bytes, "bytes", 220_000, "of each prompt as text; as ids it has a quarter as many ids")
	flags.IntVar(&cfg.Callers, "callers", 150, "in a closed loop, each with a place on a worker and a connection of its own")
	flags.IntVar(&cfg.Workers, "workers", 15, "of the callers, who have a place each: a worker has a model for every caller that it serves")
	flags.DurationVar(&cfg.FirstToken, "first-token", time.Second, "what a worker takes to the first token of a prompt")
	flags.IntVar(&cfg.Rounds, "rounds", 5, "turns of each way")
	flags.DurationVar(&cfg.Duration, "duration", 15*time.Second, "how long a turn is")
	return cmd
}
