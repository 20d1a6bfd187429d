package main

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/config"
	"github.com/millrace/millrace/services/scheduler/internal/console"
)

// serveConsole serves the console until the last call has ended, if it has an address. The console
// calls s within the process. Calls continue if the console fails.
func serveConsole(a *app.App, cfg *config.Config, s *rpc.Server, logger hclog.Logger) (err error) {
	if cfg.ConsoleListen == "" {
		return nil
	}
	var c console.Config
	if c.TLS, c.Refuse, err = cfg.Transport.HTTP(logger.Named("console")); err != nil {
		return err
	}
	conn, err := s.InProcessConn(program + "-console")
	if err != nil {
		return err
	}
	c.Conn = conn
	lis, err := rpc.Listen(a.Context(), cfg.ConsoleListen)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	logger.Info("console served", "address", lis.Addr().String(), "tls", c.TLS != nil)
	a.Go(func(ctx context.Context) error {
		if err := console.Serve(ctx, lis, c, logger.Named("console")); err != nil {
			logger.Error("the console is no longer served", "error", err)
		}
		_ = conn.Close() // only an error if closed twice
		return nil
	})
	return nil
}
