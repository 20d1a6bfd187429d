package command

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/relaybench"
)

func (c *console) relayStreams() *cobra.Command {
	cfg := &relaybench.OpenConfig{}
	run := &relayRun{command: "relay-streams", programs: &cfg.Programs, validate: cfg.Validate, measure: func(ctx context.Context) (figures, error) {
		report, err := relaybench.Streams(ctx, *cfg, c.line.Tell)
		if report == nil {
			return nil, err
		}
		return report, err
	}}
	cmd := &cobra.Command{
		Use: "streams", Short: "Measures the scheduler's memory under open streams, idle and with readers that do not read", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runRelay(cmd.Context(), run) },
	}
	flags := cmd.Flags()
	run.register(flags)
	flags.IntVar(&cfg.Streams, "streams", 10000, "streams open at once, a worker for each 900")
	flags.StringSliceVar(&cfg.States, "states", []string{"idle", "stalled"}, "what the streams are: idle, stalled, or both in turn")
	flags.DurationVar(&cfg.Pause, "pause", 10*time.Second, "of a worker between two steps while streams are idle")
	flags.Float64Var(&cfg.Rate, "rate", 40000, "tokens a second of all streams together while their readers stall: what this machine relays one by one")
	flags.DurationVar(&cfg.Within, "within", time.Hour, "longest wait until nothing moves")
	flags.IntVar(&cfg.Tokens, "tokens", 32768, "that a stream may have: enough that flow control, and not its end, stops a stalled one")
	flags.IntVar(&cfg.Candidates, "candidates", 0, "candidates with each token of a stalled stream: with 20 its windows are full after a tenth of the tokens")
	flags.IntVar(&cfg.Prompt, "prompt", 16, "tokens of each prompt")
	flags.DurationVar(&cfg.Settle, "settle", 5*time.Second, "how long nothing must move before memory is taken")
	return cmd
}
