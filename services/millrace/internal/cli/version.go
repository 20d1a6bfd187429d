package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/internal/version"
)

// versions adds --version and the command of that name; both print one line.
func versions(root *cobra.Command) {
	root.Version = version.String()
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(local(&cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", program, version.String())
		},
	}))
}
