package command

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/relay"
)

func (c *console) relay() *cobra.Command {
	cfg, floors := &relay.Config{}, ""
	cmd := &cobra.Command{
		Use: "relay", Short: "Compares the scheduler with nginx: processor time for each relayed token, and TTFT",
		Long: "Starts the shipped worker on the sim engine, the shipped scheduler with default flags, and nginx relaying gRPC to the\n" +
			"same worker. Measures the processor time of each for each relayed token and the time to first token (TTFT), in turn,\n" +
			"at each of --rates; then a burst of streams. Timing fails the run only with --floors; failed calls and lost tokens\n" +
			"always do.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.Validate(); err != nil {
				return fmt.Errorf("%w: %w", ErrUsage, err)
			}
			set, err := readFloors(floors, "relay")
			if err != nil {
				return err
			}
			if err := findPrograms(&cfg.Scheduler, &cfg.Worker); err != nil {
				return err
			}
			c.logger() // gRPC's own messages go through it
			report, err := relay.Run(cmd.Context(), *cfg, c.line.Step)
			c.line.Clear()
			if report == nil {
				return err
			}
			return errors.Join(err, c.print(report), judge(set, report.Figure).Err())
		},
	}
	flags := cmd.Flags()
	programFlags(flags, &cfg.Scheduler, &cfg.Worker)
	flags.StringVar(&cfg.Nginx, "nginx", "nginx", "name or path of the nginx that the scheduler is compared with; empty: none")
	flags.IntVar(&cfg.Connections, "connections", 1, "connections of this client to each program")
	flags.IntVar(&cfg.Streams, "streams", 100, "streams at once while processor time is measured")
	flags.Float64SliceVar(&cfg.Rates, "rates", []float64{5000, 20000, 40000}, "tokens a second over all streams, one stage for each")
	flags.IntVar(&cfg.Rounds, "rounds", 5, "rounds of each stage; every target has a turn in every round")
	flags.DurationVar(&cfg.Duration, "duration", 4*time.Second, "duration of a turn")
	flags.IntVar(&cfg.Pairs, "pairs", 300, "TTFT samples of each target while nothing else runs")
	flags.IntVar(&cfg.Burst, "burst", 1000, "streams at once at the end")
	flags.IntVar(&cfg.BurstTokens, "burst-tokens", 100, "tokens of each of them")
	flags.IntVar(&cfg.Prompt, "prompt", 16, "tokens of each prompt")
	flags.Uint64Var(&cfg.Seed, "seed", 1, "seed of the prompts")
	flags.StringVar(&floors, "floors", "", floorsUsage)
	return cmd
}
