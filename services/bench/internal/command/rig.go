package command

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/rig"
)

func (c *console) rig() *cobra.Command {
	cfg := rig.Config{}
	cmd := &cobra.Command{
		Use: "rig", Short: "Breaks a fleet of containers under load and looks for what that loses",
		Long: "Takes a Compose project that is up, with two schedulers and workers that have the model loaded, takes the answers of\n" +
			"the undisturbed fleet, and then kills, freezes, cuts off, drains and restarts its containers while clients ask for the\n" +
			"same answers again: a line for each section, and exit code 1 if a stream failed or differs, or if a scheduler shows for\n" +
			"longer than --truth what is not so. Run it in the folder of docker-compose.yml; deploy/rig-test.sh puts the project up.\n\n" +
			"Sections: " + strings.Join(rig.Sections(), ", ") + ".",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.Validate(); err != nil {
				return fmt.Errorf("%w: %w", ErrUsage, err)
			}
			report, err := rig.Run(cmd.Context(), cfg, func(line fmt.Stringer) {
				if !c.json {
					fmt.Fprintln(c.out, line)
				}
			})
			if err != nil {
				return err
			}
			return errors.Join(c.print(report), report.Err())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.Project, "project", "millrace-rig", "name of the Compose project")
	flags.StringSliceVar(&cfg.Schedulers, "schedulers", []string{"127.0.0.1:7070", "127.0.0.1:7170"}, "published addresses of scheduler-0 and scheduler-1")
	flags.StringVar(&cfg.Model, "model", "stories", "name of the model that every worker has loaded")
	flags.StringVar(&cfg.Service, "service", "worker", "service of the Compose file whose containers are the workers")
	flags.IntVar(&cfg.Workers, "workers", 4, "containers of that service")
	flags.IntVar(&cfg.Streams, "streams", 36, "streams at once")
	flags.IntVar(&cfg.Tokens, "max-tokens", 450, "tokens of each")
	flags.StringSliceVar(&cfg.Only, "only", nil, "sections to run, divided by commas (default: all)")
	flags.DurationVar(&cfg.Truth, "truth", 2*time.Second, "within which schedulers show what is so of their workers; of a silent one whose steps may take longer than 1.6 s, up to 0.7 s later")
	return cmd
}
