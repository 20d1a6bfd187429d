package main

import (
	"context"
	"io"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/gateway/internal/anthropic"
	"github.com/millrace/millrace/services/gateway/internal/config"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/metrics"
	"github.com/millrace/millrace/services/gateway/internal/ollama"
	"github.com/millrace/millrace/services/gateway/internal/openai"
	"github.com/millrace/millrace/services/gateway/internal/responses"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/version"
)

const program = "millrace-gateway"

func main() { os.Exit(app.Main(command(os.Stderr))) }

// command is the command line. The log goes to logs.
func command(logs io.Writer) *cobra.Command {
	cfg := &config.Config{}
	root := app.Root(&cobra.Command{
		Use: program + " --target a,b", Short: "Serves the HTTP APIs of OpenAI, Anthropic and Ollama over schedulers or workers",
	})
	cfg.Register(root.Flags())
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cfg.Validate(); err != nil {
			return err
		}
		return serve(cmd.Context(), cfg, cfg.Logger(program, logs))
	}
	root.AddCommand(healthCommand())
	return root
}

// dialects returns the APIs that the gateway serves.
func dialects(client *target.Client) []httpapi.Dialect {
	return []httpapi.Dialect{openai.New(client), anthropic.New(client), responses.New(client), ollama.New(client)}
}

// serve runs the gateway until ctx ends and the requests that ran then have ended.
func serve(ctx context.Context, cfg *config.Config, logger hclog.Logger) error {
	logger.Info("starting", append([]any{"version", version.String()}, cfg.Fields()...)...)
	a, err := app.Open(ctx, program, "", &cfg.Flags, logger)
	if err != nil {
		return err
	}
	defer a.Close()

	creds, err := cfg.Transport.Dialer(logger)
	if err != nil {
		return err
	}
	key, err := cfg.ResumeKey()
	if err != nil {
		return app.Usage(err)
	}
	client, err := target.Open(cfg.Targets, program, grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // only an error if closed twice

	h := httpapi.Config{
		Dialects: dialects(client), Ready: client.Ready,
		MaxConnections: cfg.MaxConnections, MaxConnectionsPerAddress: cfg.Transport.MaxConnections,
		MaxBodyBytes: cfg.MaxBodyBytes, MaxHeldBytes: cfg.MaxHeldBytes, SendStall: cfg.SendStall, DrainTimeout: cfg.DrainTimeout,
		Origins: cfg.Origins, Strict: cfg.Strict, StreamKey: key, HidesTokens: cfg.HidesTokens(), Tracer: a.Telemetry.Tracer(),
	}
	if h.TLS, h.Refuse, err = cfg.Transport.HTTP(logger); err != nil {
		return err
	}
	if h.HidesTokens {
		logger.Warn("the tokens of clients are not passed on, because a target is another machine that is dialled in plaintext: give --tls-ca")
	}
	m := metrics.New()
	h.Observer = m
	s := httpapi.New(h, logger)
	logger.Info("listening", "address", a.Address(), "tls", h.TLS != nil)
	a.ServeMetrics(func(*monitor.Calls) (monitor.Page, error) {
		return m.Page(metrics.Source{Server: s, MaxHeldBytes: cfg.MaxHeldBytes, Version: version.String()})
	})
	return a.Serve(s)
}
