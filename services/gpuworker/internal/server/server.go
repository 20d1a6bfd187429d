package server

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/orca"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Identity is who a worker is.
type Identity struct {
	WorkerID    string // stable over restarts
	Incarnation string // another one after each restart
	Version     string
}

// Server is the worker's services. Make it with New.
type Server struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedModelServiceServer
	pb.UnimplementedWorkerServiceServer

	models   *model.Manager
	identity Identity
	logger   hclog.Logger
	starting atomic.Bool
	draining atomic.Bool
	rates    rates
	files    fileList
	pressure orca.ServerMetricsRecorder
	turns    chan struct{} // holds one token for each text being encoded
}

// New returns a server over models. It is STARTING until Started is called.
func New(models *model.Manager, identity Identity, logger hclog.Logger) *Server {
	s := &Server{
		models: models, identity: identity, logger: logger.Named("server"), pressure: orca.NewServerMetricsRecorder(),
		turns: make(chan struct{}, runtime.GOMAXPROCS(0)),
	}
	s.starting.Store(true)
	return s
}

// Register puts the worker's services on r, which reports not ready until Run finds the worker ready. Load reports by
// stream are among them.
func (s *Server) Register(r *rpc.Server) error {
	pb.RegisterInferenceServiceServer(r, s)
	pb.RegisterModelServiceServer(r, s)
	pb.RegisterWorkerServiceServer(r, s)
	if err := orca.Register(r, orca.ServiceOptions{ServerMetricsProvider: s.pressure}); err != nil {
		return fmt.Errorf("register load reports: %w", err)
	}
	r.SetReady(false)
	return nil
}

// Started says that the models wanted from the start are loaded.
func (s *Server) Started() { s.starting.Store(false) }

// pulse is how often a worker looks at itself: often enough that a hang is told well within a second.
const pulse = 100 * time.Millisecond

// Run keeps the readiness that health checks see, and the rates that reports show, current until ctx ends.
func (s *Server) Run(ctx context.Context, r *rpc.Server) {
	tick := time.NewTicker(pulse)
	defer tick.Stop()
	var last health.State
	for {
		now := s.models.Loaded()
		s.rates.sample(now)
		s.reportLoad(now)
		info, err := s.models.Device().Info()
		if state, checks := s.assess(now, info, err); state != last {
			s.logger.Info("worker state changed", "state", stateOf[state], "failed_checks", failedNames(checks))
			r.SetReady(state == health.Ready || state == health.Degraded)
			last = state
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.draining.Store(true)
			return
		}
	}
}

func (s *Server) assess(models []model.Status, device engine.DeviceInfo, failure error) (health.State, []health.Check) {
	return health.Assess(health.Input{
		Starting: s.starting.Load(), Draining: s.draining.Load(), Models: models, Device: device, Failure: failure,
		Leaked: s.models.Leaked(), VerifyInterval: s.models.VerifyInterval(),
	})
}

func failedNames(checks []health.Check) (names []string) {
	for _, c := range checks {
		if !c.OK {
			names = append(names, c.Name)
		}
	}
	return names
}
