package main

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/config"
	"github.com/millrace/millrace/services/scheduler/internal/console"
)

// browsers serve the console where the configuration wants it.
type browsers struct {
	lis    net.Listener // nil: it is not wanted
	conn   *grpc.ClientConn
	cfg    console.Config
	served sync.WaitGroup
}

// openConsole opens the port, so that one that is taken ends the scheduler before it serves, and connects it with the server.
func openConsole(ctx context.Context, cfg *config.Config, s *rpc.Server, logger hclog.Logger) (*browsers, error) {
	b := &browsers{}
	if cfg.ConsoleListen == "" {
		return b, nil
	}
	var err error
	if b.cfg.TLS, b.cfg.Refuse, err = cfg.Transport.HTTP(logger.Named("console")); err != nil {
		return nil, err
	}
	if b.conn, err = s.Within(program + "-console"); err != nil {
		return nil, err
	}
	b.cfg.Conn = b.conn
	if b.lis, err = rpc.Listen(ctx, cfg.ConsoleListen); err != nil {
		return nil, errors.Join(err, b.conn.Close())
	}
	return b, nil
}

// serve answers until ctx ends. That it cannot is no reason to end calls.
func (b *browsers) serve(ctx context.Context, logger hclog.Logger) {
	if b.lis == nil {
		return
	}
	logger.Info("console served", "address", b.lis.Addr().String(), "tls", b.cfg.TLS != nil)
	b.served.Go(func() {
		if err := console.Serve(ctx, b.lis, b.cfg, logger.Named("console")); err != nil {
			logger.Error("the console is no longer served", "error", err)
		}
	})
}

// close closes what is never served.
func (b *browsers) close() error {
	if b.lis == nil {
		return nil
	}
	return errors.Join(b.lis.Close(), b.conn.Close())
}

// wait waits until nothing is served any more.
func (b *browsers) wait() {
	b.served.Wait()
	if b.lis != nil {
		_ = b.conn.Close() // only an error if closed twice
	}
}
