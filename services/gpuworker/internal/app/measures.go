package app

import (
	"context"
	"net"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
	"github.com/millrace/millrace/services/gpuworker/internal/metrics"
	"github.com/millrace/millrace/services/gpuworker/internal/server"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/version"
)

// measures is what serves measures where the configuration wants it. Where it does not, nothing is counted and no port is open.
type measures struct {
	config  *config.Config
	metrics *metrics.Metrics // nil: they are not wanted
	lis     net.Listener
}

func newMeasures(c *config.Config) *measures {
	m := &measures{config: c}
	if c.MetricsListen != "" {
		m.metrics = metrics.New()
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

// listen opens the port, so that one that is taken ends the worker before it serves.
func (m *measures) listen(ctx context.Context) (err error) {
	if m.metrics == nil {
		return nil
	}
	m.lis, err = rpc.Listen(ctx, m.config.MetricsListen)
	return err
}

// close closes the port of measures that are never served.
func (m *measures) close() error {
	if m.lis == nil {
		return nil
	}
	return m.lis.Close()
}

// serve answers until ctx ends. That it cannot is no reason to end the worker's requests.
func (m *measures) serve(ctx context.Context, models *model.Manager, s *server.Server, logger hclog.Logger) {
	if m.metrics == nil {
		return
	}
	logger.Info("measures served", "address", m.lis.Addr().String())
	from := metrics.Source{
		Models: models.Loaded, Loads: models.Loads, Look: s.Look, WorkerID: m.config.WorkerID, Version: version.String(),
	}
	if err := m.metrics.Serve(ctx, m.lis, from, logger.Named("metrics")); err != nil {
		logger.Error("measures are no longer served", "error", err)
	}
}
