package app

import (
	"context"
	"errors"
	"net"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/vectors"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
	"github.com/millrace/millrace/services/gpuworker/internal/metrics"
	"github.com/millrace/millrace/services/gpuworker/internal/server"
	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/version"
)

// measures is what serves measures where the configuration wants it. Where it does not, nothing is counted and no port is open.
type measures struct {
	config  *config.Config
	metrics *metrics.Metrics // nil: they are not wanted
	calls   *monitor.Calls

	lis, profiles net.Listener
	secure        monitor.Secure // nil: in plaintext
}

func newMeasures(c *config.Config) *measures {
	m := &measures{config: c}
	if c.MetricsListen != "" {
		m.metrics, m.calls = metrics.New(), monitor.NewCalls()
	}
	return m
}

// observe is for model.Config.
func (m *measures) observe() func(string) batch.Observer {
	if m.metrics == nil {
		return nil
	}
	return m.metrics.Observe
}

// observer is for rpc.ServerConfig.
func (m *measures) observer() rpc.CallObserver {
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

// of gives them the server before it serves.
func (m *measures) of(s *server.Server, r *rpc.Server) {
	if m.metrics != nil {
		s.Observe(m.metrics)
		m.calls.Of(r)
	}
}

// listen opens the ports, so that one that is taken ends the worker before it serves.
func (m *measures) listen(ctx context.Context, logger hclog.Logger) (err error) {
	if m.config.MetricsTLS {
		if m.secure, err = m.config.Transport.Web(logger.Named("metrics")); err != nil {
			return err
		}
	}
	if m.metrics != nil {
		if m.lis, err = rpc.Listen(ctx, m.config.MetricsListen); err != nil {
			return err
		}
	}
	if m.config.PprofListen != "" {
		if m.profiles, err = rpc.Listen(ctx, m.config.PprofListen); err != nil {
			return errors.Join(err, m.close())
		}
	}
	return nil
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

// profile answers those who profile until ctx ends.
func (m *measures) profile(ctx context.Context, logger hclog.Logger) {
	if m.profiles == nil {
		return
	}
	logger.Info("profiles served", "address", m.profiles.Addr().String())
	if err := monitor.Profiles(ctx, m.profiles, logger.Named("pprof")); err != nil {
		logger.Error("profiles are no longer served", "error", err)
	}
}

// serve answers until ctx ends. That it cannot is no reason to end the worker's requests.
func (m *measures) serve(ctx context.Context, models *model.Manager, books *vectors.Manager, s *server.Server, logger hclog.Logger) {
	if m.metrics == nil {
		return
	}
	logger.Info("measures served", "address", m.lis.Addr().String())
	page, err := m.metrics.Page(metrics.Source{
		Models: models.Loaded, Vectors: books.Stats, Look: s.Look, WorkerID: m.config.WorkerID, Version: version.String(), Calls: m.calls,
		VLLM: m.config.MetricsAliases == config.VLLM,
		Counts: func() metrics.Counts {
			c := metrics.Counts{Unloaded: models.Unloads(), Followers: s.Followers(), Resyncs: s.Resyncs()}
			c.Loaded, c.Failed = models.Loads()
			return c
		},
	})
	if err != nil {
		err = errors.Join(err, m.lis.Close())
	} else {
		page.Secure = m.secure
		err = page.Serve(ctx, m.lis, logger.Named("metrics"))
	}
	if err != nil {
		logger.Error("measures are no longer served", "error", err)
	}
}
