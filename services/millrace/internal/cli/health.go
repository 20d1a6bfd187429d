package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/millrace/internal/failure"
)

// healthTimeout bounds the health check unless --timeout does.
const healthTimeout = 2 * time.Second

// health asks a server how it is.
func (a *app) health() *cobra.Command {
	return &cobra.Command{
		Use: "health", Short: "Exit 0 if every server of --target serves, else 1", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.deadline(cmd.Context(), healthTimeout)
			defer cancel()
			creds, err := a.credentials()
			if err != nil {
				return err
			}
			targets, err := a.targets()
			if err != nil {
				return err
			}
			for _, t := range targets {
				if err := rpc.CheckHealth(ctx, t, program, creds...); err != nil {
					return &exitError{code: failure.Failed, err: err}
				}
			}
			_, err = fmt.Fprintf(a.Out, "%s serves\n", a.target)
			return err
		},
	}
}
