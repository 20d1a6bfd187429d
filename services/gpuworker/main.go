package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/services/gpuworker/internal/app"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/version"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2 // a wrong flag, a device that this machine does not have, or no file for a model of --load
)

// help is what --help prints, with the flags in it.
const help = `Serves the models of one folder from one device

Usage:
  millrace-worker --models DIR [flags]

Examples:
  millrace-worker --models models --device cpu --load stories
  millrace-worker --models /srv/models --device cuda:0 --listen 0.0.0.0:7071 --tls-cert worker.pem --tls-key worker-key.pem --tls-client-ca ca.pem
  millrace-worker --self-test

Flags:
%s
Exit codes: 0 stopped as asked; 1 failed, as when its GPU is lost; 2 a wrong flag, a device that this machine does not
have, or a model of --load that has no file. The first SIGINT or SIGTERM lets running requests end, the second ends the program at once.
`

func main() {
	template.MaybeChild()
	os.Exit(run(os.Args[1:], os.Stdout))
}

func run(args []string, out io.Writer) int {
	c, flags := &config.Config{}, pflag.NewFlagSet("millrace-worker", pflag.ContinueOnError)
	c.Register(flags)
	printVersion := flags.Bool("version", false, "print the version and exit")
	flags.Usage = func() {} // help is printed below, where it is asked for
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(out, help, flags.FlagUsages())
		return 0
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
		fallthrough
	case err != nil:
		fmt.Fprintf(os.Stderr, "millrace-worker: %v; see --help\n", err)
		return exitUsage
	}
	if *printVersion {
		fmt.Fprintln(out, "millrace-worker", version.String())
		return 0
	}
	if err := c.Validate(); err != nil {
		fmt.Fprintf(os.Stderr, "millrace-worker: %v\n", err)
		return exitUsage
	}
	logger := hclog.New(&hclog.LoggerOptions{
		Name: "millrace-worker", Level: hclog.LevelFromString(c.LogLevel), JSONFormat: c.LogJSON, Output: os.Stderr,
	})
	rpc.LogGRPC(logger)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	logger.Debug("configuration", "config", fmt.Sprintf("%+v", *c))
	serve := func() error { return app.Run(ctx, c, logger) }
	if c.SelfTest {
		serve = func() error { return app.SelfTest(c, out, logger) }
	}
	if err := serve(); err != nil {
		fmt.Fprintf(os.Stderr, "millrace-worker: %v\n", err)
		if errors.Is(err, engine.ErrNoDevice) || errors.Is(err, app.ErrNoModel) {
			return exitUsage
		}
		return exitFailed
	}
	return 0
}
