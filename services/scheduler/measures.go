package main

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/config"
	"github.com/millrace/millrace/services/scheduler/internal/metrics"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
)

// measures serve measures and profiles where the configuration wants them. Where it does not, nothing is counted and no port is open.
type measures struct {
	metrics *metrics.Metrics // nil: they are not wanted
	calls   *monitor.Calls
	served  sync.WaitGroup

	lis, profiles net.Listener
	secure        monitor.Secure // nil: in plaintext
}

// openMeasures opens the ports, so that one that is taken ends the scheduler before it serves.
func openMeasures(ctx context.Context, cfg *config.Config, logger hclog.Logger) (_ *measures, err error) {
	m := &measures{}
	if cfg.MetricsTLS {
		if m.secure, err = cfg.Transport.Web(logger.Named("metrics")); err != nil {
			return nil, err
		}
	}
	if cfg.MetricsListen != "" {
		m.metrics, m.calls = metrics.New(), monitor.NewCalls()
		if m.lis, err = rpc.Listen(ctx, cfg.MetricsListen); err != nil {
			return nil, err
		}
	}
	if cfg.PprofListen != "" {
		if m.profiles, err = rpc.Listen(ctx, cfg.PprofListen); err != nil {
			return nil, errors.Join(err, m.close())
		}
	}
	return m, nil
}

// close closes ports that are never served.
func (m *measures) close() (err error) {
	for _, lis := range []net.Listener{m.lis, m.profiles} {
		if lis != nil {
			err = errors.Join(err, lis.Close())
		}
	}
	return err
}

// ofCalls is for rpc.ServerConfig.
func (m *measures) ofCalls() rpc.CallObserver {
	if m.metrics == nil {
		return nil
	}
	return m.calls
}

// with gives the measures of keys, if there are any.
func (m *measures) with(guard *auth.Guard) {
	if m.calls != nil && guard != nil {
		m.calls.With(guard)
	}
}

// ofGenerations is for relay.Options.
func (m *measures) ofGenerations() relay.Observer {
	if m.metrics == nil {
		return nil
	}
	return m.metrics.Observer()
}

// serve answers until ctx ends; wait waits for that. That it cannot is no reason to end calls.
func (m *measures) serve(ctx context.Context, from metrics.Source, s *rpc.Server, logger hclog.Logger) {
	if m.profiles != nil {
		logger.Info("profiles served", "address", m.profiles.Addr().String())
		m.served.Go(func() {
			if err := monitor.Profiles(ctx, m.profiles, logger.Named("pprof")); err != nil {
				logger.Error("profiles are no longer served", "error", err)
			}
		})
	}
	if m.metrics == nil {
		return
	}
	m.calls.Of(s)
	from.Calls = m.calls
	logger.Info("measures served", "address", m.lis.Addr().String())
	m.served.Go(func() {
		page, err := m.metrics.Page(from)
		if err != nil {
			err = errors.Join(err, m.lis.Close())
		} else {
			page.Secure = m.secure
			err = page.Serve(ctx, m.lis, logger.Named("metrics"))
		}
		if err != nil {
			logger.Error("measures are no longer served", "error", err)
		}
	})
}

// wait waits until nothing is served any more.
func (m *measures) wait() { m.served.Wait() }
