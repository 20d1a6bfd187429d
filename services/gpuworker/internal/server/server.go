package server

import (
	"cmp"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/prompt"
	"github.com/millrace/millrace/gpuworker/vectors"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/loadreport"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
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
	pb.UnimplementedVectorServiceServer

	models   *model.Manager
	vectors  *vectors.Manager
	patience time.Duration
	shown    time.Duration // shownTimeout
	identity Identity
	logger   hclog.Logger
	starting atomic.Bool
	stopping atomic.Bool // the process is
	drain    drainer
	looked   looked
	rates    rates // used by Run only
	files    fileList
	books    bookList
	reports  *loadreport.Reporter            // nil: nobody is told of load
	load     atomic.Pointer[loadreport.Load] // of the last pulse
	wake     chan struct{}                   // capacity 1: Run looks at the worker at once

	look      atomic.Pointer[health.Look] // of the last pulse
	latest    atomic.Pointer[snapshot]    // nil until published is closed
	published chan struct{}
	encoder   *prompt.Encoder
	cached    func() []cached // the models whose cached prefixes are told
	shows     bool            // prompts are written to the log

	observer    Observer
	generations *telemetry.Generations // nil: nobody measures them
	followers   atomic.Int64
	resyncs     atomic.Uint64
}

// Vectors is what serves codebooks and trainings.
type Vectors struct {
	Manager *vectors.Manager
	// Patience is how long a caller may send nothing where something is due, or read nothing. 0: DefaultPatience.
	Patience time.Duration
}

// DefaultPatience is long for a program, and short for memory that others could use.
const DefaultPatience = time.Minute

// New returns a server over models and codebooks of one device. It is STARTING until Started is called.
func New(models *model.Manager, v Vectors, identity Identity, logger hclog.Logger) *Server {
	s := &Server{
		models: models, vectors: v.Manager, patience: cmp.Or(v.Patience, DefaultPatience), shown: shownTimeout,
		identity: identity, logger: logger.Named("server"),
		encoder: prompt.NewEncoder(runtime.GOMAXPROCS(0)), wake: make(chan struct{}, 1), published: make(chan struct{}),
	}
	s.cached, s.observer = func() []cached { return cachedOf(models) }, nobody{}
	s.starting.Store(true)
	return s
}

// Register puts the worker's services on r, which reports not ready until Run finds the worker ready.
func (s *Server) Register(r *rpc.Server) error {
	pb.RegisterInferenceServiceServer(r, s)
	pb.RegisterModelServiceServer(r, s)
	pb.RegisterWorkerServiceServer(r, s)
	s.registerVectors(r)
	if err := s.reports.Register(r); err != nil {
		return err
	}
	r.SetReady(false)
	return nil
}

// Started says that the models wanted from the start are loaded.
func (s *Server) Started() {
	s.starting.Store(false)
	s.nudge()
}

// Look is what the worker saw of itself last, nil before Run has looked.
func (s *Server) Look() *health.Look { return s.look.Load() }

// Stop says that the worker ends when the requests that run have: its reports say so at once.
func (s *Server) Stop() {
	if !s.stopping.Swap(true) {
		s.nudge()
	}
}
