package command

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/served"
)

func (c *console) cancel() *cobra.Command {
	f, p := &servedFlags{}, served.CancelConfig{}
	cmd := &cobra.Command{
		Use: "cancel", Short: "Cancels calls at random moments under load and looks for what they leave behind",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.Seed = f.seed
			return c.serve(cmd.Context(), "cancel", f, checkCounts(
				count{"--calls", p.Calls, 1, 1 << 24}, count{"--at-once", p.AtOnce, 1, mostCalls}, count{"--beside", p.Beside, 0, mostCalls},
				count{"--prompt-tokens", p.Prompt, 1, mostTokens}, count{"--max-tokens", p.Max, 2, mostTokens},
			), func(ctx context.Context, s *served.Service) (outcome, error) { return served.Cancel(ctx, s, p) })
		},
	}
	flags := cmd.Flags()
	f.register(flags)
	flags.IntVar(&p.Calls, "calls", 1000, "calls to cancel")
	flags.IntVar(&p.AtOnce, "at-once", 32, "of these at once")
	flags.IntVar(&p.Beside, "beside", 32, "calls that run meanwhile to their ends")
	flags.IntVar(&p.Prompt, "prompt-tokens", 512, "random ids of a prompt")
	flags.IntVar(&p.Max, "max-tokens", 256, "tokens that a call would generate")
	return cmd
}
