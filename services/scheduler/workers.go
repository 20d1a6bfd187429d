package main

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/config"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
)

// newFleet returns the fleet that --workers names. It dials nothing until it runs.
func newFleet(cfg *config.Config, logger hclog.Logger) (*fleet.Fleet, error) {
	creds, err := cfg.Transport.Dialer(logger)
	if err != nil {
		return nil, err
	}
	token, err := cfg.Auth.Dialer(logger)
	if err != nil {
		return nil, err
	}
	return fleet.New(fleet.Config{
		Workers: cfg.Workers, Stale: cfg.Stale, Urgent: vectors.Urgent,
		Dial: func(address string) (*grpc.ClientConn, error) {
			return rpc.Dial(address, program, grpc.WithTransportCredentials(creds), token(address))
		},
	}, logger)
}

// awaitFleet calls ready once every worker has answered or failed to, unless ctx ends first.
func awaitFleet(ctx context.Context, workers *fleet.Fleet, ready func()) {
	for {
		snapshot := workers.Snapshot()
		if snapshot.Route.Known {
			ready()
			return
		}
		select {
		case <-snapshot.Next:
		case <-ctx.Done():
			return
		}
	}
}
