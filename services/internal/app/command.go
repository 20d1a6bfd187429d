package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/transport"
	"github.com/millrace/millrace/services/internal/version"
)

// Exit codes of both programs.
const (
	exitFailed = 1
	exitUsage  = 2 // see ErrUsage
)

// ErrUsage is wrapped by errors that the same command line would meet again: a wrong argument, flag
// or value. A supervisor must not restart a program that exits with their code.
var ErrUsage = errors.New("wrong command line")

// usageError is an error that wraps ErrUsage and has its own text only.
type usageError struct{ error }

func (e usageError) Unwrap() []error { return []error{ErrUsage, e.error} }

// Usage returns err as an error that wraps ErrUsage; nil for nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// ExitCode returns the exit code of a program whose command returned err.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrUsage):
		return exitUsage
	}
	return exitFailed
}

// Main runs a program and returns its exit code. The first SIGINT or SIGTERM ends the command's
// context, the second ends the process.
func Main(root *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // restores the default action of both signals
	err := root.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", root.Name(), err)
	}
	return ExitCode(err)
}

// helpTemplate is cobra's own, except that the long text follows the flags.
const helpTemplate = `{{.Short}}

{{.UsageString}}{{with .Long}}
{{. | trimTrailingWhitespaces}}
{{end}}`

// Root completes a program's root command: version, help, and errors that wrap ErrUsage.
func Root(root *cobra.Command) *cobra.Command {
	root.Args = noArgs
	root.Version = version.String()
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetHelpTemplate(helpTemplate)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(fmt.Errorf("%w; see --help", err)) })
	root.CompletionOptions.DisableDefaultCmd = true
	return root
}

// noArgs refuses arguments other than flags.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return Usage(fmt.Errorf("unexpected argument %q; see --help", args[0]))
}

// HealthCommand returns the command that asks a server for its health: the health check of a
// container image that has no other program. target is the default of --target.
func HealthCommand(program, target string) *cobra.Command {
	cmd := &cobra.Command{Use: "health", Short: "Exits 0 if a server reports that it serves", Args: noArgs}
	cmd.Flags().StringVar(&target, "target", target, "address of the server")
	timeout := cmd.Flags().Duration("timeout", 2*time.Second, "longest wait for the answer")
	var flags transport.Flags
	flags.AddClientFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		if err := flags.CheckClient("--target", target); err != nil {
			return Usage(err)
		}
		creds, err := flags.Dialer(hclog.NewNullLogger())
		if err != nil {
			return err
		}
		return rpc.CheckHealth(ctx, target, program, grpc.WithTransportCredentials(creds))
	}
	return cmd
}
