package server

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/prompt"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/loadreport"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
)

// Config is the configuration of a Server. WorkerID, Incarnation and Version must be set.
type Config struct {
	WorkerID    string // stable over restarts
	Incarnation string // differs after each restart
	Version     string
	// LoadReports sends ORCA load reports to balancers.
	LoadReports bool
	// LogPrompts logs the beginning of every prompt. Without it no log line has anything of a
	// prompt.
	LogPrompts bool
	// Observer sees how generations end; nil: none does.
	Observer Observer
	// Generations measures generations for telemetry; nil: they are not measured.
	Generations *telemetry.Generations
	// Extension returns a further service of the worker; nil: there is none.
	Extension func(*Server) Extension
}

// Observer sees how generations end. The goroutines of their calls invoke it, so its methods must
// return at once.
type Observer interface {
	// Finished is called when an output of a generation ends by itself.
	Finished(model string, reason batch.Reason)
	// Ended is called when a call that had its model ends, with the time since its arrival. resumed
	// reports whether it resumed a stream that another worker had started.
	Ended(model string, code codes.Code, took time.Duration, resumed bool)
}

type nopObserver struct{}

func (nopObserver) Finished(string, batch.Reason)                 {}
func (nopObserver) Ended(string, codes.Code, time.Duration, bool) {}

// Extension is a further service of the worker, which has a part in the worker's reports. The
// goroutine of Run calls its methods, except Register.
type Extension interface {
	// Register puts the service on a server.
	Register(grpc.ServiceRegistrar)
	// Assess adds what the worker's health depends on.
	Assess(*health.Input)
	// Report adds the extension's part to a report. It returns how many of its calls run: a worker
	// that stops waits for them.
	Report(*pb.WorkerReport) (running int)
	// Same compares the part in two reports: without ages, and whole.
	Same(a, b *pb.WorkerReport) (steady, whole bool)
	// Delta copies the part from a report into a delta.
	Delta(*pb.WorkerDelta, *pb.WorkerReport)
}

type nopExtension struct{}

func (nopExtension) Register(grpc.ServiceRegistrar)                { /* no service */ }
func (nopExtension) Assess(*health.Input)                          { /* nothing to assess */ }
func (nopExtension) Report(*pb.WorkerReport) int                   { return 0 }
func (nopExtension) Same(_, _ *pb.WorkerReport) (steady, all bool) { return true, true }
func (nopExtension) Delta(*pb.WorkerDelta, *pb.WorkerReport)       { /* no part */ }

// Server is the worker's services. Make it with New.
type Server struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedModelServiceServer
	pb.UnimplementedWorkerServiceServer

	cfg       Config
	models    *model.Manager
	encoder   *prompt.Encoder
	extension Extension
	reports   *loadreport.Reporter // nil: load is not reported
	logger    hclog.Logger

	starting atomic.Bool // until Started
	stopping atomic.Bool // since Stop
	drain    drainState

	// The state of Run, which publishes a snapshot of the worker once a pulse.
	wake        chan struct{} // capacity 1: the next pulse comes at once
	pulses      pulseNotifier
	rates       rates    // of Run alone
	files       fileList // of Run alone
	load        atomic.Pointer[loadreport.Load]
	assessment  atomic.Pointer[health.Look]
	latest      atomic.Pointer[snapshot] // nil until published is closed
	published   chan struct{}
	subscribers atomic.Int64
	resyncs     atomic.Uint64

	// Tests replace these.
	drainReportTimeout time.Duration
	prefixCaches       func() []prefixCache
}

// New returns a server over the models of one device. It is STARTING until Started is called.
func New(models *model.Manager, cfg Config, logger hclog.Logger) *Server {
	s := &Server{
		cfg: cfg, models: models, encoder: prompt.NewEncoder(runtime.GOMAXPROCS(0)), extension: nopExtension{},
		logger: logger.Named("server"), wake: make(chan struct{}, 1), published: make(chan struct{}),
		drainReportTimeout: drainReportTimeout, prefixCaches: func() []prefixCache { return prefixCachesOf(models) },
	}
	s.starting.Store(true)
	if cfg.Observer == nil {
		s.cfg.Observer = nopObserver{}
	}
	if cfg.LoadReports {
		s.reports = loadreport.New(s.currentLoad)
	}
	if cfg.LogPrompts {
		s.logger.Warn("prompts are written to this log: its readers read the prompts of callers", "flag", "--log-prompts")
	}
	if cfg.Extension != nil {
		s.extension = cfg.Extension(s)
	}
	return s
}

// Options returns the options that the gRPC server of the worker needs.
func (s *Server) Options() []grpc.ServerOption { return s.reports.Options() }

// Register puts the worker's services on r, which reports not ready until Run finds the worker
// ready.
func (s *Server) Register(r *rpc.Server) error {
	pb.RegisterInferenceServiceServer(r, s)
	pb.RegisterModelServiceServer(r, s)
	pb.RegisterWorkerServiceServer(r, s)
	s.extension.Register(r)
	if err := s.reports.Register(r); err != nil {
		return err
	}
	r.SetReady(false)
	return nil
}

// Started ends the state STARTING. Call it when the models of --load are loaded.
func (s *Server) Started() {
	s.starting.Store(false)
	s.Nudge()
}

// Stop reports the worker as draining from now on, because the process ends when the running
// requests have ended.
func (s *Server) Stop() {
	if !s.stopping.Swap(true) {
		s.Nudge()
	}
}

// Nudge brings the next pulse forward to now.
func (s *Server) Nudge() {
	select {
	case s.wake <- struct{}{}:
	default: // it is already brought forward
	}
}

// Assessment returns the assessment of the last pulse, and nil before the first.
func (s *Server) Assessment() *health.Look { return s.assessment.Load() }

// Subscribers returns how many schedulers hold a health stream.
func (s *Server) Subscribers() int64 { return s.subscribers.Load() }

// Resyncs returns how many full reports schedulers requested after their first.
func (s *Server) Resyncs() uint64 { return s.resyncs.Load() }
